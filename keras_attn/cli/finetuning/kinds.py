"""Chooses the task by the columns of a table or the content of a folder."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from keras_attn.checks.arguments import check_choice
from keras_attn.cli.finetuning.coco_images import find_image_folder
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.data.images.image_files import is_hidden, is_picture
from keras_attn.data.images.split_names import SPLITS, get_split
from keras_attn.data.images.voc import voc_folders
from keras_attn.data.images.yolo_layout import YAML_SUFFIXES, YoloLayout, find_yolo
from keras_attn.data.text.tables import (
    TABLE_SUFFIXES,
    column_names,
    get_delimiter,
    is_table,
)
from keras_attn.files.reading import shown

# What a model learns, and from which data.
TASKS = {
    "text_classification": "texts, or pairs of texts, and their classes",
    "text_regression": "texts, or pairs of texts, and a number each",
    "completion": "prompts and completions",
    "preference": "prompts, chosen and rejected completions, by DPO",
    "reward": "prompts, chosen and rejected completions: a model that scores them",
    "image_classification": "a folder of images per class",
    "segmentation": "images and masks",
    "detection": "images and boxes, COCO's, VOC's or YOLO's",
    "instance_segmentation": "images and a mask of each object, COCO's",
}
TEXT_COLUMNS = ("text", "sentence", "sentence1", "review", "premise", "question1")
TEXT_COLUMNS += ("question", "#1 String")
_PAIRS = ("text_pair", "text2", "sentence2", "hypothesis", "question2", "answer")
_PAIRS += ("#2 String",)
_LABELS = ("label", "labels", "class", "category", "target", "score", "sentiment")
_LABELS += ("gold_label", "is_duplicate", "Quality")
# QNLI's pairs, of which the second one has a name of single texts.
_QUESTION = ("question", "sentence")
_IMAGE_FOLDERS = ("images", "image", "imgs", "train")
_MASK_FOLDERS = ("masks", "mask", "labels", "label", "trainannot")
_SNIFFED = 65_536


@dataclass(frozen=True)
class Kind:
    """The task, and where its data are.

    Attributes:
        task: One of `TASKS`; until the model is known, "preference" also stands for
            "reward", and "detection" for "instance_segmentation".
        text: Column of the texts, or of the completions.
        second: Column of the second texts, or None.
        label: Column of the labels.
        prompt: Column of the prompts, or None.
        images: Folder of the images.
        masks: Folder of the masks.
        annotations: COCO's file.
        layout: "coco", "voc" or "yolo", of boxes.
        why: What in the data says so, for the user.
    """

    task: str
    why: str
    text: str = ""
    second: str | None = None
    label: str = ""
    prompt: str | None = None
    images: Path = Path()
    masks: Path = Path()
    annotations: Path | None = None
    layout: str = ""


def find_kind(settings: Settings, path: Path) -> Kind:
    """The kind of some data.

    Args:
        settings: The command line.
        path: DATA, or the data to validate on.

    Raises:
        FileNotFoundError: If `path` does not exist.
        ValueError: If it is nothing to learn from, or the task needs other data. The
            message says what was found.
    """
    if settings.task is not None:
        check_choice("--task", settings.task, TASKS)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist. Received: {str(path)!r}")
    kind = _of_folder(settings, path) if path.is_dir() else _of_file(settings, path)
    _check_folders(settings, kind, path)
    if settings.task is None:
        return kind
    if settings.task not in _FITTING[kind.task]:
        raise ValueError(
            f"--task {settings.task} needs {TASKS[settings.task]}. Received: "
            f"{str(path)!r}, which is {TASKS[kind.task]} ({kind.why})"
        )
    return Kind(**{**vars(kind), "task": settings.task})


def _check_folders(settings: Settings, kind: Kind, path: Path) -> None:
    """Raises if a folder or a file is given that such data do not have."""
    classes = settings.classes if kind.task == "segmentation" else None
    given: dict[str, tuple[Path | None, Path | None]] = {
        "--images": (settings.images, kind.images),
        "--masks": (settings.masks, kind.masks),
        "--classes": (settings.classes, classes),
    }
    if path == settings.validation:
        given["--validation-images"] = given.pop("--images")
    for option, (folder, used) in given.items():
        if folder is not None and folder != used:
            raise ValueError(
                f"{option} has no meaning for this data. Received: {option} {folder} "
                f"for {str(path)!r}, {TASKS[kind.task]} ({kind.why})"
            )


# What the data may be learned as.
_FITTING = {
    "text_classification": ("text_classification", "text_regression"),
    "completion": ("completion",),
    "preference": ("preference", "reward"),
    "image_classification": ("image_classification",),
    "segmentation": ("segmentation",),
    "detection": ("detection", "instance_segmentation"),
}


def find_other_kind(settings: Settings, kind: Kind, path: Path) -> Kind:
    """The kind of other data for the same task, such as `--validation`.

    Args:
        settings: The command line.
        kind: The kind of DATA.
        path: The other data.

    Raises:
        ValueError: If they are for another task.
    """
    there = replace(settings, images=settings.validation_images, masks=None)
    found = find_kind(there, path)
    if not any({found.task, kind.task} <= set(tasks) for tasks in _FITTING.values()):
        raise ValueError(
            f"--validation must be data as DATA, {TASKS[kind.task]}. Received: "
            f"{str(path)!r}, {TASKS[found.task]} ({found.why})"
        )
    if found.annotations is not None and there.images is None:
        # Perhaps all images are in the folder that the user named.
        images = find_image_folder(found.annotations, settings.images)
        found = replace(found, images=images)
    return found


def _of_file(settings: Settings, path: Path) -> Kind:
    if path.suffix.lower() in YAML_SUFFIXES:
        yolo = find_yolo(path)
        if yolo is not None:
            return _yolo(yolo)
    if not is_table(path):
        raise ValueError(
            f"DATA must be a table, {', '.join(TABLE_SUFFIXES)} or one of them with "
            f".gz, COCO's JSON, or a folder. Received: {str(path)!r}"
        )
    if path.suffix.lower() == ".json" and _is_coco(path):
        return _coco(settings, path)
    names = column_names(path, header=settings.header)
    delimiter = get_delimiter(path)
    fields = "" if delimiter in (None, ",", "\t") else f", separated by {delimiter},"
    has = f"{path.name}{fields} has the column"
    given = (settings.text_column, settings.label_column)
    if {"chosen", "rejected"} <= set(names) and given == (None, None):
        return Kind(
            "preference",
            f"{has}s chosen and rejected",
            prompt=_column(names, settings.prompt_column, ("prompt",), path, "prompt"),
        )
    if "completion" in names and given == (None, None):
        return Kind(
            "completion",
            f"{has} completion",
            text="completion",
            prompt=_needed(names, settings.prompt_column, ("prompt",), path, "prompt"),
        )
    usual, others = TEXT_COLUMNS, _PAIRS
    if set(_QUESTION) <= set(names) and settings.text_column is None:
        usual, others = _QUESTION[:1], _QUESTION[1:]
    text = _needed(names, settings.text_column, usual, path, "text")
    label = _needed(names, settings.label_column, _LABELS, path, "label")
    others = tuple(name for name in others if name not in (text, label))
    second = _column(names, settings.pair_column, others, path, "pair")
    if len({text, second, label}) < 3:
        raise ValueError(
            "--text-column, --pair-column and --label-column must be different "
            f"columns. Received: {text}, {second or 'no pair'} and {label}"
        )
    columns = f"{text}, {second}" if second else text
    return Kind(
        "text_classification",
        f"{has}s {columns} and {label}",
        text=text,
        second=second,
        label=label,
    )


def _column(
    names: Sequence[str],
    given: str | None,
    usual: Sequence[str],
    path: Path,
    option: str,
) -> str | None:
    """The column of an option: the given one, or the first of the usual names.

    Usual names may begin with a capital, or be in capitals, as people write headers.
    """
    if given is None:
        found = {name.casefold(): name for name in reversed(names)}
        found |= {name: name for name in names}
        return next((found[name] for name in usual if name in found), None)
    if given not in names:
        raise ValueError(
            f"--{option}-column must be a column of {path.name}, one of "
            f"{shown(list(names))}. Received: --{option}-column {given!r}"
        )
    return given


def _needed(names, given, usual, path: Path, option: str) -> str:
    found = _column(names, given, usual, path, option)
    if found is None:
        if len(names) == 1 and ";" in names[0]:
            raise ValueError(
                "DATA with semicolons between its columns must have as many in every "
                f"line. Received: {path.name}, whose first line is {shown(names[0])}"
            )
        raise ValueError(
            f"DATA must have a column named {', '.join(usual)}; or say which it is "
            f"with --{option}-column, and --no-header if the first line is a row. "
            f"Received: {path.name} with {shown(list(names))}"
        )
    return found


def _of_folder(settings: Settings, path: Path) -> Kind:
    inside = {each.name for each in path.iterdir()}
    voc = voc_folders(path)
    if voc is not None:
        places = " and ".join(each.name for each in dict.fromkeys(voc))
        what = "XML files beside images" if path in voc else places
        return Kind("detection", f"it has {what}, as VOC", layout="voc")
    yolo = find_yolo(path)
    if yolo is not None:
        return _yolo(yolo)
    images = settings.images or _first(path, _IMAGE_FOLDERS)
    masks = settings.masks or _first(path, _MASK_FOLDERS)
    if settings.masks is not None and settings.images is None:
        images = images or path
    if images is not None and masks is not None:
        if settings.images is None and settings.masks is None:
            images, masks = _training_part(images, masks)
        why = f"images in {images.name}, masks in {masks.name}"
        return Kind("segmentation", why, images=images, masks=masks)
    files = [*path.glob("*.json"), *(path / "annotations").glob("*.json")]
    files = [each for each in files if _is_coco(each)]
    if len(files) == 1:
        return _coco(settings, files[0])
    if files:
        names = ", ".join(sorted(each.name for each in files))
        raise ValueError(
            "DATA must be one of COCO's files: pass its path, and another one as "
            f"--validation. Received: {str(path)!r} with {names}"
        )
    folders = [
        each for each in path.iterdir() if each.is_dir() and not is_hidden(each.name)
    ]
    if _are_splits(folders):
        raise ValueError(
            "DATA must be the training images: pass the folder inside, and the other "
            f"one as --validation. Received: {str(path)!r} with {sorted(inside)}"
        )
    if folders:
        return Kind("image_classification", f"{len(folders)} folders, a class each")
    tables = sorted(name for name in inside if is_table(name))
    if tables:
        raise ValueError(
            "DATA must be one table: pass its path, and another one as --validation. "
            f"Received: {str(path)!r} with {', '.join(tables[:10])}"
        )
    pictures = sum(map(is_picture, inside))
    raise ValueError(
        "DATA must be a folder with a subfolder of images per class; with images/ and "
        "masks/; with COCO's JSON; or with VOC's Annotations/ and JPEGImages/. "
        f"Received: {str(path)!r} with {pictures} images and no subfolder"
    )


def _training_part(images: Path, masks: Path) -> tuple[Path, Path]:
    """`train` inside of both folders, if they have it."""
    for name in SPLITS["train"]:
        if (images / name).is_dir() and (masks / name).is_dir():
            return images / name, masks / name
    return images, masks


def _are_splits(folders: Sequence[Path]) -> bool:
    """Whether folders are parts of a data set, not classes.

    `train` with pictures in it may be a class of vehicles.
    """
    splits = [each for each in folders if get_split(each.name) is not None]
    if splits and len(splits) == len(folders):
        return True
    return any(
        any(x.is_dir() for x in each.iterdir())
        and not any(is_picture(x.name) for x in each.iterdir())
        for each in splits
    )


def _first(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_dir()), None)


def _coco(settings: Settings, path: Path) -> Kind:
    images = settings.images or find_image_folder(path)
    why = f"{path.name} is COCO's"
    return Kind("detection", why, images=images, annotations=path, layout="coco")


def _yolo(layout: YoloLayout) -> Kind:
    where = "" if layout.path.is_file() else ", with images/ and labels/*.txt"
    return Kind("detection", f"{layout.path.name} is YOLO's{where}", layout="yolo")


def _is_coco(path: Path) -> bool:
    """Whether a JSON file is one object with annotations, not a table of lines."""
    with path.open("rb") as file:
        start = file.read(_SNIFFED)
    if start.lstrip().startswith(b"["):  # A table's list of objects.
        return False
    first, newline, _ = start.partition(b"\n")
    try:
        # A line that is complete is a row, unless it is the whole file.
        found = json.loads(first) if newline or len(start) < _SNIFFED else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {"images", "annotations"} <= set(found)
    return any(key in start for key in (b'"images"', b'"annotations"', b'"info"'))
