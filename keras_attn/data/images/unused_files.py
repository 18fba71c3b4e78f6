"""Files of a folder that a data set does not use, counted: none vanishes unsaid."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keras_attn.data.images.image_files import IMAGE_SUFFIXES

_MOST_KINDS = 4


def unused_files(folder: Path, used: Iterable[Path]) -> list[str]:
    """What is in a folder and its subfolders and not used, for the user.

    Args:
        folder: The folder. Links to other folders are counted, and not followed.
        used: The files that are used, with their paths in `folder`.

    Returns:
        One line, or none if everything is used.
    """
    known = {os.fspath(path) for path in used}
    images, hidden, links = 0, 0, 0
    others: Counter[str] = Counter()
    for place, folders, files in os.walk(folder):
        links += sum(os.path.islink(os.path.join(place, name)) for name in folders)
        is_hidden = any(
            part.startswith(".") for part in Path(place).relative_to(folder).parts
        )
        for name in files:
            if os.path.join(place, name) in known:
                continue
            suffix = os.path.splitext(name)[1].lower()
            if is_hidden or name.startswith("."):
                hidden += 1
            elif suffix in IMAGE_SUFFIXES:
                images += 1
            else:
                others[suffix or name] += 1
    parts = []
    if images:
        parts.append(_counted(images, "image"))
    if others:
        kinds = [f"{name} {count:,}" for name, count in others.most_common(_MOST_KINDS)]
        more = ", …" if len(others) > _MOST_KINDS else ""
        what = "file of another kind" if others.total() == 1 else "files of other kinds"
        parts.append(f"{others.total():,} {what} ({', '.join(kinds)}{more})")
    if hidden:
        parts.append(_counted(hidden, "hidden file"))
    if links:
        parts.append(_counted(links, "link") + " to folders")
    return [f"not used in {folder}: {', '.join(parts)}"] if parts else []


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)
