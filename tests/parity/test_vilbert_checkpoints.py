"""ViLBERT's checkpoints against PyTorch, from tiny folders in the authors' naming.

`vilbert_references.py` writes the folders.
"""

import re
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import build
from parity.folders import (
    CHECKPOINTS,
    altered,
    arrays_of,
    config_of,
    outputs_of,
    run_script,
    same_layers,
    same_weights,
    tensors_of,
)
from variations import in_turn

from keras_attn import models
from keras_attn.models import load_checkpoint, save_checkpoint

PRETRAINER, TASKS = "vilbert_pretrainer", "vilbert_tasks"
HEADS = ("classifier", "scorer", "referring")
ALL_TASKS = ("encoder", "pretrainer", *HEADS)


def check(found, expected, inputs):
    """Asserts that outputs are the same at real words and regions."""
    mask = inputs["padding_mask"]
    regions = inputs["region_padding_mask"]
    whole = np.concatenate([np.ones((len(regions), 1), bool), regions], 1)
    for name, array in found.items():
        wanted = expected[name]
        assert array.shape == wanted.shape
        for real in (mask, regions, whole):
            if wanted.shape[:2] == real.shape:
                array, wanted = array[real], wanted[real]
        np.testing.assert_allclose(array, wanted, atol=2e-5, rtol=2e-5, err_msg=name)


def run(folder, task):
    """The outputs of the model of a task, by the names of the references."""
    model: Any = load_checkpoint(folder, task)
    inputs, expected = arrays_of(CHECKPOINTS / TASKS)
    if (folder / "expected.npz").is_file():
        inputs, expected = arrays_of(folder)
    found = outputs_of(model, inputs)
    found = found if len(found) > 1 else {task: next(iter(found.values()))}
    return model, inputs, expected, found


@pytest.mark.parametrize("task", in_turn(ALL_TASKS, 2))
def test_the_tasks_of_the_authors_class(task):
    _, inputs, expected, found = run(CHECKPOINTS / TASKS, task)
    check(found, expected, inputs)


def test_a_folder_of_the_authors_is_a_pretrainer():
    model, inputs, expected, found = run(CHECKPOINTS / PRETRAINER, None)
    assert set(found) == {"masked_lm", "masked_regions", "alignment"}
    check(found, expected, inputs)
    _, inputs, expected, found = run(CHECKPOINTS / PRETRAINER, "encoder")
    check(found, expected, inputs)
    assert model.get_layer("masked_regions").units == 17


def layers_of(model):
    """The layers that we name; Keras numbers its operations."""
    return [
        layer
        for layer in model.layers
        if layer.weights or not re.search(r"_\d+$", layer.name)
    ]


@pytest.mark.parametrize(
    "case, task", [(PRETRAINER, "pretrainer"), *((TASKS, task) for task in ALL_TASKS)]
)
def test_a_folder_is_read_written_and_read(case, task, tmp_path):
    model: Any = load_checkpoint(CHECKPOINTS / case, task)
    save_checkpoint(model, tmp_path)
    again: Any = load_checkpoint(tmp_path)
    same_weights(again, model)
    for one, other in zip(layers_of(again), layers_of(model), strict=True):
        assert one.get_config() == other.get_config()
    tensors, saved = tensors_of(CHECKPOINTS / case), tensors_of(tmp_path)
    if task == "encoder":
        saved = {f"bert.{key}": array for key, array in saved.items()}
    for key, array in saved.items():
        np.testing.assert_array_equal(array, tensors[key], err_msg=key)
    lost = {key for key in set(tensors) - set(saved) if "q_dense" not in key}
    lost.discard("cls.predictions.decoder.weight")
    unused = ("bert.t_pooler.", "bert.v_pooler.") if task == "referring" else ()
    kept = ("bert.", "cls.") if task == "pretrainer" else ("bert.",)
    assert not {
        key for key in lost if key.startswith(kept) and not key.startswith(unused)
    }
    config, written = config_of(CHECKPOINTS / case), config_of(tmp_path)
    unread = ("initializer_range", "bi_intermediate_size", "bi_attention_type")
    unread += ("v_initializer_range", "pooling_method", "num_labels", "architectures")
    for name in set(config) - set(unread):
        if name == "v_target_size" and task != "pretrainer":
            continue
        if name == "fusion_method" and task in ("encoder", "referring"):
            continue
        assert written[name] == config[name], name


