"""One thread a process: the pools of a run's processes would fight for the cores, and base/ is too small for two.

Imported modules are frozen: otherwise every full garbage collection would walk through all of them again.
"""

import gc
import os

os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported, by this process and by those that tests start
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # what forks after tokenising need not be told so


def pytest_collection_finish():
    gc.freeze()
