"""COCO's JSON: what is read, and what is refused or left out."""

from typing import Any

import numpy as np
import pytest
from backend import skip_module_without_tensorflow
from data.image_sets import annotation, coco_content, truncate, write_coco
from refusals import named_or_left_out, refuses

from keras_attn.data import detection_dataset, read_coco

skip_module_without_tensorflow("tf.data feeds TensorFlow")


def test_categories_with_gaps_boxes_and_crowds(tmp_path):
    data = read_coco(*write_coco(tmp_path))
    assert data.class_names == ["cat", "dog"] and data.category_ids == [7, 90]
    first, second = data.examples
    assert (first.image_id, second.image_id) == (11, 5)
    np.testing.assert_array_equal(first.boxes, [[2, 3, 12, 13], [0, 0, 43, 31]])
    assert first.classes.tolist() == [1, 0]
    assert first.is_crowd.tolist() == [False, True]
    np.testing.assert_array_equal(second.boxes, [[3, 0, 8, 29]])


def test_a_batch_with_masks(tmp_path):
    data = read_coco(*write_coco(tmp_path))
    options: dict[str, Any] = {"image_size": (31, 43), "batch_size": 2, "masks": True}
    (images, targets), *_ = detection_dataset(data, **options)
    # A crowd is no target.
    assert targets["classes"].numpy().tolist() == [[1], [0]]
    masks = targets["masks"].numpy()
    assert masks.shape == (2, 1, 31, 43) and masks.dtype == bool
    expected = np.zeros((31, 43), bool)
    expected[3:13, 2:12] = True
    np.testing.assert_array_equal(masks[0, 0], expected)
    # 29 x 23 is scaled to 31 x 25.
    assert not (masks[1, 0, :, :3].any() or masks[1, 0, :, 9:].any())
    assert masks[1, 0, :, 4:8].all()

    (_, targets), *_ = detection_dataset(data, **options, crowds=True)
    assert targets["is_crowd"].numpy().tolist() == [[False, True], [False, False]]
    assert targets["classes"].numpy().tolist() == [[1, 0], [0, -1]]
    assert targets["masks"].numpy()[0, 1].all()


def test_masks_are_needed_if_asked_for(tmp_path):
    data = read_coco(*write_coco(tmp_path), masks=False)
    with pytest.raises(ValueError, match="`data` must have masks if `masks` is True"):
        detection_dataset(data, image_size=17, batch_size=1, masks=True)


def changed(**changes):
    """An annotation of the first image, with changes."""
    square = [[2, 3, 12, 3, 12, 13, 2, 13]]
    return {**annotation(4, 11, 90, [2, 3, 10, 10], square), **changes}


def runs(counts, size=(31, 43)):
    return {"size": list(size), "counts": counts}


