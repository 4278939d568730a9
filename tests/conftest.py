"""Imported modules are frozen: otherwise every full garbage collection would walk through all of them again."""

import gc


def pytest_collection_finish():
    gc.freeze()
