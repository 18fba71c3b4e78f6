"""Kinds of folders that the libraries' own save functions write, besides the plain one.

The committed checkpoints with the keys, fields and names of such folders; their outputs
are those of the library.
"""

import json

import numpy as np
import pytest
from parity import folders
from parity.folders import CHECKPOINTS, altered

from keras_attn import models
from keras_attn.models import load_checkpoint, load_lora, save_checkpoint
from keras_attn.models.checkpoints.families import FAMILIES
from keras_attn.models.checkpoints.folder import Folder

ADAPTER = CHECKPOINTS.parent / "adapters" / "bert_classifier"


def check(model, case):
    """Asserts that the outputs are those of a committed checkpoint."""
    inputs, expected = folders.arrays_of(CHECKPOINTS / case)
    found = folders.outputs_of(model, inputs)
    for name in set(found) & set(expected):
        ours, array = found[name], expected[name]
        if "padding_mask" in inputs and ours.shape[:2] == inputs["padding_mask"].shape:
            ours, array = ours[inputs["padding_mask"]], array[inputs["padding_mask"]]
        scale = max(1.0, np.abs(array).max())
        np.testing.assert_allclose(ours, array, rtol=0, atol=2e-5 * scale)
    assert set(found) & set(expected)


def named_as_modules(case):
    """Maps tensors to those with the names of the modules of transformers 5."""
    family = FAMILIES[folders.config_of(CHECKPOINTS / case)["model_type"]]
    return lambda tensors: {family.module_key(k): x for k, x in tensors.items()}


@pytest.mark.parametrize(
    "case",
    [
        *("vit_classifier", "deit_teacher", "mae_pretrainer", "swin_classifier"),
        *("vit_encoder", "captioner_equal"),
    ],
)
def test_names_of_modules(case, tmp_path):
    """transformers 5: `save_pretrained(folder, save_original_format=False)`."""
    altered(tmp_path, case, tensors=named_as_modules(case))
    assert set(folders.tensors_of(tmp_path)) != set(
        folders.tensors_of(CHECKPOINTS / case)
    )
    folders.same_weights(load_checkpoint(tmp_path), load_checkpoint(CHECKPOINTS / case))


MASK, DECODER = "embeddings.mask_token", "decoder.0.weight"


@pytest.mark.parametrize(
    "case, keys",
    [
        ("gpt2_body", ["qa_outputs.weight"]),  # GPT2ForQuestionAnswering
        ("xlm_encoder", ["logits_proj.weight"]),  # XLMForMultipleChoice
        ("vit_encoder", [MASK, DECODER]),  # ViTForMaskedImageModeling
        ("deit_encoder", [MASK, DECODER]),
        ("swin_whole", [f"swin.{MASK}", DECODER]),  # SimMIM
    ],
)
def test_heads_that_we_do_not_build_are_left_out(case, keys, tmp_path):
    added = dict.fromkeys(keys, np.ones((2, 12), "float32"))
    altered(tmp_path, case, tensors=lambda tensors: {**tensors, **added})
    check(load_checkpoint(tmp_path, "encoder"), case)


@pytest.mark.parametrize(
    "name", ["gelu_fast", "gelu_accurate", "gelu_python_tanh", "gelu_new"]
)
def test_names_of_one_activation(name, tmp_path):
    case = "bert_encoder_tanh_gelu"
    check(load_checkpoint(altered(tmp_path, case, {"hidden_act": name})), case)


