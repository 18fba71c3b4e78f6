"""Ctrl-C ends every command with exit code 130, whatever it interrupts."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

START = """
import signal, sys, time
from keras_attn.console import interruption, main
interruption.listen()

def interrupt():
    signal.raise_signal(signal.SIGINT)

class Last:
    def __del__(self):
        interrupt()
"""


def start(code, *arguments):
    """A process of the command, after some code of the test."""
    code = START + textwrap.dedent(code) + "\nsys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def start_list(body, before=""):
    """A process of `keras-attn list`, with a body in place of TensorFlow's import."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return start(
        f"{textwrap.dedent(before)}\nfrom keras_attn.cli import list_models\n"
        f"def importing_tensorflow():\n{body}\n"
        "list_models.importing_tensorflow = importing_tensorflow",
        "list",
    )


def assert_interrupted(process):
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "error: interrupted\n"), out
    assert "Traceback" not in out
    return out


@pytest.mark.parametrize(
    "command",
    [
        "interrupt()",
        # As an exporter or `tf.py_function` converts it.
        """
        try:
            interrupt()
        except KeyboardInterrupt:
            raise ValueError("conversion failed")
        """,
        "try: interrupt()\nexcept BaseException: pass",
        "try: interrupt()\nfinally: 1 / 0",
        # A second one at once does not interrupt the cleaning up.
        """
        try:
            interrupt()
        finally:
            interrupt()
            print("cleaned up")
        """,
    ],
    ids=["plain", "converted", "swallowed", "failing", "twice"],
)
def test_an_interruption_of_a_command(command):
    # `with None` after the swallowed one raises an error, which is not reported.
    out = assert_interrupted(start_list(command))
    assert ("cleaned up" in out) == ("cleaned up" in command)


def test_an_interruption_that_an_import_swallows():
    process = start(
        """
        from types import SimpleNamespace
        class Finder:
            def find_spec(self, name, *rest):
                if name == "keras_attn.models":
                    from importlib.machinery import ModuleSpec
                    return ModuleSpec(name, self)
            def create_module(self, spec):
                return None
            def exec_module(self, module):
                try:
                    interrupt()
                except KeyboardInterrupt:
                    pass
                module.list_models = lambda: print("went on") or []
        sys.meta_path.insert(0, Finder())
        devices = SimpleNamespace(list_logical_devices=lambda: [])
        sys.modules["tensorflow"] = SimpleNamespace(config=devices)
        """,
        "list",
    )
    assert "went on" not in assert_interrupted(process)


@pytest.mark.parametrize(
    "ignored",
    [
        # Twice: when a collection starts and when it ends.
        """
        import gc
        gc.callbacks.append(lambda phase, info: interrupt())
        gc.collect()
        gc.callbacks.clear()
        """,
        "Last()",
    ],
    ids=["garbage_collector", "finalizer"],
)
def test_an_interruption_that_python_ignores(ignored):
    # Longer than is waited for the process.
    body = f"{textwrap.dedent(ignored)}\ntime.sleep(200)\nprint('went on')"
    assert "went on" not in assert_interrupted(start_list(body))


def test_an_ignored_interruption_is_not_repeated_while_the_command_cleans_up():
    process = start_list(
        """
        Last()
        try:
            interruption.check()
        finally:
            time.sleep(1)
            print("cleaned up")
        """,
        "from keras_attn import console as module\nmodule._AGAIN_SECONDS = 0.3",
    )
    assert "cleaned up" in assert_interrupted(process)


def test_an_interruption_while_python_reports_an_ignored_one():
    process = start_list(
        """
        module.threading.Thread = Thread
        Last()
        time.sleep(200)
        print("went on")
        """,
        """
        from keras_attn import console as module
        class Thread(module.threading.Thread):
            def start(self):
                interrupt()
                super().start()
        """,
    )
    assert "went on" not in assert_interrupted(process)


def test_other_exceptions_that_python_ignores_are_reported():
    process = start(
        """
        class Last:
            def __del__(self):
                1 / 0
        Last()
        """,
        "--version",
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Exception ignored" in err and "ZeroDivisionError" in err


def test_a_second_interruption_ends_the_process():
    process = start_list(
        """
        try:
            interrupt()
        finally:
            time.sleep(1.1)
            interrupt()
            time.sleep(100)
        """
    )
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "error: interrupted\n")


def test_an_interruption_while_the_command_is_imported():
    process = start(
        """
        class Finder:
            def find_spec(self, name, *rest):
                if name == "typer":
                    try:
                        interrupt()
                    except KeyboardInterrupt:
                        raise ImportError("a part of it is missing") from None
        sys.meta_path.insert(0, Finder())
        """,
        "list",
    )
    assert assert_interrupted(process) == ""


@pytest.mark.parametrize("arguments, code", [(["--version"], 0), (["none"], 2)])
def test_an_interruption_after_the_end_changes_nothing(arguments, code):
    process = start("import atexit\natexit.register(interrupt)", *arguments)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "Traceback" not in err and "KeyboardInterrupt" not in err


def test_a_process_that_ignores_interruptions_continues_to():
    code = f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{START}"
    code += "interrupt(); sys.argv[1:] = ['--version']; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.runs
@pytest.mark.parametrize(
    "command, seconds, signals",
    [
        ("train", 0.0, 1),
        ("train", 2.5, 2),
        pytest.param("train", 14.0, 2, marks=pytest.mark.variation),
        ("demo", 1.0, 1),
        pytest.param("demo", 9.0, 2, marks=pytest.mark.variation),
        # While TensorFlow is imported, which takes longer.
        ("describe", 1.0, 1),
    ],
)
def test_a_command_is_interrupted_at_any_time(
    corpus, tmp_path, command, seconds, signals
):
    tiny = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --epochs 500".split()
    arguments = {
        "train": ["train", *corpus, *tiny, "--run-dir", tmp_path],
        "demo": ["demo", "--run-dir", tmp_path],
        "describe": ["describe", "gpt3_175b"],
    }[command]
    process = start("print('listening')", *arguments)
    assert process.stdout is not None and process.stdout.readline() == "listening\n"
    time.sleep(seconds)
    for number in range(signals):
        time.sleep(0.2 * number)
        process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in out + err and "Exception ignored" not in err
    assert err.startswith("error: interrupted")
