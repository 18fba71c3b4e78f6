"""What reading a damaged file may do."""

import resource

from fuzz.json_mutations import json_mutations
from fuzz.mutations import mutations, rounds

SECONDS = 30
# Files have some kB; tracing a TensorFlow function takes the most.
MAX_MIB = 64


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def damaged_files(data, seed, count, json_seed=0, json_count=0):
    """Copies of a file with damaged bytes, and, if it is JSON, with other values."""
    if json_count:
        for text in json_mutations(data.decode(), json_seed, rounds(json_count)):
            yield text.encode()
    yield from mutations(data, seed, rounds(count))


def check_each(path, damaged, load, time_limit, *names, max_mib=float("inf")):
    """With each content of the file, `load()` returns, or fails with a short error.

    Args:
        path: The file.
        damaged: Its contents.
        load: Reads it. What it warns of is an error unless it ignores it.
        time_limit: Fixture.
        names: Of which the error names one, such as that of the file.
        max_mib: By how much the memory may grow.
    """
    for content in damaged:
        path.write_bytes(content)
        before = peak_mib()
        with time_limit(SECONDS):
            try:
                load()
            except (ValueError, OSError, UserWarning) as error:
                assert any(name in str(error) for name in names), error
                assert len(str(error)) < 3000
        assert peak_mib() - before < max_mib
