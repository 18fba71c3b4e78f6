"""A run folder: its settings, and the state of its run.

Besides what `fit_translator` writes, it has `settings.json`, the settings that the run
was started with, which is written first. A backup exists from the first complete epoch
to the last; `translator.json` exists from the first complete epoch on. Imports are in
the functions that need them, so that `keras-attn --help` starts quickly.
"""

import shutil
from pathlib import Path
from typing import Any

from keras_attn.cli.run_owner import own

_SETTINGS = "settings.json"
_WRITTEN = ("backup", "history.csv", "logs", "model.keras", _SETTINGS)
_WRITTEN += ("source_tokenizer.json", "target_tokenizer.json", "translator.json")


def read_settings(folder: Path) -> dict[str, Any] | None:
    """The settings that the run in a folder was started with; None without a run.

    Raises:
        ValueError: If they are damaged.
    """
    from keras_attn.files.reading import read_json

    path = folder / _SETTINGS
    return read_json(path) if path.exists() else None


def check_is_free(folder: Path, *more: str) -> None:
    """Raises if a folder in which no run was started has what a run writes.

    Args:
        folder: The folder.
        *more: Names of files and folders that the command writes besides.

    Raises:
        ValueError: If it has one of them, which would be replaced, or gone on with.
    """
    found = [name for name in sorted({*_WRITTEN, *more}) if (folder / name).exists()]
    if found:
        raise ValueError(
            "--run-dir must be a new folder or the folder of this run; it has files "
            f"that would be replaced. Received: {str(folder)!r} with "
            f"{', '.join(found)}"
        )


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Writes the settings of a new run, or checks them against the run in the folder.

    This process then owns the folder. Of several processes, the first one writes.

    Raises:
        ValueError: If it holds a run with other settings, or files that a run would
            replace; another process owns it; or the processes have other settings or
            folders than each other.
    """
    import json

    from keras_attn.distribution.processes import check_same, is_writer
    from keras_attn.files.writing import remove_leftovers, write_atomically

    is_new = not holds_run(folder, settings)
    if is_new:
        check_is_free(folder)
    text = json.dumps(settings, indent=2) + "\n"
    check_same("command, options and data", text)
    if is_writer():
        own(folder)
        # A process killed right after it wrote the settings leaves its work folder.
        remove_leftovers(folder / _SETTINGS)
        if is_new:
            write_atomically(folder / _SETTINGS, text.encode())
    check_same("run", "settings are written")
    path = folder / _SETTINGS
    check_same(
        f"--run-dir, a folder that all see ({folder})",
        path.read_bytes() if path.exists() else b"",
    )


def extend(folder: Path, settings: dict[str, Any]) -> None:
    """Replaces the settings of a complete run, which then continues with these.

    Args:
        folder: The run folder.
        settings: The new settings.
    """
    import json

    from keras_attn.distribution.processes import check_same, is_writer
    from keras_attn.files.writing import write_atomically

    text = json.dumps(settings, indent=2) + "\n"
    check_same("command, options and data", text)
    if is_writer():
        write_atomically(folder / _SETTINGS, text.encode())
    check_same("run", "settings are replaced")


def holds_run(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether a run with these settings was started in the folder.

    Raises:
        ValueError: If it holds a run with other settings.
    """
    found = read_settings(folder)
    if found is not None and found != settings:
        names = [name for name in settings if found.get(name) != settings[name]]
        changes = "; ".join(
            f"{name} was {found.get(name)}, is {settings[name]}" for name in names
        )
        raise ValueError(
            f"--run-dir holds a run with different settings ({changes}); use the same "
            "settings, choose another folder, or remove this one. Received: "
            f"{str(folder)!r}"
        )
    return found is not None


def is_interrupted(folder: Path) -> bool:
    """Whether the run in the folder has completed some of its epochs, but not all."""
    # A hidden file is an incomplete first backup, which cannot be resumed from.
    files = (folder / "backup").glob("*")
    return any(not file.name.startswith(".") for file in files)


def is_trained(folder: Path) -> bool:
    """Whether the run in the folder has completed all of its epochs."""
    return (folder / "translator.json").is_file() and not is_interrupted(folder)


def clear(folder: Path, *more: str) -> None:
    """Removes what a run writes, and the files or folders named in `more`."""
    for name in (*_WRITTEN, *more):
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
