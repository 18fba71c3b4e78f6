"""Every committed checkpoint computes what its library does, and is written as there.

The scripts `*_references.py` write the folders. What one family has besides is in the
files of the families, and what is refused in `test_refusals.py`.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    arrays_of,
    cases_of,
    compare,
    config_of,
    outputs_of,
    run_script,
    same_arrays,
    same_tensors,
    same_weights,
    tensors_of,
)

from keras_attn.models import load_checkpoint, save_checkpoint
from keras_attn.models.catalog.public_weights import PUBLIC_WEIGHTS

# How many cases begin with a word.
COUNTS = {
    **{"bert": 11, "roberta": 5, "gpt": 3, "gpt2": 5, "xlm": 6, "xlnet": 6},
    **{"vit": 5, "deit": 3, "mae": 3, "swin": 4, "convnext": 3, "captioner": 2},
    **{"clip": 2, "siglip": 1, "openclip": 2, "torchvision": 5, "maskrcnn": 1},
    **{"timm": 9, "smp": 2, "own": 15, "vilbert": 2, "transformer": 2, "dall": 1},
}
TEXT = ("bert", "roberta", "gpt", "gpt2", "xlm")
IMAGES = ("vit", "deit", "mae", "swin", "convnext")
# With outputs to compare by name alone; the others are in files of their own.
PLAIN = cases_of(*TEXT, *IMAGES, "captioner", "torchvision", "timm", "smp")
PLAIN += ["xlnet_token_classifier", "xlnet_span_qa"]
TOLERANCES = {"torchvision": {"rtol": 0}, "smp": {"rtol": 0}, "timm": {"rtol": 1e-4}}
WRITTEN = cases_of(
    *(*TEXT, *IMAGES, "xlnet", "captioner", "clip", "siglip", "torchvision")
)
COUNT = "num_batches_tracked"  # Nothing reads it unless PyTorch's momentum is None.


def kind_of(case):
    """The word that a case begins with."""
    return case.split("_")[0]


def options_of(case, inputs) -> dict:
    """Overrides with which a model takes the inputs of its case."""
    options = {}
    if kind_of(case) in IMAGES:
        options["image_size"] = inputs["images"].shape[1:3]
    if case == "timm_hybrid":
        options |= {"num_blocks": (1, 1), "stem_dim": 32}
    return options | {x: True for x in ("noise", "position_ids") if x in inputs}


def test_every_case_is_committed():
    cases = [folder.name for folder in CHECKPOINTS.iterdir()]
    assert Counter(map(kind_of, cases)) == COUNTS
    files = [file for case in cases for file in (CHECKPOINTS / case).iterdir()]
    assert sum(file.stat().st_size for file in files) < 5_000_000
    berts = cases_of("bert")
    first = [next(iter(tensors_of(CHECKPOINTS / case).values())) for case in berts]
    assert {str(x.dtype) for x in first} == {"float32", "float16", "bfloat16"}
    assert len(list((CHECKPOINTS / "bert_encoder_sharded").glob("*.safetensors"))) > 2


def with_first_token(outputs, real):
    """Without rows that begin with padding, for which transformers' XLM has zeros."""
    return {
        name: array if array.shape[:2] == real.shape else array[real[:, 0]]
        for name, array in outputs.items()
    }


@pytest.mark.parametrize("case", PLAIN)
def test_agrees_with_its_library(case):
    inputs, expected = arrays_of(CHECKPOINTS / case)
    expected.pop("loss", None)
    model = load_checkpoint(CHECKPOINTS / case, **options_of(case, inputs))
    found = outputs_of(model, inputs)
    if kind_of(case) == "xlm":
        real = inputs["padding_mask"]
        found, expected = (with_first_token(x, real) for x in (found, expected))
    compare(found, expected, inputs, **TOLERANCES.get(kind_of(case), {}))
    # Of a body for images ours has more outputs: the map of each stage.
    assert set(found) == set(expected) or kind_of(case) in IMAGES
    if kind_of(case) in ("timm", "torchvision"):
        tensors = tensors_of(CHECKPOINTS / case).items()
        size = sum(array.size for key, array in tensors if not key.endswith(COUNT))
        # timm stores fewer rows of a table whose window is larger than the map.
        size += {"timm_swin": 3 * (9**2 - 5**2)}.get(case, 0)
        assert model.count_params() == size


def check_config(found, config):
    """Asserts that the fields of a configuration are those of the library's."""
    for key, value in found.items():
        if key == "norm_pix_loss":
            continue  # An option of the loss, which is not part of our model.
        if key == "classifier_dropout" and config.get(key) is None:
            assert value == 0.1  # transformers takes that of the body.
            continue
        expected = config[key]
        if isinstance(value, dict) and key in ("encoder", "decoder"):
            check_config(value, expected)
        elif isinstance(value, dict) and key.endswith("_config"):
            assert expected == {**expected, **value}, key
        elif key == "n_inner" and expected is None:
            assert value == 4 * config["n_embd"]
        else:
            assert value == expected or (key, value) == ("mem_len", None), key


