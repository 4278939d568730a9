"""Imported modules are a million objects: without this each full garbage collection would walk them all again."""

import gc


def pytest_collection_finish():
    gc.freeze()