def test_a_variant_in_parts(tmp_path):
    """transformers: `save_pretrained(folder, variant="fp16", max_shard_size=…)`."""
    source, index = CHECKPOINTS / "bert_encoder_sharded", "model.safetensors.index"
    for file in source.glob("*.safetensors"):
        name = file.name.replace("model-", "model.fp16-")
        (tmp_path / name).write_bytes(file.read_bytes())
    text = (source / f"{index}.json").read_text().replace("model-", "model.fp16-")
    (tmp_path / f"{index}.fp16.json").write_text(text)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    check(load_checkpoint(tmp_path), source.name)
    # Of two variants none is meant.
    (tmp_path / f"{index}.bf16.json").write_text(text)
    with pytest.raises(ValueError, match="several weight files"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_weights_that_are_not_finite_are_refused(value, tmp_path):
    key = "encoder.layer.1.output.dense.weight"

    def damaged(tensors):
        array = np.copy(tensors[key])
        array[3, 5] = value
        return {**tensors, key: array}

    altered(tmp_path, "bert_encoder", tensors=damaged)
    with pytest.raises(ValueError, match=f"must be finite.*{key}"):
        load_checkpoint(tmp_path)
    opened = Folder(tmp_path)
    assert opened.read_part(key, (slice(0, 3), slice(None))).shape[0] == 3
    with pytest.raises(ValueError, match=f"must be finite.*{key}"):
        opened.read_part(key, (slice(3, 4), slice(None)))


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    altered(tmp_path, "bert_encoder")
    (tmp_path / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 440449768\n"
    )
    with pytest.raises(ValueError, match="pointer of Git LFS.*git lfs pull"):
        load_checkpoint(tmp_path)


# Adapters of PEFT.


def copy_adapter(folder):
    folder.mkdir(exist_ok=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (folder / name).write_bytes((ADAPTER / name).read_bytes())


def test_an_adapter_in_the_folder_is_said(tmp_path):
    """PEFT: `save_pretrained` into the base's folder; transformers applies it."""
    altered(tmp_path, "bert_classifier")
    copy_adapter(tmp_path)
    with pytest.warns(UserWarning, match="adapter of PEFT, which is not applied.*lora"):
        model = load_checkpoint(tmp_path)
    check(model, "bert_classifier")


def test_an_adapter_is_no_model(tmp_path):
    copy_adapter(tmp_path)
    with pytest.raises(FileNotFoundError, match="an adapter of PEFT.*load_lora"):
        load_checkpoint(tmp_path)
    # As `Trainer` leaves it.
    source = CHECKPOINTS / "bert_classifier" / "config.json"
    (tmp_path / "config.json").write_bytes(source.read_bytes())
    with pytest.raises(FileNotFoundError, match="no .*safetensors.*load_lora"):
        load_checkpoint(tmp_path)


def test_folders_of_adapters_that_cannot_be_read_say_why(tmp_path):
    model = load_checkpoint(CHECKPOINTS / "bert_classifier")
    copy_adapter(tmp_path / "mine")
    with pytest.raises(FileNotFoundError, match="folders of their own: .*mine"):
        load_lora(model, tmp_path)
    # PEFT before version 0.6.
    (tmp_path / "mine" / "adapter_model.safetensors").rename(
        tmp_path / "mine" / "adapter_model.bin"
    )
    with pytest.raises(FileNotFoundError, match="adapter_model.bin can contain code"):
        load_lora(model, tmp_path / "mine")


# CLIP's two towers.


def with_vision(**fields):
    own = folders.config_of(CHECKPOINTS / "clip_end_token")["vision_config"]
    return {"vision_config": {**own, **fields}}


def test_towers_of_clip_may_have_one_dropout_by_an_override(tmp_path):
    altered(tmp_path, "clip_end_token", with_vision(attention_dropout=0.1))
    with pytest.raises(ValueError, match="`attention_dropout` .* pass the one to use"):
        load_checkpoint(tmp_path)
    check(load_checkpoint(tmp_path, attention_dropout=0.1), "clip_end_token")


def test_towers_of_clip_may_name_one_activation_in_two_ways(tmp_path):
    altered(tmp_path, "clip_end_token", with_vision(hidden_act="gelu_python"))
    check(load_checkpoint(tmp_path), "clip_end_token")


# timm.


def with_args(case, **added):
    own = folders.config_of(CHECKPOINTS / case)["model_args"]
    return {"model_args": {**own, **added}}


@pytest.mark.parametrize(
    "case, added",
    [
        (
            "timm_vit",
            {
                **{"drop_rate": 0.1, "patch_drop_rate": 0.5, "weight_init": "jax"},
                **{"dynamic_img_size": True, "init_values": None, "act_layer": None},
                **{"qk_norm": False, "reg_tokens": 0, "pos_embed": "learn"},
            },
        ),
        ("timm_deit3", {"no_embed_class": True, "proj_bias": True}),
        ("timm_swin", {"strict_img_size": False, "always_partition": False}),
        ("timm_convnext", {"head_init_scale": 0.1, "conv_mlp": False}),
    ],
)
def test_timm_arguments_that_change_no_output(case, added, tmp_path):
    check(load_checkpoint(altered(tmp_path, case, with_args(case, **added))), case)


@pytest.mark.parametrize("case", ["timm_vit", "timm_swin"])
def test_timm_rates_are_applied(case, tmp_path):
    fields = with_args(case, attn_drop_rate=0.25, proj_drop_rate=0.125)
    model = load_checkpoint(altered(tmp_path, case, fields))
    name = "block_0" if case == "timm_vit" else "stage_0_block_0"
    assert model.get_layer(name).attention_dropout == 0.25
    assert model.get_layer(name).dropout == 0.125


@pytest.mark.parametrize(
    "case, added",
    [
        ("timm_vit", {"qk_norm": True}),
        ("timm_vit", {"no_embed_class": True}),
        ("timm_deit3", {"no_embed_class": False}),
        ("timm_deit3", {"attn_drop_rate": 0.1}),
        ("timm_swin", {"always_partition": True}),
        ("timm_convnext", {"output_stride": 16}),
    ],
)
def test_timm_arguments_that_we_lack_are_refused(case, added, tmp_path):
    (name,) = added
    folders.check_refused(
        tmp_path, case, with_args(case, **added), rf"`model_args` .*\['{name}'\]"
    )


@pytest.mark.parametrize(
    "case, name",
    [
        ("timm_vit", "vit_tiny_patch16_224_in21k"),
        ("timm_deit3", "deit3_small_patch16_224_in21ft1k"),
    ],
)
def test_names_of_timm_before_version_0_8(case, name, tmp_path):
    check(load_checkpoint(altered(tmp_path, case, {"architecture": name})), case)


def test_timm_models_in_transformers(tmp_path):
    """transformers: `TimmWrapperForImageClassification.save_pretrained`."""
    fields = {"model_type": "timm_wrapper", "pretrained_cfg": None}
    names = ["TimmWrapperForImageClassification"]

    def wrapped(tensors):
        return {f"timm_model.{key}": array for key, array in tensors.items()}

    altered(tmp_path, "timm_vit", {**fields, "architectures": names}, wrapped)
    check(load_checkpoint(tmp_path), "timm_vit")

    def without_head(tensors):
        return wrapped({k: x for k, x in tensors.items() if "head" not in k})

    # The bare model's file has a number of classes, too.
    fields |= {"num_classes": 2, "architectures": ["TimmWrapperModel"]}
    altered(tmp_path, "timm_vit", fields, without_head)
    assert "sequence_output" in load_checkpoint(tmp_path).output


# Sizes and names of other versions.


@pytest.mark.parametrize("library", [None, "timm"])
def test_patches_that_are_not_square(library, tmp_path):
    sizes = {"hidden_dim": 6, "num_blocks": (1, 1), "num_heads": (2, 3)}
    model = models.build_swin(
        image_size=(16, 32), patch_size=(2, 4), window_size=4, num_classes=3, **sizes
    )
    save_checkpoint(model, tmp_path, library=library)
    folders.same_weights(load_checkpoint(tmp_path), model)


def test_a_pair_of_equal_sides(tmp_path):
    case = "convnext_classifier"
    side = folders.config_of(CHECKPOINTS / case)["patch_size"]
    altered(tmp_path, case, {"patch_size": [side, side]})
    check(load_checkpoint(tmp_path), case)


def test_a_u_net_of_an_older_version(tmp_path):
    """segmentation-models-pytorch before 0.5: `decoder_use_batchnorm`."""
    case = "own_smp_unet"
    config = folders.config_of(CHECKPOINTS / case)
    del config["decoder_use_norm"], config["decoder_interpolation"]
    altered(tmp_path, case)
    for value in (True, False):
        config["decoder_use_batchnorm"] = value
        (tmp_path / "config.json").write_text(json.dumps(config))
        if value:
            check(load_checkpoint(tmp_path), case)
    with pytest.raises(ValueError, match="`decoder_use_batchnorm`.*must be True"):
        load_checkpoint(tmp_path)