def old_names(arrays):
    """The keys of a file that was trained on several devices long ago."""
    found = {}
    for key, array in arrays.items():
        key = key.replace("LayerNorm.weight", "LayerNorm.gamma")
        found["module." + key.replace("LayerNorm.bias", "LayerNorm.beta")] = array
    return found


def without_ignored(arrays):
    """Neither the layers that nothing calls nor the copy of the words."""
    copy = "cls.predictions.decoder.weight"
    return {k: v for k, v in arrays.items() if "q_dense" not in k and k != copy}


def without_table(arrays):
    """Only the copy of the words."""
    table = "bert.embeddings.word_embeddings.weight"
    return {key: array for key, array in arrays.items() if key != table}


@pytest.mark.parametrize("change", [old_names, without_ignored, without_table])
def test_variants_of_files(change, tmp_path):
    folder = altered(tmp_path, PRETRAINER, tensors=change)
    same_weights(load_checkpoint(folder), load_checkpoint(CHECKPOINTS / PRETRAINER))


def with_head_of_2019(arrays):
    """The head of VQA in the authors' first code: `SimpleClassifier`, weight-normed."""
    rng = np.random.default_rng(6)
    arrays = {k: v for k, v in arrays.items() if not k.startswith("vil_prediction.")}
    for number, shape in ((0, (24, 12)), (3, (9, 24))):
        key = f"vil_prediction.main.{number}"
        arrays[f"{key}.weight_g"] = np.array(rng.uniform(2, 4), "float32")
        arrays[f"{key}.weight_v"] = rng.normal(size=shape).astype("float32")
        arrays[f"{key}.bias"] = rng.normal(size=shape[0]).astype("float32")
    return arrays


def test_the_head_of_2019_is_read_and_written(tmp_path):
    folder = altered(tmp_path / "2019", TASKS, tensors=with_head_of_2019)
    model: Any = load_checkpoint(folder, "classifier")
    inputs, _ = arrays_of(CHECKPOINTS / TASKS)
    encoder = load_checkpoint(folder, "encoder")
    features = outputs_of(encoder, inputs)
    hidden = features["pooled_output"] + features["pooled_region_output"]
    tensors = tensors_of(folder)
    for number in (0, 3):
        key = f"vil_prediction.main.{number}"
        g, v, bias = (tensors[f"{key}.{x}"] for x in ("weight_g", "weight_v", "bias"))
        hidden = hidden @ (g * v / np.sqrt((v**2).sum())).T + bias
        hidden = np.maximum(hidden, 0) if number == 0 else hidden
    np.testing.assert_allclose(outputs_of(model, inputs)["logits"], hidden, atol=1e-5)
    assert model.get_layer("classifier_hidden_dropout").rate == 0.5
    with pytest.raises(ValueError, match="`head` must be .*head='tanh'"):
        models.build_vilbert_classifier(encoder, head="tanh")  # pyright: ignore

    save_checkpoint(model, tmp_path / "again")
    again: Any = load_checkpoint(tmp_path / "again")
    found = outputs_of(again, inputs)["logits"]
    np.testing.assert_allclose(found, hidden, atol=1e-5)
    saved = tensors_of(tmp_path / "again")
    for key in (key for key in tensors if key.startswith("vil_prediction.main")):
        wanted = tensors[key]
        if key.endswith("weight_v"):
            wanted = wanted * tensors[key[:-1] + "g"] / np.linalg.norm(wanted)
        np.testing.assert_allclose(saved[key], wanted, atol=1e-6, err_msg=key)
    # Models without the head read the folder as before.
    load_checkpoint(folder, "scorer")
    with pytest.warns(UserWarning, match="no weights for classifier:"):
        other: Any = load_checkpoint(folder, "classifier", num_classes=4)
    assert other.output.shape == (None, 4)
    model.save(tmp_path / "model.keras")
    loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    found = outputs_of(loaded, inputs)["logits"]
    np.testing.assert_allclose(found, hidden, atol=1e-5)


def test_a_part_of_the_head_of_2019_is_an_error(tmp_path):
    def damaged(arrays):
        arrays = with_head_of_2019(arrays)
        return {
            k: v for k, v in arrays.items() if k != "vil_prediction.main.3.weight_g"
        }

    folder = altered(tmp_path, TASKS, tensors=damaged)
    with pytest.raises(ValueError, match="lacks keys.*vil_prediction.main.3.weight_g"):
        load_checkpoint(folder, "classifier")


