"""The list of models, their cards, and their published sizes."""

import dataclasses
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from decoding.tiny_models import (
    CASES,
    SOURCE_V,
    TINY,
    A,
    E,
    M,
    U,
    V,
    logits_of,
    make_inputs,
)

from keras_attn import models
from keras_attn.models import registry, seq2seq

RECURRENT = 64_032_000


def test_every_model_has_a_tiny_size():
    assert models.list_models() == sorted(TINY), "give the new name an entry in TINY"


def test_list_models_takes_a_pattern():
    assert models.list_models("rnnsearch_*") == ["rnnsearch_30", "rnnsearch_50"]
    assert models.list_models("nothing*") == []


@pytest.mark.parametrize("name", TINY)
def test_a_card_is_complete_and_says_what_the_model_takes(name):
    card = models.describe(name)
    assert card.name == name
    for field in ("title", "paper", "task", "notes"):
        assert getattr(card, field).strip(), field
    assert "arXiv:" in card.paper
    assert str(card.year) in card.paper
    root = Path(registry.__file__).parent
    assert (root / f"{card.family}.py").is_file()
    assert hash(card) == hash(models.describe(name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.year = 1
    model = models.create(name, **TINY[name])
    assert set(card.inputs) == {tensor.name for tensor in model.inputs}
    assert set(card.outputs) == {"logits"}


def test_a_misspelt_name_is_answered_with_the_nearest():
    for function in (models.describe, models.create, models.count_parameters):
        with pytest.raises(
            ValueError,
            match=r"`name` is no model.* did you mean rnnsearch_.*`list_models\(\)` "
            r"names them all. Received: name='rnnsearch50'",
        ):
            function("rnnsearch50")
    with pytest.raises(ValueError, match=r"keras_attn: `list_models\(\)` names them"):
        models.describe("qqqqqq")


def test_a_misspelt_override_is_a_type_error():
    with pytest.raises(TypeError, match="hiden_dim"):
        models.create("rnnsearch_50", hiden_dim=3)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already. Received: name='rnns"):
        registry.register(models.describe("rnnsearch_50"), seq2seq.build_rnnsearch, "")


def test_an_unknown_variant_is_answered_with_those_there_are():
    with pytest.raises(
        ValueError, match="`variant` must be one of '30', '50'. Received: variant='40'"
    ):
        models.build_rnnsearch("40")
    with pytest.raises(
        ValueError, match="`score` must be one of 'additive', 'dot'.*score='cosine'"
    ):
        models.build_rnnsearch(score="cosine")


def test_the_folder_is_imported_by_one_name_only():
    code = Path(registry.__file__).with_name("__init__.py").read_text()
    with pytest.raises(ImportError, match="import it by that name.*here as `models`"):
        exec(code, {"__name__": "models"})


# The published sizes, derived from the papers' equations with a bias for each. A gate
# of a recurrent unit has the weights of `W x + R h + b`.


def gate(inputs, units):
    return units * (inputs + units + 1)


def dense(inputs, outputs):
    return (inputs + 1) * outputs


def sutskever(source, target, e, u, layers):
    """LSTMs of four gates; the first layer reads embeddings, the others states."""
    stack = 4 * gate(e, u) + (layers - 1) * 4 * gate(u, u)
    return (source + target) * e + 2 * stack + dense(u, target)


def readout(state, e, context, m, target):
    """Maxout over 2m units of [state; embedding; context], then the vocabulary."""
    return dense(state + e + context, 2 * m) + dense(m, target)


def context(source, target, e, u, m):
    return (
        (source + target) * e
        + 3 * gate(e, u)  # the encoder
        + dense(u, u)  # s_0
        + 3 * gate(e + u, u)  # the decoder reads [y; c]
        + readout(u, e, u, m, target)
    )


def rnnsearch(source, target, e, u, a, m, score="additive"):
    wide = u if score in ("dot", "scaled_dot") else 2 * u
    attention = {
        "additive": u * a + wide * a + a,
        "general": u * wide,
        "linear": u + wide,
    }.get(score, 0)
    return (
        (source + target) * e
        + 2 * 3 * gate(e, u)
        + dense(u, u)
        + attention
        + 3 * gate(e + wide, u)
        + readout(u, e, wide, m, target)
    )


def test_sutskever_has_384_million_parameters_of_which_64_recurrent():
    assert 2 * 4 * 4 * gate(1000, 1000) == RECURRENT
    assert sutskever(160_000, 80_000, 1000, 1000, 4) == 384_112_000
    assert round(384_112_000, -6) == models.describe("seq2seq_sutskever").parameters


def memory_in_use():
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0


def test_counting_allocates_nothing_and_leaves_nothing_behind():
    models.count_parameters("rnnsearch_50", **TINY["rnnsearch_50"])  # imports
    before = memory_in_use()
    assert models.count_parameters("seq2seq_sutskever") == 384_112_000
    assert memory_in_use() - before < 200e6  # The weights would be 1,536e6.
    # And what is built next has weights, not placeholders.
    model = models.create("rnnsearch_50", **TINY["rnnsearch_50"], dropout=0.5)
    assert all(isinstance(w, np.ndarray) for w in model.get_weights())
    assert np.isfinite(logits_of(model, make_inputs())).all()


def test_the_published_sizes_are_those_of_the_formulas():
    count = models.count_parameters
    assert count("rnnsearch_50") == rnnsearch(30_000, 30_000, 620, 1000, 1000, 500)
    assert count("rnnsearch_30") == count("rnnsearch_50") == 80_442_000
    assert count("seq2seq_context") == context(15_000, 15_000, 100, 1000, 500)
    larger = count("rnnsearch_50", hidden_dim=1009, source_vocabulary_size=9)
    assert larger == rnnsearch(9, 30_000, 620, 1009, 1000, 500)


FORMULAS = {
    "rnnsearch_30": rnnsearch(SOURCE_V, V, E, U, A, M),
    "rnnsearch_50": rnnsearch(SOURCE_V, V, E, U, A, M),
    "rnnsearch_50-dot": rnnsearch(SOURCE_V, V, E, U, A, M, "dot"),
    "rnnsearch_50-dropout": rnnsearch(SOURCE_V, V, E, U, A, M),
    "rnnsearch_50-general": rnnsearch(SOURCE_V, V, E, U, A, M, "general"),
    "rnnsearch_50-linear": rnnsearch(SOURCE_V, V, E, U, A, M, "linear"),
    "rnnsearch_50-scaled_dot": rnnsearch(SOURCE_V, V, E, U, A, M, "scaled_dot"),
    "rnnsearch_50-scores": rnnsearch(SOURCE_V, V, E, U, A, M),
    "seq2seq_context": context(SOURCE_V, V, E, U, M),
    "seq2seq_sutskever": sutskever(SOURCE_V, V, E, U, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_counting_equals_building(case):
    name, options = CASES[case]
    counted = models.count_parameters(name, **TINY[name], **options)
    built = models.create(name, **TINY[name], **options)
    assert counted == built.count_params() == FORMULAS[case]
    assert counted == sum(w.size for w in built.get_weights())
