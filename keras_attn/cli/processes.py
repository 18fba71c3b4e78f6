"""`--processes`: a training command in several processes of JAX, which end together.

Started without `--coordinator`, the command starts itself once for each process, and
ends when they end; they end with it. Started with it, it is one of the processes: it
joins the others before anything is computed, prints and writes only if it is the first,
and ends with an error when another one is lost or does not come.
"""

import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from keras_attn.cli.child_processes import (
    EndedError,
    end_children,
    end_with_parent,
    ended_by_signals,
    parent_id,
    start_child,
)
from keras_attn.cli.options import Panel
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import SAID, complain, console, working
from keras_attn.console import INTERRUPTED
from keras_attn.extras import requires_extra

_PANEL = Panel("Several devices and processes")
_POLL_SECONDS = 0.1
_STDERR = 2
# When the time is up before all processes started, JAX aborts without a message.
_ABORT_SECONDS = 3600
_SAVING_SECONDS = 3600
_FAILED = 2
# JAX raises errors of several types for what Gloo, NCCL and its own service report.
_LOST = re.compile(r"Gloo|NCCL|UNAVAILABLE|DEADLINE_EXCEEDED|CoordinationService")


@dataclass(frozen=True)
class ProcessOptions:
    """The options of a command that may train in several processes."""

    processes: Annotated[
        int | None,
        _PANEL.count(
            "Train with JAX in N processes, each of which computes its part of every "
            "batch. Without --coordinator it starts them on this machine, one for each "
            "GPU if there are GPUs; 1 trains on all devices of this machine in one "
            "process. For several machines, start the command on each with "
            "--coordinator and --process-id too. The losses are the same as with one "
            "process."
        ),
    ] = None
    coordinator: Annotated[
        str | None,
        _PANEL.option(
            "Address and free port of the machine of process 0, the same in each "
            "process, such as 10.0.0.1:1234.",
            metavar="HOST:PORT",
        ),
    ] = None
    process_id: Annotated[
        int | None,
        _PANEL.count(
            "With --coordinator: number of this process, 0 to N - 1. All need the same "
            "data and a --run-dir that all see; process 0 prints and writes.",
            min=0,
        ),
    ] = None
    timeout: Annotated[
        int,
        _PANEL.count("Seconds that each process waits for the other ones to start."),
    ] = 300


def train_in_processes(
    train: Callable[[], None],
    options: ProcessOptions,
    *,
    line: Sequence[str],
    batch_size: int,
) -> None:
    """Trains in this process or in several, as the options say.

    Args:
        train: Trains in one process, this one.
        options: What the command line says of processes.
        line: The whole command line, without the program's name, with which further
            processes are started.
        batch_size: Rows of a batch, which the devices of all processes share.

    Raises:
        ConnectionError: If the other processes cannot be reached, or one is lost.
        ValueError: If the options do not fit together.
    """
    end_with_parent()
    count, coordinator = options.processes, options.coordinator
    _check(count, coordinator, options.process_id)
    if count is None:
        train()
    elif count > 1 and coordinator is None:
        code = _start_all(count, line)
        if code:
            raise typer.Exit(code)
    else:
        with _joined(count, coordinator, options.process_id or 0, options.timeout):
            _check_batch_size(batch_size)
            train()


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
    if not (host and colon and port.isdecimal() and 0 < int(port) < 2**16):
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
        The exit code of the first process that failed; 0 if none did; 128 and the
        number of the signal that ended this command.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = range(count) if visible is None else visible.split(",")
    started: list[subprocess.Popen] = []
    with ended_by_signals(), tempfile.TemporaryDirectory() as said:
        # What this process imports, they import; what one has said, no other says.
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            SAID: said,
        }
        try:
            for number in range(count):
                # One GPU each. The variable means nothing where there is none.
                gpu = str(gpus[number]) if number < len(gpus) else ""
                program = [sys.executable, "-m", "keras_attn.cli", *arguments]
                program += ["--coordinator", coordinator, "--process-id", str(number)]
                variables = {**environment, "CUDA_VISIBLE_DEVICES": gpu}
                # The first one prints; libraries would in each.
                started.append(start_child(program, variables, quiet=number > 0))
            return _wait(started)
        except KeyboardInterrupt:
            # A terminal has interrupted them too; otherwise they are now.
            end_children(started, signal.SIGINT)
            raise
        except EndedError as error:
            complain(f"ended by {error}; run the same command to go on")
            return error.code
        finally:
            # Those that still run may wait for one that was lost.
            end_children(started, signal.SIGTERM)


