"""What holds for every test."""

import gc


def pytest_collection_finish():
    """Leaves what was imported and collected out of every later garbage collection.

    TensorFlow and thousands of collected tests stay until the end, and to look through
    them again and again for what may go was a tenth of the suite's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
