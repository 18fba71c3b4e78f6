"""The fields of PEFT's `adapter_config.json`: applied, refused, or without effect."""

import numpy as np
import pytest
from parity import folders
from parity.test_peft import ADAPTERS, altered, base_of, check, deprecated, live, read

from keras_attn.models import load_lora, save_lora
from keras_attn.models.checkpoints.adapter_config import (
    APPLIED,
    REFUSED,
    WITHOUT_EFFECT,
)

CASE = "bert_classifier"


@pytest.fixture(scope="module")
def bert():
    return base_of(CASE)


def test_each_field_has_one_treatment():
    fields = [*APPLIED, *REFUSED, *WITHOUT_EFFECT]
    assert len(fields) == len(set(fields))
    for case in ADAPTERS.iterdir():
        assert set(read(case)[0]) <= set(fields)


@pytest.mark.parity
def test_each_field_of_peft_has_a_treatment():
    live()
    import dataclasses

    import peft  # pyright: ignore[reportMissingImports]

    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert fields <= {*APPLIED, *REFUSED, *WITHOUT_EFFECT}
    defaults = peft.LoraConfig().to_dict()
    for field, value in REFUSED.items():
        assert not defaults.get(field) or defaults[field] == value


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((field, {"a": 1}) for field in REFUSED),
        ("bias", "lora_only"),
        ("layer_replication", [[0, 1], [0, 1]]),
        ("trainable_token_indices", [3]),
        ("use_dora", True),
        ("peft_type", "LOHA"),
        ("a_field_of_next_year", True),
        ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "loftq"),
        ("r", 0),
        ("r", "8"),
        ("r", 4),
        ("rank_pattern", {"query": 3}),
        ("rank_pattern", {"query": True}),
        ("rank_pattern", ["query"]),
        ("lora_alpha", None),
        ("lora_alpha", float("nan")),
        ("alpha_pattern", {"(query": 3}),
        ("alpha_pattern", {"query": "3"}),
        ("lora_dropout", "0.1"),
        ("use_rslora", "yes"),
        ("modules_to_save", "classifier"),
        ("modules_to_save", ["LayerNorm"]),
        ("target_modules", 3),
        ("target_modules", "(query"),
        ("target_modules", ["query"]),
        ("target_modules", r".*\.0\..*(query|value)"),
        ("layers_to_transform", ["0"]),
    ],
)
def test_a_value_that_we_lack_is_refused_by_name(field, value, tmp_path, bert):
    folder = altered(tmp_path / "other", CASE, {field: value})
    with pytest.raises(ValueError, match=f"`{field}` in adapter_config.json.*{field}="):
        load_lora(bert, folder)
    folders.same_weights(bert, base_of(CASE))


@pytest.mark.parametrize(
    "fields",
    [
        {"exclude_modules": ["0.attention.self.query"]},
        {"exclude_modules": r"bert\.encoder\.layer\.0\.attention\.self\.query"},
        {"layers_to_transform": 1},
        {"layers_to_transform": [1], "layers_pattern": ["layer"]},
    ],
)
def test_modules_that_the_fields_leave_out_have_no_tensors(fields, tmp_path, bert):
    folder = altered(tmp_path / "other", CASE, fields)
    with pytest.raises(ValueError, match=r"PEFT would leave out .*layer\.0"):
        load_lora(bert, folder)


@pytest.mark.parametrize(
    "fields",
    [
        dict(REFUSED),
        {"use_dora": None, "bias": "", "a_field_of_next_year": False},
        {"task_type": "FEATURE_EXTRACTION", "runtime_config": {"x": 1}},
        {"target_modules": "all-linear"},
        {"target_modules": r".*\.self\.(query|value)"},
        {"exclude_modules": ["key", "dense"], "layers_to_transform": [0, 1]},
        {"alpha_pattern": {"nothing": 3}, "rank_pattern": {"quer": 3}},
    ],
)
def test_a_value_that_changes_nothing_is_accepted(fields, tmp_path):
    model = base_of(CASE)
    load_lora(model, altered(tmp_path / "other", CASE, fields))
    inputs, expected = folders.arrays_of(ADAPTERS / CASE)
    check(model, inputs, expected)


@pytest.mark.parametrize(
    "pattern",
    [
        "query$",
        "^bert.*query",
        "self.query",
        r".*\.layer\.[01]\.attention\.self\.query",
        "query|value$",
    ],
)
def test_patterns_are_those_of_peft(pattern, tmp_path):
    model, other = base_of(CASE), base_of(CASE)
    load_lora(model, altered(tmp_path / "a", CASE, {"alpha_pattern": {pattern: 10}}))

    def doubled(tensors):
        parts = ("query",) if "value" not in pattern else ("query", "value")
        return {
            key: 2 * x if "lora_B" in key and any(y in key for y in parts) else x
            for key, x in tensors.items()
        }

    load_lora(other, altered(tmp_path / "b", CASE, tensors=doubled))
    inputs, _ = folders.arrays_of(ADAPTERS / CASE)
    found, expected = (folders.outputs_of(x, inputs)["logits"] for x in (model, other))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("key", ["layer.1.attention.self.value.lora_A", "classifier.b"])
def test_numbers_that_are_not_finite_are_refused(key, value, tmp_path, bert):
    def damaged(tensors):
        for name, array in tensors.items():
            if key in name:
                array.flat[0] = value
        return tensors

    folder = altered(tmp_path / "other", CASE, tensors=damaged)
    with pytest.raises(ValueError, match=f"must be finite.*{key}"):
        load_lora(bert, folder)
    folders.same_weights(bert, base_of(CASE))


GPT = "gpt2_causal_lm"
BLOCK = "bert.encoder.layer.0.attention.self.key"


