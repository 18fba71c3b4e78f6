"""Names of folders on the Hugging Face Hub: `hf://owner/name[@revision]`."""

import os
import re
from pathlib import Path

PREFIX = "hf://"
# Two parts, as `Path` leaves them, too: it joins the slashes.
_NAME = re.compile(r"hf:/{1,2}([^/@]+/[^/@]+)(?:@(.+))?")
_HOW = "a name such as hf://google-bert/bert-base-uncased or hf://owner/name@revision"
# Snapshots in the client's cache: models--owner--name/snapshots/commit.
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})$")


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


def get_hub_name(folder: str | os.PathLike) -> str | None:
    """The name, with the commit, of a folder in the client's cache; None for others.

    Args:
        folder: Any folder, such as `local_folder` returns.
    """
    found = _SNAPSHOT.search(Path(folder).as_posix())
    return None if found is None else f"{PREFIX}{found[1]}/{found[2]}@{found[3]}"
