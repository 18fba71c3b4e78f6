"""Small data sets on disk, and damage to their files."""

import json

import numpy as np
from PIL import Image

# Names that a shell or a careless parser would break.
FOLDER = "Bilder für 漢字"
NAMES = ["eins 1", "zwei", "drei"]
SIZES = {"eins 1": (31, 43), "zwei": (29, 23), "drei": (37, 41)}


def write_image(path, size, channels=3, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (*size, channels) if channels == 3 else size
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def write_mask(path, labels, palette=None):
    """Writes labels as a gray image, or with a palette of colors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(labels, np.uint8))
    if palette is not None:
        image = image.convert("P")
        image.putdata(np.asarray(labels).ravel().tolist())
        image.putpalette(np.asarray(palette, np.uint8).ravel().tolist())
    image.save(path)


def voc_object(name, box, difficult: int | str = 0):
    sides = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    inside = "".join(f"<{side}>{value}</{side}>" for side, value in sides)
    return (
        f"<object><name>{name}</name><difficult>{difficult}</difficult>"
        f"<bndbox>{inside}</bndbox></object>"
    )


def voc_xml(size, objects=""):
    height, width = size
    return (
        f"<annotation><size><width>{width}</width><height>{height}</height>"
        f"</size>{objects}</annotation>"
    )


OBJECTS = {
    "eins 1": voc_object("dog", (3, 5, 17, 19)) + voc_object("cat", (1, 1, 43, 31)),
    "zwei": "",
    "drei": voc_object("cat", (2, 3, 5, 7), difficult=1),
}


def write_voc(folder):
    root = folder / FOLDER
    for number, name in enumerate(NAMES):
        write_image(root / "JPEGImages" / f"{name}.png", SIZES[name], seed=number)
        write_xml(root, name, voc_xml(SIZES[name], OBJECTS[name]))
    splits = root / "ImageSets" / "Main"
    splits.mkdir(parents=True)
    # Names with blanks cannot stand in a split, which has columns.
    (splits / "train.txt").write_text("drei\nzwei\n\n", encoding="utf-8")
    return root


def write_xml(root, name, content):
    path = root / "Annotations" / f"{name}.xml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content, encoding="utf-8")


def coco_content():
    """Two images, two categories with gaps, polygons, both kinds of run lengths."""
    square = [[2, 3, 12, 3, 12, 13, 2, 13]]
    # Columns of 29: 29 · 3 unset, then 29 · 5 set, the rest unset.
    runs = {"size": [29, 23], "counts": [87, 145, 435]}
    crowd = {"size": [31, 43], "counts": [0, 31 * 43]}
    return {
        "info": {},
        "categories": [{"id": 90, "name": "dog"}, {"id": 7, "name": "cat"}],
        "images": [
            {"id": 11, "file_name": "eins 1.png", "height": 31, "width": 43},
            {"id": 5, "file_name": "zwei.png", "height": 29, "width": 23},
        ],
        "annotations": [
            annotation(1, 11, 90, [2, 3, 10, 10], square),
            annotation(2, 5, 7, [3, 0, 5, 29], runs),
            annotation(3, 11, 7, [0, 0, 43, 31], crowd, iscrowd=1),
        ],
    }


def annotation(number, image, category, box, segmentation, iscrowd=0):
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": box,
        "segmentation": segmentation,
        "area": box[2] * box[3],
        "iscrowd": iscrowd,
    }


def write_coco(folder, content=None):
    root = folder / FOLDER
    for number, name in enumerate(NAMES[:2]):
        write_image(root / f"{name}.png", SIZES[name], seed=number)
    path = root / "instances.json"
    path.write_text(json.dumps(coco_content() if content is None else content))
    return path, root


def truncate(path, share=0.6):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