def test_heads_that_a_file_lacks_are_new():
    for task, layers in (
        ("classifier", {"classifier_hidden", "classifier_norm", "classifier"}),
        ("scorer", {"scorer"}),
        ("referring", {"referring"}),
    ):
        with pytest.warns(UserWarning, match="no weights for") as caught:
            model: Any = load_checkpoint(CHECKPOINTS / PRETRAINER, task)
        for layer in layers:
            assert layer in str(caught[0].message)
        if task == "classifier":
            assert model.output.shape == (None, 3129)
    with pytest.warns(UserWarning, match="no weights for classifier:"):
        model = load_checkpoint(CHECKPOINTS / TASKS, "classifier", num_classes=4)
    assert model.output.shape == (None, 4)


def test_a_head_that_the_authors_code_lacks_is_not_written(tmp_path):
    encoder: Any = load_checkpoint(CHECKPOINTS / PRETRAINER, "encoder")
    model = models.build_vilbert_classifier(encoder, num_classes=3, hidden_dim=5)
    with pytest.raises(ValueError, match="`hidden_dim` .* twice `co_attention_dim`"):
        save_checkpoint(model, tmp_path)


# The words from a BERT.

REGIONS: dict[str, Any] = {
    "feature_dim": 7,
    "region_dim": 22,
    "num_region_layers": 2,
    "num_region_heads": 2,
    "region_mlp_dim": 19,
    "co_attention_dim": 26,
    "num_co_attention_heads": 2,
    "text_co_layers": (1, 1),
    "region_co_layers": (0, 1),
}


def test_a_model_without_a_block_of_words_is_not_written(tmp_path):
    encoder = build("vilbert_base", text_co_layers=(0, 0), num_layers=1)
    model = models.build_vilbert_referring(encoder)
    with pytest.raises(ValueError, match="must have a block of the words"):
        save_checkpoint(model, tmp_path / "folder")
    assert not (tmp_path / "folder").exists()


@pytest.mark.each_value
@pytest.mark.parametrize("case", ["bert_encoder", "bert_pretrainer"])
@pytest.mark.parametrize("task", ["vilbert", "vilbert_pretrainer"])
def test_the_words_start_from_a_bert(case, task):
    folder = CHECKPOINTS / case
    with pytest.warns(UserWarning, match="no weights for") as caught:
        model: Any = load_checkpoint(folder, task, **REGIONS, dropout=0.0)
    assert "co_attention_0" in str(caught[0].message)
    has_head = task == "vilbert_pretrainer" and case == "bert_pretrainer"
    bert_task = "masked_lm" if has_head else "encoder"
    other: Any = load_checkpoint(folder, bert_task)
    names = {layer.name for layer in other.layers if layer.weights} - {"pooler"}
    assert len(names) > 5
    same_layers(model, other, names)
    outputs = model(
        {
            **{name: np.ones((2, 5), "int32") for name in ("token_ids", "segment_ids")},
            "padding_mask": np.ones((2, 5), bool),
            "region_features": np.ones((2, 3, 7), "float32"),
            "region_boxes": np.ones((2, 3, 4), "float32"),
            "region_padding_mask": np.ones((2, 3), bool),
        }
    )
    for tensor in outputs.values():
        assert np.isfinite(tensor).all()


def test_the_published_blocks_need_twelve_of_the_bert():
    with pytest.raises(ValueError, match="`text_co_layers` must have blocks .* 0 to 2"):
        load_checkpoint(CHECKPOINTS / "bert_encoder", "vilbert")


@pytest.mark.parity
def test_the_published_keys_and_their_number():
    script = run_script("vilbert_references", ("torch",))
    published = {
        **script.CONFIG,
        "vocab_size": 30_522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "v_feature_size": 2048,
        "v_target_size": 1601,
        "v_hidden_size": 1024,
        "v_num_hidden_layers": 6,
        "v_intermediate_size": 1024,
        "bi_hidden_size": 1024,
        "t_biattention_id": [6, 7, 8, 9, 10, 11],
        "v_biattention_id": [0, 1, 2, 3, 4, 5],
    }
    shapes = script.shapes_of(published)
    assert len(shapes) == 533
    tied = shapes.pop("cls.predictions.decoder.weight")
    assert tied == (30_522, 768)
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == 250_044_029
