"""The names of the parts of a data set in files and folders."""

SPLITS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}


def get_split(word: str) -> str | None:
    """The split that a word stands for, such as "val" for `Valid` and `val2017`.

    Args:
        word: A name, or a part of one.
    """
    word = word.lower().rstrip("0123456789")
    return next((split for split, names in SPLITS.items() if word in names), None)
