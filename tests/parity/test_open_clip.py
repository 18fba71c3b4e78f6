"""CLIP against open_clip, from tiny checkpoints: read, run and written.

`open_clip_references.py` writes the folders.
"""

import json
import shutil

import numpy as np
import pytest
from model_cases import build
from parity import folders
from parity.folders import CHECKPOINTS, TOLERANCE
from parity.test_clip_checkpoints import agrees
from safetensors.numpy import save_file

from keras_attn.models import (
    image_preprocessing,
    load_checkpoint,
    save_checkpoint,
)

CASES = folders.cases_of("openclip")
RESNET, VIT = "openclip_resnet", "openclip_vit"
CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def config_of(folder):
    """The fields of the configuration."""
    return json.loads((folder / CONFIG).read_text())


def altered(folder, case, changes=None, tensors=None):
    """Writes a committed checkpoint with other fields or tensors.

    Args:
        folder: The folder to write.
        case: Name of the committed case.
        changes: From `("vision_cfg", "width")`, … to the value of that field; None
            removes it.
        tensors: A function from the dictionary of tensors to another.
    """
    shutil.copytree(CHECKPOINTS / case, folder, dirs_exist_ok=True)
    config = config_of(folder)
    for path, value in (changes or {}).items():
        *parts, field = path
        fields = config
        for part in parts:
            fields = fields[part]
        fields[field] = value
        if value is None:
            del fields[field]
    (folder / CONFIG).write_text(json.dumps(config))
    if tensors is not None:
        arrays = tensors(folders.tensors_of(folder))
        save_file(
            {k: np.copy(v, order="C") for k, v in arrays.items()}, folder / WEIGHTS
        )
    return folder


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_open_clip(case):
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    model = load_checkpoint(CHECKPOINTS / case)
    agrees(model, inputs, expected)
    assert model.preprocessing is not None
    assert model.preprocessing["image_mean"] == [0.5, 0.4, 0.3]
    assert model.preprocessing["do_center_crop"] == (case == RESNET)
    sides = {"height": 14, "width": 21}
    size = {"shortest_edge": 64} if case == RESNET else sides
    assert model.preprocessing["size"] == size


@pytest.mark.parametrize("case", CASES)
def test_files_are_those_of_open_clip(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case)
    save_checkpoint(model, tmp_path, library="open_clip", max_shard_size=1)
    assert {file.name for file in tmp_path.iterdir()} == {CONFIG, WEIGHTS}
    folders.same_tensors(case, tmp_path, ignored=["num_batches_tracked"])
    ours, theirs = config_of(tmp_path), config_of(CHECKPOINTS / case)
    assert ours["preprocess_cfg"] == theirs["preprocess_cfg"]
    ours, theirs = ours["model_cfg"], theirs["model_cfg"]
    assert ours.get("quick_gelu") == theirs.get("quick_gelu", False)
    for part in ("vision_cfg", "text_cfg"):
        found, expected = ours.pop(part), theirs.pop(part)
        assert found == {**found, **expected}
    assert ours == {**ours, **theirs}
    folders.same_weights(load_checkpoint(tmp_path), model)


def test_a_resnet_is_written_in_this_naming_by_default(tmp_path):
    model = load_checkpoint(CHECKPOINTS / RESNET)
    # timm's configuration of the image tower, which public folders also have.
    (tmp_path / "config.json").write_text('{"architecture": "resnet50_clip"}')
    save_checkpoint(model, tmp_path)
    assert (tmp_path / "config.json").exists()
    folders.same_weights(load_checkpoint(tmp_path), model)


def test_of_two_checkpoints_in_a_folder_that_of_transformers_is_read(tmp_path):
    altered(tmp_path, VIT)
    shutil.copytree(CHECKPOINTS / "clip_largest_id", tmp_path, dirs_exist_ok=True)
    model = load_checkpoint(tmp_path)
    assert model.get_layer("text_pooling").end_token_id is None
    # Without weights of its own it is not read in place of the other.
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no \*.safetensors"):
        load_checkpoint(tmp_path)
    (tmp_path / "config.json").unlink()
    model = load_checkpoint(tmp_path)
    assert model.get_layer("text_pooling").end_token_id == 61
    (tmp_path / WEIGHTS).rename(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match=r"has no \*.safetensors"):
        load_checkpoint(tmp_path)


def test_a_vit_can_be_written_in_both_namings(tmp_path):
    model = load_checkpoint(CHECKPOINTS / "clip_largest_id")
    save_checkpoint(model, tmp_path / "one", library="open_clip")
    again = load_checkpoint(tmp_path / "one")
    folders.same_weights(again, model)
    save_checkpoint(again, tmp_path / "two")
    folders.same_tensors("clip_largest_id", tmp_path / "two")


