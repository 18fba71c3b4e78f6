"""What `keras-attn finetune` takes data for, and how it splits and names them."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from data.image_sets import truncate, write_coco, write_image, write_mask, write_voc
from PIL import Image
from refusals import refuses

from keras_attn.cli.finetuning.job import hold_out
from keras_attn.cli.finetuning.kinds import find_kind, find_other_kind
from keras_attn.cli.finetuning.mask_classes import mask_classes
from keras_attn.cli.finetuning.object_data import find_splits
from keras_attn.cli.finetuning.result import NAME, Result, read_result
from keras_attn.cli.finetuning.settings import Settings


def settings_for(path, **options):
    return Settings("model", path, **options)


def kind_of(path, **options):
    return find_kind(settings_for(path, **options), path)


CLASSES = "text_classification"
STS, QNLI = "sentence1,sentence2,score", "index,question,sentence,label"


@pytest.mark.parametrize(
    "header, task, columns",
    [
        ("label,text", CLASSES, ("text", None, "label", None)),
        # As people write headers in a table of Excel.
        ("Label,TEXT", CLASSES, ("TEXT", None, "Label", None)),
        ("premise,hypothesis,class", CLASSES, ("premise", "hypothesis", "class", None)),
        (STS, CLASSES, ("sentence1", "sentence2", "score", None)),
        (QNLI, CLASSES, ("question", "sentence", "label", None)),
        (
            "Quality,#1 ID,#2 ID,#1 String,#2 String",
            CLASSES,
            ("#1 String", "#2 String", "Quality", None),
        ),
        ("prompt,completion", "completion", ("completion", None, "", "prompt")),
        ("prompt,chosen,rejected", "preference", ("", None, "", "prompt")),
        ("rejected,chosen", "preference", ("", None, "", None)),
    ],
)
def test_columns_say_the_task(tmp_path, header, task, columns):
    path = tmp_path / "a.csv"
    path.write_text(header + "\n")
    kind = kind_of(path)
    assert (kind.text, kind.second, kind.label, kind.prompt) == columns
    assert kind.task == task and "a.csv" in kind.why


def test_a_list_of_objects_is_a_table(tmp_path):
    """Not COCO's, whatever its columns are called."""
    path = tmp_path / "a.json"
    rows = [{"text": "a", "label": "b", "info": "c"}]
    path.write_text(json.dumps(rows, indent=2))
    assert kind_of(path).task == "text_classification"


