"""What is imported stays: without this every full garbage collection would walk all of it again."""

import gc


def pytest_collection_finish():
    gc.freeze()