def test_other_forms_of_the_files_are_read(tmp_path):
    """A separate text tower, a temperature with an axis, and OpenAI's numbers."""

    def changed(tensors):
        own = ("visual.", "logit_scale")
        tensors = {
            key if key.startswith(own) else f"text.{key}": array
            for key, array in tensors.items()
        }
        tensors["logit_scale"] = tensors["logit_scale"][None]
        numbers = ("input_resolution", "context_length", "vocab_size")
        return tensors | {name: np.array(7) for name in numbers}

    fields = {
        ("model_cfg", "custom_text"): True,
        ("model_cfg", "text_cfg", "hf_tokenizer_name"): "any",
        ("model_cfg", "vision_cfg", "patch_dropout"): 0.5,
        ("preprocess_cfg",): None,
    }
    model = load_checkpoint(altered(tmp_path, VIT, fields, changed))
    folders.same_weights(model, load_checkpoint(CHECKPOINTS / VIT))
    assert model.preprocessing is None


@pytest.mark.parametrize(
    "preprocessing", [{"resize_mode": "longest"}, {"mean": "imagenet"}]
)
def test_an_unknown_preprocessing_is_refused_where_it_is_used(preprocessing, tmp_path):
    changes = {("preprocess_cfg", name): x for name, x in preprocessing.items()}
    model = load_checkpoint(altered(tmp_path, VIT, changes))
    with pytest.raises(ValueError, match="|".join(["image_mean", *preprocessing])):
        image_preprocessing(model.preprocessing)


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["vision_cfg"], None, "`vision_cfg` in open_clip_config.json must be an obj"),
        (["vision_cfg", "timm_model_name"], "vit", "`timm_model_name` .* must be None"),
        (["vision_cfg", "pool_type"], "avg", "`pool_type` .* must be 'tok'"),
        (["vision_cfg", "swin"], 1, "`vision_cfg` .* may only have .*swin"),
        (["vision_cfg", "width"], 20, "class_embedding is"),
        (["vision_cfg", "width"], 10**9, "`width` in open_clip_config.json must be at"),
        (["vision_cfg", "layers"], 3, "`layers` in open_clip_config.json must be at m"),
        (["text_cfg", "no_causal_mask"], True, "`no_causal_mask` .* must be False"),
        (["text_cfg", "pool_type"], "last", "`pool_type` .* must be 'argmax' or 'eos'"),
        (["text_cfg", "hf_model_name"], "bert", "`hf_model_name` .* must be None"),
        (["text_cfg", "mlp_ratio"], "4", "`mlp_ratio` .* must be a number"),
        (["init_logit_bias"], -10, "`init_logit_bias` .* must be None"),
        (["quick_gelu"], "yes", "`quick_gelu` .* must be true or false"),
        (["embed_dim"], 16, "visual.proj is"),
    ],
)
def test_unsupported_configs_are_refused(path, value, message, tmp_path):
    folder = altered(tmp_path, VIT, {("model_cfg", *path): value})
    with pytest.raises(ValueError, match=message):
        load_checkpoint(folder)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"case": "clip_rn50"}, "must have four stages"),
        ({"num_channels": 1}, "`num_channels` must be 3"),
        ({"activation": "relu"}, "`activation` must be `quick_gelu` or 'gelu'"),
        ({"layer_norm_epsilon": 1e-6}, "`layer_norm_epsilon` must be 1e-05"),
    ],
)
def test_what_open_clip_lacks_is_not_written(options, message, tmp_path):
    model = build(**{"case": "clip_vit_base_patch32", **options})
    with pytest.raises(ValueError, match=message):
        save_checkpoint(model, tmp_path / "folder", library="open_clip")
    assert not (tmp_path / "folder").exists()


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
def test_open_clip_reads_our_files(tmp_path):
    needs = ("torch", "torchvision", "timm", "open_clip")
    script = folders.run_script("open_clip_references", needs)
    for case in CASES:
        inputs, expected = folders.arrays_of(CHECKPOINTS / case)
        model = load_checkpoint(CHECKPOINTS / case)
        save_checkpoint(model, tmp_path / case, library="open_clip")
        theirs = script.load(tmp_path / case)
        found = script.run(theirs, inputs["images"], inputs["token_ids"])
        for name, array in expected.items():
            found_array = found[f"output_{name}"]
            np.testing.assert_allclose(found_array, array, rtol=0, atol=TOLERANCE)
