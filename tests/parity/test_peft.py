"""LoRA weights in PEFT's folders, which `peft_references.py` writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from parity import folders
from safetensors.numpy import load_file, save_file

from keras_attn.models import load_checkpoint, load_lora, save_lora
from keras_attn.training import enable_lora, merge_lora

ADAPTERS = Path(__file__).parent / "adapters"
CASES = sorted(path.name for path in ADAPTERS.iterdir())
TOLERANCE = 1e-5
# Names of modules of today, and of transformers 4.
OLD_NAMES = {
    "vit_classifier": {
        "vit.layers.": "vit.encoder.layer.",
        "attention.q_proj": "attention.attention.query",
        "attention.v_proj": "attention.attention.value",
    },
    "swin_classifier": {
        "attention.q_proj": "attention.self.query",
        "attention.k_proj": "attention.self.key",
        "attention.v_proj": "attention.self.value",
        "attention.o_proj": "attention.output.dense",
        "mlp.fc1": "intermediate.dense",
    },
}


def base_of(case) -> Any:
    return load_checkpoint(folders.CHECKPOINTS / case.partition("@")[0])


def read(folder):
    """The configuration and the tensors of a folder."""
    config = json.loads((folder / "adapter_config.json").read_text())
    return config, load_file(folder / "adapter_model.safetensors")


def altered(folder, case, fields=None, tensors=None):
    """Writes a committed folder with other fields or tensors."""
    config, arrays = read(ADAPTERS / case)
    arrays = arrays if tensors is None else tensors(arrays)
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({**config, **(fields or {})})
    )
    save_file(arrays, folder / "adapter_model.safetensors")
    return folder


def randomize(model, seed=5):
    """Gives what trains random numbers."""
    rng = np.random.default_rng(seed)
    for weight in model.trainable_variables:
        weight.assign(rng.normal(0, 0.3, weight.shape))


def check(model, inputs, expected, tolerance=TOLERANCE):
    """Asserts that the outputs at real tokens are those of PEFT."""
    found = folders.outputs_of(model, inputs)
    real = inputs.get("padding_mask", np.ones((1, 1))).astype(bool)
    for name, array in expected.items():
        ours = found[name]
        if array.shape[:2] == real.shape:
            ours, array = ours[real], array[real]
        np.testing.assert_allclose(ours, array, rtol=0, atol=tolerance)


def test_every_case_is_committed():
    kinds = {case.split("_")[0] for case in CASES}
    assert kinds == {"bert", "roberta", "gpt2", "vit", "swin", "clip"}
    files = [file for case in CASES for file in (ADAPTERS / case).iterdir()]
    assert sum(file.stat().st_size for file in files) < 100_000


@pytest.mark.parametrize("case", CASES)
def test_updates_of_peft_are_read_and_written(case, tmp_path):
    config, tensors = read(ADAPTERS / case)
    inputs, expected = folders.arrays_of(ADAPTERS / case)
    model = base_of(case)
    with pytest.raises(AssertionError):
        check(model, inputs, expected, 0.05)
    report = load_lora(model, ADAPTERS / case)
    check(model, inputs, expected)
    assert report.num_trained == sum(array.size for array in tensors.values())

    save_lora(model, tmp_path, base_model=case.partition("@")[0])
    saved, arrays = read(tmp_path)
    assert set(arrays) == set(tensors)
    for key, array in tensors.items():
        np.testing.assert_array_equal(arrays[key], array, err_msg=key)
    alphas = {"lora_alpha", "alpha_pattern", "rank_pattern", "use_rslora"}
    for field in set(saved) - alphas - {"modules_to_save"}:
        expected_value, value = config[field], saved[field]
        if field == "target_modules":
            expected_value, value = set(expected_value), set(value)
        assert value == expected_value, field
    # PEFT's names may be ends of paths, and further modules that may be heads.
    for module in saved["modules_to_save"] or ():
        assert module.endswith(tuple(config["modules_to_save"]))
    # The others are switched off.
    load_lora(model, tmp_path, name="again")
    check(model, inputs, expected)
    merge_lora(model)
    check(model, inputs, expected)


@pytest.mark.parametrize("case", OLD_NAMES)
def test_modules_with_names_of_transformers_4_are_read(case, tmp_path):
    def renamed(tensors):
        for new, old in OLD_NAMES[case].items():
            tensors = {key.replace(new, old): x for key, x in tensors.items()}
        return tensors

    fields = {"alpha_pattern": {"1.attention.(attention|self).query": 5}}
    folder = altered(tmp_path / "old", case, fields, renamed)
    assert set(read(folder)[1]) != set(read(ADAPTERS / case)[1])
    model = base_of(case)
    load_lora(model, folder)
    inputs, expected = folders.arrays_of(ADAPTERS / case)
    check(model, inputs, expected)


def without(part):
    """The tensors whose keys have not this part."""
    return lambda tensors: {k: x for k, x in tensors.items() if part not in k}


def longer(part, axis):
    """The tensors, with another row or column where keys have this part."""
    return lambda tensors: {
        k: np.concatenate([x, np.take(x, [0], axis)], axis) if part in k else x
        for k, x in tensors.items()
    }


QUERY = "bert.encoder.layer.0.attention.self.query.lora_B"


@pytest.mark.parametrize(
    ("case", "change", "message"),
    [
        (
            "gpt2_causal_lm",
            without("h.1"),
            "must have the size of this model.*transformer.h.1.attn.c_attn",
        ),
        (
            "gpt2_causal_lm",
            lambda x: {**x, **{k.replace("h.1", "h.2"): v for k, v in x.items()}},
            "must be LoRA weights of kernels of this "
            "model.*transformer.h.2.attn.c_attn",
        ),
        (
            "bert_classifier",
            longer("lora_A.weight", 1),
            r"must be of a base model of these sizes.*shapes \(2, 13\) and \(12, 2\)",
        ),
        (
            "bert_classifier",
            longer("classifier", 0),
            r"sizes of the model's.*'classifier.* with shape \(6,.* of shape \(5,",
        ),
        ("bert_classifier", without(QUERY), f"tensors a module.*no '{QUERY}"),
        (
            "vit_classifier",
            without("classifier.bias"),
            "whole layers of it.*Received: classifier.bias in",
        ),
    ],
)
def test_an_adapter_of_another_base_is_an_error(case, change, message, tmp_path):
    model = base_of(case)
    before = [weight.path for weight in model.trainable_variables]
    folder = altered(tmp_path / "other", case, tensors=change)
    with pytest.raises(ValueError, match=message):
        load_lora(model, folder)
    # Nothing has changed.
    assert [weight.path for weight in model.trainable_variables] == before
    folders.same_weights(model, base_of(case))


def test_an_adapter_of_another_family_is_an_error():
    with pytest.raises(ValueError, match="bert.encoder.layer.0.*vit.layers.0"):
        load_lora(base_of("vit_classifier"), ADAPTERS / "bert_classifier")


@pytest.fixture(scope="module")
def bert():
    return base_of("bert_classifier")


def test_the_table_of_an_output_layer_is_refused(tmp_path):
    model = base_of("gpt2_causal_lm")
    enable_lora(model, 2, targets="token_embedding")
    message = "it is the output layer, too.*'transformer.wte.weight'"
    with pytest.raises(ValueError, match=message):
        save_lora(model, tmp_path)
    rng = np.random.default_rng(0)
    start = "base_model.model.transformer.wte.lora_embedding_"
    sizes = {"A": (2, 29), "B": (12, 2)}
    tensors = {start + x: rng.normal(size=size) for x, size in sizes.items()}
    fields = {"target_modules": ["wte"]}
    folder = altered(tmp_path / "tied", "gpt2_causal_lm", fields, lambda _: tensors)
    with pytest.raises(ValueError, match=message):
        load_lora(base_of("gpt2_causal_lm"), folder)


def test_a_name_that_the_model_lacks_is_named(tmp_path, bert):
    with pytest.raises(ValueError, match="`name` must be .* name='second'"):
        save_lora(bert, tmp_path, name="second")


# PEFT reads it, and transformers 5 warns.
deprecated = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


def live() -> Any:
    """What makes the folders."""
    return folders.run_script("peft_references", ("torch", "transformers", "peft"))


@pytest.mark.parity
@deprecated
@pytest.mark.parametrize("case", CASES)
def test_the_folders_are_pefts(case, tmp_path):
    found = live().make_case(case, tmp_path)
    with np.load(ADAPTERS / case / "expected.npz") as file:
        assert set(file) == set(found)
        for name, array in file.items():
            np.testing.assert_allclose(array, found[name], rtol=0, atol=1e-6)
    config, tensors = read(tmp_path)
    fields, committed = read(ADAPTERS / case)
    assert set(config) == set(fields) and set(tensors) == set(committed)
    for key, array in tensors.items():
        np.testing.assert_array_equal(array, committed[key], err_msg=key)


# Parts of fused kernels by themselves, several as one update, tables and heads; layers
# that train as a whole; and PEFT's name of the task.
OURS = [
    (
        "bert_classifier",
        ("key", "block_1/attention/value", "contract", "token_embedding"),
        *("classifier", "SEQ_CLS"),
    ),
    ("bert_classifier", "value", (), None),
    ("bert_classifier", "value", "pooler", None),
    ("bert_token_classifier", "value", "embeddings_norm", None),
    ("roberta_classifier", "all", "classifier", "SEQ_CLS"),
    ("roberta_classifier", "value", "block_0", None),
    ("own_distilbert_classifier", "value", "classifier", "SEQ_CLS"),
    ("gpt2_causal_lm", ("query", "value", "block_0/feed_forward/expand"), (), ...),
    ("vit_classifier", ("query", "output", "projection"), "classifier", ...),
    ("swin_classifier", ("stage_1_.*/value", "contract"), "classifier", ...),
    ("clip_end_token", ("text_block_0/.*", "block_1/.*/key", "projection"), (), ...),
]


@pytest.mark.parity
@deprecated
@pytest.mark.parametrize("case, targets, also_train, task_type", OURS)
def test_peft_reads_ours(case, targets, also_train, task_type, tmp_path):
    references = live()
    model = base_of(case)
    enable_lora(model, 3, alpha=4, targets=targets, also_train=also_train)
    randomize(model)
    save_lora(model, tmp_path)
    assert task_type in (..., read(tmp_path)[0]["task_type"])
    import peft  # pyright: ignore[reportMissingImports]

    base = references.base_of(case)
    inputs = references.inputs_of(base)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path).eval()
    before = references.outputs_of(references.base_of(case), inputs)
    expected = references.outputs_of(theirs, inputs)
    assert all(np.abs(expected[x] - before[x]).max() > 0.05 for x in expected)
    check(model, inputs, expected)
    load_lora(base_of(case), tmp_path)