def test_options_name_other_columns(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a", "b": "c", "d": "e", "chosen": "f"}) + "\n")
    names = {"text_column": "b", "label_column": "d", "pair_column": "chosen"}
    kind = kind_of(path, **names, task="text_regression")
    assert (kind.text, kind.second, kind.label) == ("b", "chosen", "d")
    assert kind.task == "text_regression"
    with pytest.raises(ValueError, match="different columns.*b, no pair and b"):
        kind_of(path, text_column="b", label_column="b")
    with pytest.raises(ValueError, match="--pair-column must be a column of a.jsonl"):
        kind_of(path, label_column="d", pair_column="x")


def test_options_name_columns_without_names(tmp_path):
    """As in CoLA's files."""
    path = tmp_path / "train.tsv.gz"
    path.write_bytes(gzip.compress(b"gj04\t1\t\tShe left.\n"))
    names = {"text_column": "4", "label_column": "2"}
    kind = kind_of(path, **names, header=False)
    assert (kind.text, kind.second, kind.label) == ("4", None, "2")
    refuses("named text, .*--no-header if the first line", kind_of, path)
    # One of QNLI's two texts alone.
    path = tmp_path / "a.tsv"
    path.write_text("index\tquestion\tsentence\tlabel\n")
    assert kind_of(path, text_column="question").second is None


def test_folders_say_the_task(tmp_path):
    voc = write_voc(tmp_path / "voc")
    kind = kind_of(voc)
    assert kind.task == "detection" and kind.annotations is None
    assert find_splits(settings_for(voc), kind) == ("train", None)
    (voc / "ImageSets" / "Main" / "val.txt").write_text("eins 1\n")
    for given in (None, voc):
        settings = settings_for(voc, validation=given)
        assert find_splits(settings, kind) == ("train", "val")
    path, folder = write_coco(tmp_path / "coco")
    for data in (path, folder):
        kind = kind_of(data)
        assert (kind.task, kind.annotations, kind.images) == ("detection", path, folder)
    photos = tmp_path / "photos"
    write_image(photos / "cat" / "a.png", (5, 5))
    kind = kind_of(photos)
    assert kind.task == "image_classification"
    with pytest.raises(ValueError, match="--validation must be data as DATA, a folder"):
        find_other_kind(settings_for(photos), kind, path)
    (folder / "b.json").write_bytes(path.read_bytes())
    refuses("one of COCO's files.*b.json, instances.json", kind_of, folder)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        kind_of(tmp_path / "none")


def write_gray(path, numbers):
    """A mask as a file of colors."""
    pixels = np.repeat(np.array(numbers, "uint8")[..., None], 3, -1)
    Image.fromarray(pixels).save(path)


def test_masks_and_their_classes(tmp_path):
    write_image(tmp_path / "images" / "a.png", (2, 3))
    write_mask(tmp_path / "masks" / "a.png", [[0, 255, 0], [255, 255, 0]])
    kind = kind_of(tmp_path)
    assert kind.task == "segmentation" and kind.masks == tmp_path / "masks"
    settings = settings_for(tmp_path)
    assert mask_classes(settings, kind) == (
        ["background", "foreground"],
        {0: 0, 255: 1},
    )
    names = tmp_path / "classes.txt"
    names.write_text("sky\ncell\n")
    assert mask_classes(settings, kind) == (["sky", "cell"], {0: 0, 255: 1})
    names.unlink()
    write_mask(tmp_path / "masks" / "a.png", [[0, 3, 0], [255, 1, 0]])
    assert mask_classes(settings, kind) == (["0", "1", "2", "3"], None)
    # The same as colors: red, green and blue are equal.
    ignored = {(255,) * 3: 255}
    gray = {(number,) * 3: number for number in range(4)}
    write_gray(tmp_path / "masks" / "a.png", [[0, 3, 0], [255, 1, 0]])
    assert mask_classes(settings, kind) == (["0", "1", "2", "3"], gray | ignored)
    write_gray(tmp_path / "masks" / "a.png", [[0, 255, 0], [255, 255, 0]])
    binary = {(0,) * 3: 0, (255,) * 3: 1}
    assert mask_classes(settings, kind) == (["background", "foreground"], binary)
    names.write_text("sky\ncell\n")
    assert mask_classes(settings, kind) == (["sky", "cell"], binary)
    names.write_text("sky\ncell\nroad\n")
    gray.pop((3,) * 3)
    assert mask_classes(settings, kind) == (["sky", "cell", "road"], gray | ignored)
    names.unlink()
    write_mask(tmp_path / "masks" / "a.png", [[0, 90, 0], [200, 1, 0]])
    refuses(r"--classes.*\[0, 1, 90, 200\]", mask_classes, settings, kind)
    write_mask(tmp_path / "masks" / "a.png", [[7, 7, 7], [7, 7, 7]])
    refuses("two classes at least.*only \\[7\\]", mask_classes, settings, kind)
    for text, expected in (
        ("road\nblue sky\n", (["road", "blue sky"], None)),
        ("road 7\nblue sky 9\n", (["road", "blue sky"], {7: 0, 9: 1})),
        (
            "road 128 64 0\nsky 0 0 9\n",
            (["road", "sky"], {(128, 64, 0): 0, (0, 0, 9): 1}),
        ),
    ):
        names.write_text(text)
        assert mask_classes(settings, kind) == expected
    names.write_text("road 1 2\nsky\n")
    refuses("A line of --classes must be a name", mask_classes, settings, kind)


def test_a_damaged_mask_is_not_one_of_colors(tmp_path):
    write_image(tmp_path / "images" / "a.png", (20, 30))
    mask = tmp_path / "masks" / "a.png"
    write_image(mask, (20, 30))
    settings, kind = settings_for(tmp_path), kind_of(tmp_path)
    refuses("--classes.*must be given for masks of color", mask_classes, settings, kind)
    truncate(mask)
    refuses("^a.png must be a complete JPEG, PNG", mask_classes, settings, kind)


def test_each_class_is_held_out_in_proportion():
    classes = [0] * 20 + [1] * 10 + [2]
    kept, held = hold_out(31, 0.2, 3, classes)
    assert sorted(kept + held) == list(range(31)) and held == sorted(held)
    assert [sum(classes[i] == c for i in held) for c in range(3)] == [4, 2, 0]
    assert hold_out(31, 0.2, 3, classes) == (kept, held)
    assert hold_out(31, 0.2, 4, classes) != (kept, held)
    assert len(hold_out(5, 0.01, 0)[1]) == 1
    refuses("two examples of a class", hold_out, 2, 0.5, 0, [0, 1])


def test_settings_of_a_command_line():
    options = {"run_dir": Path("run"), "override": ["x=[1, 2]", "y=z"]}
    settings = settings_for(Path("a b.csv"), augment=False, **options)
    values = ["a=False", "b=false", "c=None", "d=(3, 5)", "e=0.5", "f=a b=c"]
    assert settings_for(Path(), override=values).overrides == {
        **{"a": False, "b": False, "c": None, "d": (3, 5), "e": 0.5, "f": "a b=c"}
    }
    assert settings.command == (
        "keras-attn finetune model 'a b.csv' --run-dir run --no-augment "
        "--override 'x=[1, 2]' --override y=z"
    )
    assert settings.overrides == {"x": [1, 2], "y": "z"} and settings.sides is None
    assert settings_for(Path(), image_size="48x64").sides == (48, 64)
    assert settings_for(Path(), image_size="48").sides == (48, 48)
    with pytest.raises(ValueError, match="--image-size must be"):
        _ = settings_for(Path(), image_size="48x").sides


def test_results_are_read_as_they_were_written(tmp_path):
    assert read_result(tmp_path) is None
    result = Result("detection", ["ä"], image_size=[3, 5], figures={"map": 0.5})
    result.save(tmp_path)
    assert read_result(tmp_path) == result
    for content in ('{"class_names": []}', '{"task": "a", "figures": []}'):
        (tmp_path / NAME).write_text(content)
        refuses("as `keras-attn finetune` wrote it", read_result, tmp_path)
