"""Files of a folder that a data set does not use, counted: none vanishes unsaid."""

import os
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from keras_attn.data.images.image_files import IMAGE_SUFFIXES, ZippedFile, is_hidden

_MOST_KINDS = 4


def unused_files(source: Path, used: Iterable[Path | ZippedFile]) -> list[str]:
    """Lists the files of a folder or a ZIP archive that are not used.

    Args:
        source: The folder, with its subfolders, or the archive. Links to other folders
            are counted, and not followed.
        used: The files that are used, with their paths in `source`.

    Returns:
        One line, or none if everything is used.
    """
    known = {x.member if isinstance(x, ZippedFile) else os.fspath(x) for x in used}
    names, links = _zipped_names(source), 0
    if source.is_dir():
        names, links = _names_in(source)
    images, hidden = 0, 0
    others: Counter[str] = Counter()
    for full, name in names:
        suffix = os.path.splitext(name)[1].lower()
        if full in known:
            continue
        if is_hidden(name):
            hidden += 1
        elif suffix in IMAGE_SUFFIXES:
            images += 1
        else:
            others[suffix or name.rsplit("/", 1)[-1]] += 1
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
    return [f"not used in {source}: {', '.join(parts)}"] if parts else []


def _names_in(folder: Path) -> tuple[list[tuple[str, str]], int]:
    """Each file, and its name in the folder; and the number of links to folders."""
    names, links = [], 0
    for place, folders, files in os.walk(folder):
        links += sum(os.path.islink(os.path.join(place, name)) for name in folders)
        for file in files:
            full = os.path.join(place, file)
            names.append((full, Path(full).relative_to(folder).as_posix()))
    return names, links


def _zipped_names(archive: Path) -> list[tuple[str, str]]:
    if not archive.is_file():
        return []
    with zipfile.ZipFile(archive) as content:
        return [(name, name) for name in content.namelist() if name[-1:] != "/"]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" + "s" * (count != 1)