@pytest.mark.parametrize(
    ("case", "fields", "shapes", "message"),
    [
        (
            GPT,
            {"target_modules": ["c_attn", "c_fc", "c_proj", "lm_head"]},
            {"lm_head.lora_A.weight": (2, 12), "lm_head.lora_B.weight": (29, 2)},
            "`target_modules` in .*'lm_head', the output layer.*without it",
        ),
        (
            GPT,
            {"target_modules": ["c_attn", "c_fc", "c_proj", "transformer.wpe"]},
            {
                "transformer.wpe.lora_embedding_A": (2, 17),
                "transformer.wpe.lora_embedding_B": (12, 2),
            },
            "`target_modules` in .*'transformer.wpe', which takes no .*[Mm]erge",
        ),
        (
            GPT,
            {"modules_to_save": ["lm_head"]},
            {"lm_head.weight": (29, 12)},
            "`modules_to_save` in .*'lm_head', the out",
        ),
        # PEFT: `save_pretrained(folder, save_embedding_layers=True)`.
        (
            GPT,
            {},
            {"lm_head.weight": (31, 12), "transformer.wte.weight": (31, 12)},
            r"save_embedding_layers.*'lm_head'.*[Mm]erge",
        ),
        (
            CASE,
            {"modules_to_save": ["key"]},
            {f"{BLOCK}.weight": (12, 12), f"{BLOCK}.bias": (12,)},
            r"`modules_to_save` in .*\.query, .*\.key, .*\.value, or none",
        ),
    ],
)
def test_modules_that_we_lack_are_refused_by_name(
    case, fields, shapes, message, tmp_path
):
    added = {
        f"base_model.model.{key}": np.ones(shape, "float32")
        for key, shape in shapes.items()
    }
    folder = altered(tmp_path / "other", case, fields, lambda x: {**x, **added})
    with pytest.raises(ValueError, match=message):
        load_lora(base_of(case), folder)


# Options of PEFT for the committed checkpoints.
LIVE = {
    "ranks": (CASE, {"rank_pattern": {"query": 3}, "alpha_pattern": {"query$": 7}}),
    "rslora": (CASE, {"rank_pattern": {"query": 3}, "use_rslora": True}),
    "expression": (CASE, {"target_modules": r".*\.1\.attention\.self\.(query|key)"}),
    "all linear": ("own_distilbert_classifier", {"target_modules": "all-linear"}),
    "excluded": (
        "roberta_classifier",
        {
            "target_modules": ["query", "dense"],
            "exclude_modules": ["0.attention.self.query", "out_proj"],
        },
    ),
    "layers": (
        CASE,
        {
            "target_modules": ["query", "dense"],
            "layers_to_transform": [1],
            "layers_pattern": "layer",
        },
    ),
    "norms": (CASE, {"modules_to_save": ["LayerNorm"], "task_type": "SEQ_CLS"}),
    "inside a block": (CASE, {"modules_to_save": ["intermediate.dense"]}),
    "rank above the classes": (
        CASE,
        {"r": 8, "target_modules": ["query", "classifier"], "task_type": None},
    ),
    "position norms": ("gpt2_causal_lm", {"modules_to_save": ["ln_f", "wpe"]}),
    "norms of images": (
        "vit_classifier",
        {
            "target_modules": ["q_proj", "projection"],
            "modules_to_save": ["classifier", "layernorm_after"],
            "rank_pattern": {"0.attention.q_proj": 5},
        },
    ),
    "reduction": (
        "swin_classifier",
        {
            "target_modules": ["q_proj", "reduction"],
            "modules_to_save": ["reduction.norm", "fc2"],
            "alpha_pattern": {"reduction": 3},
        },
    ),
    "no bias": ("gpt2_classifier", {"task_type": "SEQ_CLS"}),
    "two towers": (
        "clip_end_token",
        {
            "target_modules": ["q_proj", "k_proj", "text_projection"],
            # PEFT sorts what it writes, so it reads the first in this order.
            "rank_pattern": {".*text_model.*k_proj": 1, "k_proj": 3},
            "modules_to_save": ["visual_projection", "position_embedding"],
        },
    ),
    "heads alike": ("own_distilbert_classifier", {"modules_to_save": ["classifier"]}),
}


@pytest.mark.parity
@deprecated
@pytest.mark.parametrize("name", LIVE)
def test_what_peft_computes(name, tmp_path):
    references = live()
    import peft  # pyright: ignore[reportMissingImports]

    case, options = LIVE[name]
    options = {
        "r": 2,
        "lora_alpha": 5,
        "fan_in_fan_out": case.startswith("gpt"),
        **({"target_modules": ["c_attn"]} if case.startswith("gpt") else {}),
        **({"target_modules": ["q_lin"]} if "distilbert" in case else {}),
        **options,
    }
    theirs = peft.get_peft_model(references.base_of(case), peft.LoraConfig(**options))
    references.randomize(theirs.eval())
    theirs.save_pretrained(tmp_path / "theirs", save_embedding_layers=False)
    inputs = references.inputs_of(theirs.base_model.model)
    if name == "no bias":  # Theirs finds the last token by its id.
        inputs["padding_mask"][:] = 1
    expected = references.outputs_of(theirs, inputs)

    model = base_of(case)
    report = load_lora(model, tmp_path / "theirs")
    check(model, inputs, expected)
    # As many numbers train as in PEFT.
    assert report.num_trained == theirs.get_nb_trainable_parameters()[0]
    save_lora(model, tmp_path / "ours")
    again = peft.PeftModel.from_pretrained(
        references.base_of(case), tmp_path / "ours"
    ).eval()
    check(model, inputs, references.outputs_of(again, inputs))
    assert set(read(tmp_path / "ours")[1]) >= set(read(tmp_path / "theirs")[1])
