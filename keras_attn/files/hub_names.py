"""Names of folders on the Hugging Face Hub: `hf://owner/name[@revision]`."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PREFIX = "hf://"
# Two parts, as `Path` leaves them, too: it joins the slashes.
_NAME = re.compile(r"hf:/{1,2}([^/@]+/[^/@]+)(?:@(.+))?")
_HOW = "a name such as hf://google-bert/bert-base-uncased or hf://owner/name@revision"
# A folder in the client's cache: models--owner--name/snapshots/commit.
_SNAPSHOT = r"models--([\w.-]+?)--([\w.-]+)[/\\]snapshots[/\\]([0-9a-f]{40})"


def is_hub_name(folder: str | os.PathLike) -> bool:
    """Whether a folder is given by its name on the hub."""
    return os.fspath(folder).startswith("hf:")


def parse_hub_name(
    folder: str | os.PathLike, argument: str = "folder"
) -> tuple[str, str | None]:
    """The repository of a name, and the revision: a branch, a tag or a commit.

    Args:
        folder: `hf://owner/name[@revision]`.
        argument: What the caller calls it, for the message.

    Raises:
        ValueError: If it is not of this form.
    """
    found = _NAME.fullmatch(os.fspath(folder))
    if found is None:
        or_folder = "a folder or " if argument == "folder" else ""
        raise ValueError(
            f"`{argument}` must be {or_folder}{_HOW}. "
            f"Received: {argument}={str(folder)!r}"
        )
    return found[1], found[2]


def check_is_local(path: str | os.PathLike, argument: str = "path") -> None:
    """Raises for the name of a folder on the hub where something is to be written.

    As a path, it would make a folder `hf:`.

    Args:
        path: Of a file or a folder.
        argument: What the caller calls it, for the message.

    Raises:
        ValueError: If it is a name.
    """
    if is_hub_name(path):
        raise ValueError(
            f"`{argument}` must be on this machine; "
            "`models.push_checkpoint(model, name)` writes to the hub. "
            f"Received: {argument}={with_hub_names(os.fspath(path))!r}"
        )


def get_hub_name(folder: str | os.PathLike) -> str | None:
    """The name, with the commit, of a folder in the client's cache; None for others.

    Args:
        folder: Any folder, such as `local_folder` returns.
    """
    found = re.search(_SNAPSHOT + "$", str(Path(folder)))
    return None if found is None else f"{PREFIX}{found[1]}/{found[2]}@{found[3]}"


def with_hub_names(text: str) -> str:
    """A text for people, in which folders of the client's cache have their names."""
    # As a `Path` writes a name.
    text = re.sub(r"\bhf:/(?=[^/])", PREFIX, text)
    constants = sys.modules.get("huggingface_hub.constants")
    if constants is None:
        return text  # Nothing was read by its name.
    cache = re.escape(f"{Path(constants.HF_HUB_CACHE).expanduser()}{os.sep}")
    return re.sub(cache + _SNAPSHOT, rf"{PREFIX}\1/\2@\3", text)


@contextlib.contextmanager
def naming_hub_folders() -> Iterator[None]:
    """Lets errors of the block, or of the function, name folders as they were given.

    Files of a folder on the hub lie in the client's cache, whose paths say little.
    """
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        if len(error.args) == 1:
            error.args = (with_hub_names(str(error)),)
        raise
