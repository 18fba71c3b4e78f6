"""Data to fine-tune on, what is read of them, and what a run writes."""

import contextlib
import csv
import json

import pytest
from data.image_sets import write_image

from keras_attn.cli.finetuning import training
from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import find_source

FAST = ["--batch-size", 18, "--max-length", 8]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def write_photos(folder, count=6, size=(17, 23)):
    """Photos of two classes in turn, of which the first has even numbers."""
    for number in range(count):
        shade = "dark" if number % 2 else "bright"
        write_image(folder / shade / f"{number}.png", size, seed=number)
    return folder


def history(folder):
    return list(csv.DictReader((folder / "history.csv").read_text().splitlines()))


def write_boxes(path, folder, names=None, start=0, change=None, **values):
    """COCO's file of images with a box each, which are in a folder.

    Args:
        path: The file.
        folder: The folder of the images.
        names: Their names; None for three.
        start: Seed of the first image.
        change: A function that changes the content of the file.
        **values: Of each annotation.
    """
    names = [f"{number}.png" for number in range(3)] if names is None else names
    content = {"categories": [{"id": 3, "name": "cell"}, {"id": 7, "name": "ring"}]}
    content |= {"images": [], "annotations": []}
    for number, name in enumerate(names):
        write_image(folder / name, (24, 32), seed=start + number)
        size = {"height": 24, "width": 32}
        content["images"].append({"id": number, "file_name": name, **size})
        box = {"id": number, "image_id": number, "category_id": 3, "iscrowd": 0}
        content["annotations"].append(box | {"bbox": [1, 2, 9, 8], **values})
    if change is not None:
        change(content)
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(json.dumps(content))
    return path


def job_of(kind, model, root, **options):
    """What `keras-attn finetune` reads, and says of it."""
    settings = Settings(model, root, **options)
    return kind(settings, find_kind(settings, root), find_source(model, {}))


@contextlib.contextmanager
def interrupted_after(epoch):
    """Ctrl-C after an epoch, counted from 0, whose row of the history is written."""
    write = training.HistoryFile.on_epoch_end

    def interrupt(self, number, logs=None):
        write(self, number, logs)
        if number == epoch:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.HistoryFile, "on_epoch_end", interrupt)
        yield