def _wait(started: Sequence[subprocess.Popen]) -> int:
    """Waits until all processes have ended or one has failed; returns its exit code."""
    while True:
        codes = [process.poll() for process in started]
        for number, code in enumerate(codes):
            if code is not None and code < 0:
                # It could not say so itself.
                complain(
                    f"process {number} was ended by {signal.Signals(-code).name}; run "
                    "the same command to go on"
                )
                return _FAILED
        for code in codes:
            if code:
                return code
        if None not in codes:
            return 0
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def _joined(
    count: int, coordinator: str | None, number: int, timeout: int
) -> Iterator[None]:
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
            if number == 0:
                _check_port(coordinator)
            # It would have SIGTERM wait for a step that all have agreed on.
            jax.config.update("jax_enable_preemption_service", False)
            with (
                _waiting(count, coordinator, number, timeout),
                working("Waiting for the other processes"),
            ):
                # As `keras.distribution.initialize`, which cannot say how long the
                # others may wait at the end, while the first one saves the model.
                jax.distributed.initialize(
                    coordinator,
                    count,
                    number,
                    initialization_timeout=timeout + _ABORT_SECONDS,
                    shutdown_timeout_seconds=_SAVING_SECONDS,
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
            is_interrupted = isinstance(error, KeyboardInterrupt)
            failed.code = INTERRUPTED if is_interrupted else _FAILED
        reason = str(error).strip().partition("\n")[0]
        if count > 1 and _LOST.search(reason) and parent_id() is not None:
            # The same in each process, so it is said once.
            raise ConnectionError(
                "a process cannot go on: another one was lost. Run the same command to "
                "go on"
            ) from error
        if count > 1 and _LOST.search(reason):
            raise ConnectionError(
                f"Process {number} cannot go on: another one was lost or did not start "
                f"({reason}). Start all processes again, and they resume"
            ) from error
        raise
    finally:
        console.quiet = False
        keras.distribution.set_distribution(None)


def _check_port(coordinator: str | None) -> None:
    """Raises a ConnectionError if process 0 cannot listen at its port.

    JAX would say so too, but now and then its server ends the process by SIGSEGV
    instead (jaxlib 0.10).
    """
    port = int(str(coordinator).rpartition(":")[2])
    # As JAX: at all addresses of the machine.
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise ConnectionError(
            "--coordinator must be a port of this machine that is free: "
            f"{(error.strerror or str(error)).lower()}. "
            f"Received: --coordinator {coordinator}, --process-id 0"
        ) from error


@contextlib.contextmanager
def _waiting(
    count: int, coordinator: str | None, number: int, timeout: int
) -> Iterator[None]:
    """Ends this process with an error unless the block, a call of JAX, ends in time."""
    # The block may hide what is written there.
    stderr = os.dup(_STDERR)

    def give_up():
        os.dup2(stderr, _STDERR)
        console.quiet = False
        console.show_cursor()
        last = f" to {count - 1}" if count > 2 else ""
        others = f"1{last}" if number == 0 else f"0{last}"
        complain(
            f"the other processes have not started within {timeout} s. Start the same "
            f"command with --process-id {others} too, see that {coordinator} can be "
            "reached from their machines, or wait longer with --timeout. Received: "
            f"--processes {count}, --process-id {number}, --timeout {timeout}"
        )
        sys.stderr.flush()
        os._exit(_FAILED)

    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        os.close(stderr)


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
