"""A run folder: whose it is, and how far the run in it has come.

Beside what `fit_translator` writes there is `settings.json`, what the run was started
with, written first. A backup is there while a run goes on, from its first whole epoch
to its last; `translator.json` from the first whole epoch for good.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from keras_attn.file_writing import write_atomically

_SETTINGS = "settings.json"
_WRITTEN = (
    "backup",
    "history.csv",
    "logs",
    "model.keras",
    "source_tokenizer.json",
    "target_tokenizer.json",
    "translator.json",
    _SETTINGS,
)


def read_settings(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder was started with; None where there is no run."""
    try:
        return json.loads((folder / _SETTINGS).read_bytes())
    except FileNotFoundError:
        if (folder / "translator.json").exists():
            raise ValueError(
                "--run-dir holds a translator that this command did not train; choose "
                f"another folder. Received: {str(folder)!r}"
            ) from None
        return None


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Makes a folder that of a run, or sees that it is.

    Raises:
        ValueError: if it holds a run of other settings.
    """
    found = read_settings(folder)
    if found is None:
        text = json.dumps(settings, indent=2) + "\n"
        write_atomically(folder / _SETTINGS, text.encode())
    elif found != settings:
        names = [name for name in settings if found.get(name) != settings[name]]
        changes = "; ".join(
            f"{name} was {found.get(name)}, is {settings[name]}" for name in names
        )
        raise ValueError(
            f"--run-dir holds a run with other settings ({changes}); give those again, "
            f"choose another folder, or remove this one. Received: {str(folder)!r}"
        )


def is_interrupted(folder: Path) -> bool:
    """Whether a run in the folder has finished some epochs, and has more to go."""
    # A hidden file is a part of the first backup: of that epoch nothing is kept.
    files = (folder / "backup").glob("*")
    return any(not file.name.startswith(".") for file in files)


def is_trained(folder: Path) -> bool:
    """Whether the run in the folder went through all of its epochs."""
    return (folder / "translator.json").is_file() and not is_interrupted(folder)


def clear(folder: Path, *more: str) -> None:
    """Removes what a run writes, and the files or folders named besides."""
    for name in (*_WRITTEN, *more):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
