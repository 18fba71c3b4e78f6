"""Python in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def run_python(*arguments, **variables):
    """What Python prints, which can import the library and the helpers of the tests.

    Args:
        *arguments: Of the command `python`.
        **variables: Of the environment, besides those of this process.
    """
    path = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
