"""`--processes`: a training command in several processes of JAX, which end together.

Started without `--coordinator`, the command starts itself once for each process, and
ends when they end. Started with it, it is one of the processes: it joins the others
before anything is computed, prints and writes only if it is the first, and ends with an
error when another one is lost.
"""

import atexit
import contextlib
import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from keras_attn.cli.options import Panel
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console, working
from keras_attn.extras import requires_extra
from keras_attn.interruption import INTERRUPTED

_PANEL = Panel("Several devices and processes")
_POLL_SECONDS = 0.1
# Between asking the other processes to end and ending them.
_GRACE_SECONDS = 5.0
_SAVING_SECONDS = 3600
_FAILED = 2
# JAX raises errors of several types for what Gloo, NCCL and its own service report.
_LOST = re.compile(r"Gloo|NCCL|UNAVAILABLE|DEADLINE_EXCEEDED|CoordinationService")

Processes = Annotated[
    int | None,
    _PANEL.option(
        "Train with JAX in N processes, each of which computes its part of every "
        "batch. Alone, it starts them on this machine, one for each GPU if there are "
        "GPUs; 1 trains on all devices of this machine in one process. For several "
        "machines, start the command on each with --coordinator and --process-id too. "
        "The losses are those of one process.",
        metavar="N",
        min=1,
    ),
]
Coordinator = Annotated[
    str | None,
    _PANEL.option(
        "Address and free port of the machine of process 0, the same in each process, "
        "such as 10.0.0.1:1234.",
        metavar="HOST:PORT",
    ),
]
ProcessId = Annotated[
    int | None,
    _PANEL.option(
        "With --coordinator: number of this process, 0 to N - 1. All need the same "
        "data and a --run-dir that all see; process 0 prints and writes.",
        metavar="N",
        min=0,
    ),
]


def trains_in_processes(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command what `--processes`, `--coordinator` and `--process-id` mean.

    Args:
        command: A command with these options and `context`, which it need not read,
            and with `batch_size`. Its context has its command line in `obj`.
    """

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        count = arguments["processes"]
        coordinator, number = arguments["coordinator"], arguments["process_id"]
        _check(count, coordinator, number)
        if count is None:
            command(**arguments)
        elif count > 1 and coordinator is None:
            code = _start_all(count, arguments["context"].obj)
            if code:
                raise typer.Exit(code)
        else:
            with _joined(count, coordinator, number or 0):
                _check_batch_size(arguments["batch_size"])
                command(**arguments)

    return run


def _check(count: int | None, coordinator: str | None, number: int | None) -> None:
    if (coordinator is None) != (number is None) or (
        coordinator is not None and count is None
    ):
        raise ValueError(
            "--coordinator and --process-id are given together, with --processes. "
            f"Received: --processes {count}, --coordinator {coordinator}, --process-id "
            f"{number}"
        )
    if coordinator is None:
        return
    host, colon, port = coordinator.rpartition(":")
    if not (host and colon and port.isdigit()):
        raise ValueError(
            "--coordinator must be an address and a port, such as 10.0.0.1:1234. "
            f"Received: --coordinator {coordinator!r}"
        )
    if count is not None and number is not None and number >= count:
        raise ValueError(
            f"--process-id must be less than --processes {count}: the first process "
            f"is 0. Received: --process-id {number}"
        )


def _check_batch_size(batch_size: int) -> None:
    import keras

    devices = keras.distribution.get_device_count()
    if batch_size % devices:
        raise ValueError(
            f"--batch-size must be a multiple of the {devices} devices of all "
            f"processes, which share the rows. Received: --batch-size {batch_size}"
        )


def _start_all(count: int, arguments: Sequence[str]) -> int:
    """Starts the command in all processes on this machine, and waits for them.

    Args:
        count: Number of processes.
        arguments: The command line, without the program's name.

    Returns:
        The exit code of the first process that failed; 0 if none did.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = range(count) if visible is None else visible.split(",")
    started = []
    try:
        for number in range(count):
            # One GPU each. The variable means nothing where there is none.
            gpu = str(gpus[number]) if number < len(gpus) else ""
            program = [sys.executable, "-m", "keras_attn.cli", *arguments]
            process = subprocess.Popen(
                [*program, "--coordinator", coordinator, "--process-id", str(number)],
                # What this process imports, they import.
                env={
                    **os.environ,
                    "CUDA_VISIBLE_DEVICES": gpu,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
            )
            started.append(process)
        while True:
            codes = [process.poll() for process in started]
            failed = [code for code in codes if code]
            if failed:
                return failed[0] if failed[0] > 0 else _FAILED
            if None not in codes:
                return 0
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        # A terminal has interrupted them too; otherwise they are now.
        _end(started, signal.SIGINT)
        raise
    finally:
        _end(started, signal.SIGTERM)


def _end(processes: Sequence[subprocess.Popen], how: int) -> None:
    """Ends the processes that still run: they may wait for one that was lost."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(how)
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _joined(count: int, coordinator: str | None, number: int) -> Iterator[None]:
    """The block runs as one of the processes.

    Raises:
        ConnectionError: If the others cannot be reached, or one of them is lost.
        ValueError: If Keras was imported with another backend.
    """
    with importing_tensorflow(backend="jax"), requires_extra("jax", "--processes"):
        import jax
        import keras
    if keras.backend.backend() != "jax":
        raise ValueError(
            "--processes needs Keras on JAX, and this process has imported it on "
            f"another backend. Received: {keras.backend.backend()!r}"
        )
    console.quiet = number > 0
    failed = _FailedExit() if count > 1 else None
    try:
        if count > 1:
            with working("Waiting for the other processes"):
                # As `keras.distribution.initialize`, which cannot say how long the
                # others may wait at the end, while the first one saves the model.
                jax.distributed.initialize(
                    coordinator, count, number, shutdown_timeout_seconds=_SAVING_SECONDS
                )
                if failed is not None:
                    failed.listen()
        # `split_batches` divides the data: Keras' own division may leave a process
        # with fewer batches than the others, which then wait forever.
        keras.distribution.set_distribution(
            keras.distribution.DataParallel(auto_shard_dataset=False)
        )
        yield
    except BaseException as error:
        if failed is not None:
            failed.code = (
                INTERRUPTED if isinstance(error, KeyboardInterrupt) else _FAILED
            )
        reason = str(error).strip().partition("\n")[0]
        if count > 1 and _LOST.search(reason):
            raise ConnectionError(
                f"Process {number} cannot go on: another one was lost or did not come "
                f"({reason}). Start all processes again, and they resume"
            ) from error
        raise
    finally:
        console.quiet = False
        keras.distribution.set_distribution(None)


class _FailedExit:
    """Ends a process that failed at once.

    JAX would have it wait until all have finished, and they wait for it.
    """

    code = 0

    def listen(self) -> None:
        """After JAX has registered its own function, so that this one runs first."""
        atexit.register(self._end)

    def _end(self) -> None:
        if self.code:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)