BAD = {
    "category": (changed(category_id=8), "`category_id` from `categories`.*=8"),
    "category text": (changed(category_id="7"), "category_id='7'"),
    "category bool": (changed(category_id=True), "category_id=True"),
    "image": (changed(image_id=12), "must name an image.*image_id=12"),
    "image list": (changed(image_id=[11]), r"must name an image.*\[11\]"),
    "no box": (changed(bbox=None), "`bbox` of left, top"),
    "short box": (changed(bbox=[1, 2, 3]), r"bbox=\[1, 2, 3\]"),
    "text box": (changed(bbox=[1, 2, 3, "4"]), "bbox="),
    "nan": (changed(bbox=[1, float("nan"), 3, 4]), "must be finite"),
    "negative": (changed(bbox=[5, 5, -3, 4]), "left < right"),
    "outside": (changed(bbox=[50, 5, 3, 4]), "31 x 43 pixels"),
    "huge": (changed(bbox=[10**400, 5, 3, 4]), "too large"),
    "no mask": (changed(segmentation=None), "`masks=False` to read boxes only"),
    "flag": (changed(iscrowd="yes"), "`iscrowd` of 0 or 1"),
    "number": (changed(iscrowd=2), "`iscrowd` of 0 or 1.*iscrowd=2"),
    "line": (changed(segmentation=[[1, 2, 3, 4]]), "three pairs of x and y"),
    "odd": (changed(segmentation=[[1, 2, 3, 4, 5, 6, 7]]), "three pairs"),
    "flat": (changed(segmentation=[1, 2, 3, 4, 5, 6]), "three pairs"),
    "words": (changed(segmentation=[[1, 2, 3, 4, 5, "a"]]), "consist of numbers"),
    "far": (changed(segmentation=[[1, 2, 3, 4, 5, 1e9]]), "must lie in or near"),
    "nan polygon": (
        changed(segmentation=[[1, 2, 3, 4, 5, float("nan")]]),
        "must lie in or near its image",
    ),
    "other size": (changed(segmentation=runs([1], (1, 1))), "`size` of run lengths"),
    "short runs": (changed(segmentation=runs([7, 11])), "fill the image, 1333 pixels"),
    "long runs": (changed(segmentation=runs([0, 10**9])), "fill the image"),
    "negative runs": (changed(segmentation=runs([1340, -7])), "fill the image"),
    "float runs": (changed(segmentation=runs([1333.0])), "fill the image"),
    "no counts": (changed(segmentation=runs(None)), "counts=None"),
    "short string": (changed(segmentation=runs("0")), "fill the image"),
    "wild string": (changed(segmentation=runs("zzzzzzzzzz")), "string of run"),
    "wrong string": (changed(segmentation=runs("é!")), "string of run lengths"),
    "cut string": (changed(segmentation=runs("0P")), "whose last number is truncated"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_annotations(tmp_path, kind):
    entry, message = BAD[kind]
    content = coco_content()
    content["annotations"].insert(1, entry)
    message = rf"instances\.json, annotation 1.*{message}"
    data = named_or_left_out(message, read_coco, *write_coco(tmp_path, content))
    assert list(data.skipped) == ["instances.json, annotation 1"]
    assert [len(each.boxes) for each in data.examples] == [2, 1]


@pytest.mark.parametrize(
    "flag, is_crowd",
    [("1", True), ("0", False), (True, True), (0, False), (1.0, True), (None, False)],
)
def test_crowds_are_those_of_the_flag(tmp_path, flag, is_crowd):
    content = coco_content()
    content["annotations"][0]["iscrowd"] = flag
    data = read_coco(*write_coco(tmp_path, content))
    assert data.examples[0].is_crowd.tolist() == [is_crowd, True]


@pytest.mark.parametrize("nothing", [[], [[]]])
def test_objects_without_a_mask_are_counted(tmp_path, nothing):
    content = coco_content()
    content["annotations"][0]["segmentation"] = nothing
    files = write_coco(tmp_path, content)
    with pytest.warns(UserWarning, match="left out 1 .*annotation 0 has a box and no"):
        data = read_coco(*files)
    assert [len(each.boxes) for each in data.examples] == [1, 1]
    assert list(data.skipped) == ["instances.json, annotation 0"]
    data = read_coco(*files, masks=False)
    assert [len(each.boxes) for each in data.examples] == [2, 1]


def test_categories_of_one_name(tmp_path):
    """Two that differ in case; but one without objects, as Roboflow writes, may."""
    content = coco_content()
    content["categories"].append({"id": 3, "name": "Dog "})
    data = read_coco(*write_coco(tmp_path, content))
    assert data.class_names == ["Dog ", "cat", "dog"]
    content["annotations"][1]["category_id"] = 3
    with pytest.raises(ValueError, match="`categories` of instances.json must not"):
        read_coco(*write_coco(tmp_path, content))


def test_missing_images_are_counted(tmp_path):
    path, folder = write_coco(tmp_path)
    (folder / "eins 1.png").unlink()
    message = "image 0: .*lacks 1 of 2 images"
    assert len(named_or_left_out(message, read_coco, path, folder)) == 1
    (folder / "zwei.png").unlink()
    refuses("must name images that are in", read_coco, path, folder, on_error="skip")


BAD_IMAGES = {
    "no id": ({"id": None}, "an integer `id`"),
    "no name": ({"file_name": 3}, "a `file_name`"),
    "no size": ({"height": 0}, "height and width in pixels"),
    "float size": ({"width": 43.5}, "height and width in pixels"),
    "missing": ({"file_name": "vier.png"}, r"image 2: .* has no file 'vier\.png'"),
    "long": ({"file_name": "x" * 5000}, r"image 2: .* has no file 'xxx"),
    "elsewhere": ({"file_name": "../x.png"}, "a path inside the folder"),
    "twice": ({"id": 5}, "a unique `id`. Received: id=5"),
    "again": ({}, "image 2 must have another `file_name` than image 0"),
}


@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_bad_images(tmp_path, kind):
    change, message = BAD_IMAGES[kind]
    content = coco_content()
    image = {"id": 3, "file_name": "eins 1.png", "height": 31, "width": 43}
    content["images"].append({**image, **change})
    # Left out with its image, without a reason of its own.
    content["annotations"].append(changed(image_id=3 if "id" not in change else 5))
    files = write_coco(tmp_path, content)
    if "id" in change:
        refuses(message, read_coco, *files)
        return
    data = named_or_left_out(message, read_coco, *files)
    assert len(data) == 2 and list(data.skipped) == ["instances.json, image 2"]


def test_files_that_are_no_coco(tmp_path):
    path, folder = write_coco(tmp_path)
    whole = path.read_text()
    contents = {
        "[]": "must hold a JSON object",
        whole[:-30]: "is the file complete",
        "{}": "must have `categories`, a list",
        '{"categories": [], "images": []}': "must have `categories`.*none",
        '{"categories": [{"id": "1", "name": "a"}]}': "each with a unique integer `id`",
        '{"categories": [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]}': "unique",
        '{"categories": [{"id": 1, "name": "a"}], "images": [3]}': "`images`, a list",
        '{"categories": [{"id": 1, "name": "a"}], "images": [], "annotations": []}': (
            "must name images that are in `image_folder`"
        ),
    }
    for content, message in contents.items():
        path.write_text(content)
        refuses(message, read_coco, path, folder)
    with pytest.raises(ValueError, match="`image_folder` must be an existing folder"):
        read_coco(path, folder / "nowhere")


def test_a_truncated_image_is_left_out_of_each_epoch(tmp_path):
    path, folder = write_coco(tmp_path)
    truncate(folder / "eins 1.png")
    data = read_coco(path, folder, on_error="skip")
    options: Any = {"image_size": 17, "batch_size": 2, "masks": True, "crowds": True}
    dataset = detection_dataset(data, **options)
    with pytest.warns(UserWarning, match=r"eins 1\.png must be a complete"):
        (_, targets), *_ = dataset
    assert targets["classes"].numpy().tolist() == [[0, -1]] * 2