@pytest.mark.parametrize("case", WRITTEN)
def test_files_equal_those_of_its_library(case, tmp_path):
    model = load_checkpoint(CHECKPOINTS / case)
    dtype = next((x for x in ("bfloat16", "float16") if case.endswith(f"_{x}")), None)
    config, is_sharded = config_of(CHECKPOINTS / case), case.endswith("sharded")
    if kind_of(case) == "torchvision":
        dtype, config["dtype"] = "float16", "float16"
    shard = 3000 if is_sharded else 10**9
    save_checkpoint(model, tmp_path, dtype=dtype, max_shard_size=shard)
    # Our models have no pooling layer of images.
    has_pooler = kind_of(case) in (*IMAGES, "captioner")
    same_tensors(case, tmp_path, ignored=["pooler"] if has_pooler else [COUNT])
    found = config_of(tmp_path)
    check_config(found, config)
    assert set(found) == set(config) or kind_of(case) != "torchvision"
    assert (len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 2) == is_sharded
    assert (tmp_path / "model.safetensors").exists() != is_sharded
    same_weights(load_checkpoint(tmp_path), model)


HEADS = {
    **dict.fromkeys(("vit_classifier", "swin_classifier", "timm_swin"), "classifier"),
    **dict.fromkeys(("timm_convnext", "smp_unet_resnet50"), "classifier"),
    "timm_deit_distilled": "classifier, distillation_classifier",
    **dict.fromkeys(cases_of("torchvision"), "classifier"),
    "torchvision_fcn_resnet50": "auxiliary_classifier, classifier",
    "maskrcnn_resnet50_fpn": "box_deltas, class_logits, mask_logits",
}


@pytest.mark.parametrize("case", HEADS)
def test_another_number_of_classes_makes_new_last_layers(case):
    with pytest.warns(UserWarning, match=f"no weights for {HEADS[case]}:"):
        model: Any = load_checkpoint(CHECKPOINTS / case, num_classes=3)
    same: Any = load_checkpoint(CHECKPOINTS / case)
    for name in HEADS[case].split(", "):
        old, new = (x.get_layer(name).kernel.shape[-1] for x in (same, model))
        assert old != new and new in (3, 4, 16)
    for one, other in zip(same.weights, model.weights, strict=True):
        if one.path.split("/")[0] not in HEADS[case]:
            np.testing.assert_array_equal(one, other)


# Live: what reads and makes the files.


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", cases_of(*TEXT, "xlnet", "clip", "siglip"))
def test_transformers_reads_our_files(case, tmp_path):
    """As its own: the weights are the same numbers, `test_files_…` says."""
    run_script("hugging_face")
    import transformers  # pyright: ignore[reportMissingImports]

    save_checkpoint(load_checkpoint(CHECKPOINTS / case), tmp_path, max_shard_size=5000)
    (name,) = config_of(tmp_path)["architectures"]
    ours, own = (
        getattr(transformers, name).from_pretrained(x, output_loading_info=True)
        for x in (tmp_path, CHECKPOINTS / case)
    )
    assert not any(ours[1].values()), ours[1]
    found, expected = (each[0].config.to_dict() for each in (ours, own))
    assert set(found) >= set(expected)
    # Ids of special tokens are no sizes of the model, and not written.
    unlike = {"_name_or_path", "classifier_dropout", "dtype", "mem_len", "n_inner"}
    for key in set(expected) - unlike:
        assert found[key] == expected[key] or key.endswith("_token_id"), key


SMP = ("torch", "torchvision", "timm", "segmentation_models_pytorch")
SCRIPTS = {
    **{"bert": ("transformers",), "gpt": ("transformers",), "xlm": ("transformers",)},
    **{"xlnet": ("transformers",), "vision": ("transformers",)},
    **{"clip": ("transformers",), "captioner": ("transformers",)},
    **{"transformer": ("transformers",), "vilbert": ("torch",)},
    "torchvision": ("torch", "torchvision"),
    "timm": ("torch", "torchvision", "timm"),
    "open_clip": ("torch", "torchvision", "timm", "open_clip"),
    "smp_unet": SMP,
}


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SCRIPTS)
def test_live(name, tmp_path):
    """Cases computed now equal the committed ones."""
    script = run_script(f"{name}_references", SCRIPTS[name])
    cases = script.make_cases()
    assert sorted(cases) == cases_of(*map(kind_of, cases))
    script.write(cases, tmp_path)
    for case, (_, arrays) in cases.items():
        same_arrays(CHECKPOINTS / case / "expected.npz", arrays)
        same_tensors(case, tmp_path / case)
        for path in (CHECKPOINTS / case).glob("*.json"):
            written = (tmp_path / case / path.name).read_text()
            fields, now = json.loads(path.read_text()), json.loads(written)
            assert now == fields or "transformers_version" in fields


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name, folder, needs, atol",
    [
        ("references", "data", ("torch",), 1e-6),
        ("segmenter_references", "segmenters", ("torch",), 5e-6),
        ("smp_references", "segmenters", SMP, 5e-6),
    ],
)
def test_live_arrays(name, folder, needs, atol):
    for case, arrays in run_script(name, needs).make_cases().items():
        path = Path(__file__).parent / folder / f"{case}.npz"
        same_arrays(path, arrays, atol)


def test_layouts_of_public_weights():
    """Of each layout that a card names a folder in, one is compared here."""
    layouts = {weights.layout for weights in PUBLIC_WEIGHTS.values()}
    assert layouts <= set(COUNTS)
