"""The registry: names, cards, and published numbers of parameters."""

import dataclasses
import functools
import re
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from families.bert import bert
from families.detection import mask_head, pyramid_detector
from families.fcn import fcn_resnet
from families.gpt import gpt
from families.resnet import basic_resnet, resnet
from families.rnnsearch import SCORES, rnnsearch
from families.vit import vit
from model_cases import CASES, DECODERS, GRAPH_OF, GRAPHS, TINY, first_of_families, tiny
from model_contract import each_of
from model_family import SOURCE_V, A, E, M, U, V, dense

from keras_attn import models
from keras_attn.models.catalog import cards, registry


def test_every_model_has_a_tiny_size_and_a_count():
    missing = "`parameters` of a graph in tests/families/ must have the new name"
    assert models.list_models() == sorted(COUNTS), missing
    assert len(COUNTS) == sum(len(graph.parameters) for graph in GRAPHS.values())


def test_a_graph_is_one_of_its_models():
    for name, graph in GRAPHS.items():
        assert graph.name == name
        assert name in graph.parameters
        pairs = graph.pairs or ()
        of_graph = {case for case, made in CASES.items() if made.name == name}
        assert {*graph.exported, *pairs} <= of_graph
        assert set(pairs) <= set(DECODERS)


def test_list_models_takes_a_pattern():
    assert models.list_models("rnnsearch_*") == ["rnnsearch_30", "rnnsearch_50"]
    assert models.list_models("nothing*") == []


@pytest.mark.parametrize("name", TINY)
def test_cards_are_complete_and_match_the_model(name):
    card = models.describe(name)
    assert card.name == name
    for field in ("title", "paper", "task"):
        assert getattr(card, field).strip(), field
    assert card.notes or card.scores or card.training, "nothing but the paper"
    # OpenAI published these two on its own site.
    assert "arXiv:" in card.paper or name.startswith(("gpt_", "gpt2_"))
    assert str(card.year) in card.paper
    root = Path(models.__file__).parent
    assert (root / f"{card.family}.py").is_file()
    assert hash(card) == hash(models.describe(name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.year = 1
    model = tiny(GRAPH_OF[name])
    assert set(card.inputs) == {tensor.name for tensor in model.inputs}
    outputs = model.output
    if not isinstance(outputs, dict):
        outputs = {output: outputs for output in card.outputs}
    assert set(card.outputs) == set(outputs)
    for output, tensor in outputs.items():
        (axes,) = re.findall(r"^\((.*?)\)", card.outputs[output])
        assert len(tensor.shape) == len([axis for axis in axes.split(",") if axis])


def test_misspelt_names_suggest_similar_ones():
    for function in (models.describe, models.create, models.count_parameters):
        message = (
            "`name` must be a registered model: did you mean rnnsearch_.*'rnnsearch5"
        )
        with pytest.raises(ValueError, match=message):
            function("rnnsearch50")
    with pytest.raises(ValueError, match=r"model: `list_models\(\)` lists them"):
        models.describe("qqqqqq")


def test_a_name_is_registered_once():
    again = {"50": models.describe("rnnsearch_50")}
    with pytest.raises(
        ValueError, match="`cards` must have names that are.*name='rnns"
    ):
        registry.registered(again)(models.build_rnnsearch)


_cards = functools.partial(
    cards.model_cards,
    "{variant}",
    **{"title": "", "task": "", "paper": "2017", "inputs": {}, "outputs": {}},
)


def test_a_paper_has_a_year():
    with pytest.raises(ValueError, match="`paper` must contain its year. Received: p"):
        _cards({"base": None}, paper="in press")


def test_published_figures_are_of_a_variant():
    column = cards.scored("BLEU", "test", "table 2", {"big": 28.4})
    with pytest.raises(ValueError, match="`scores` must be of .*, base. Received: big"):
        _cards({"base": 1}, scores=[column])


def test_published_figures_are_numbers_with_their_source():
    scored = trained = 0
    for name in models.list_models():
        card = models.describe(name)
        for score in card.scores:
            assert 0 < score.value < 1000 and score.measure
            assert (score.measure, score.setting) not in {
                (other.measure, other.setting)
                for other in card.scores
                if other is not score
            }
        scored += bool(card.scores)
        if card.training is None:
            continue
        trained += 1
        figures = dataclasses.asdict(card.training)
        assert figures.pop("data") and figures.pop("source")
        hardware = figures.pop("hardware")
        assert hardware or figures["devices"] is None
        for field, value in figures.items():
            assert value is None or value > 0, (name, field)
        # From the first months on one device to the largest run.
        assert figures["tokens"] is None or 1e8 < figures["tokens"] < 1e13
        assert figures["images"] is None or 1e7 < figures["images"] < 1e11
        assert figures["hours"] is None or 1 <= figures["hours"] <= 2000
    assert scored > 70 and trained > 50


def test_layers_width_and_heads_are_those_of_the_variant():
    def sizes(name):
        card = models.describe(name)
        return card.layers, card.width, card.heads

    assert sizes("gpt3_175b") == (96, 12_288, 96)
    assert sizes("transformer_big") == (6, 1024, 16)
    assert sizes("swin_tiny") == ((2, 2, 6, 2), 96, (3, 6, 12, 24))
    assert sizes("convnext_tiny") == ((3, 3, 9, 3), (96, 192, 384, 768), None)
    assert sizes("rnnsearch_50") == (None, 1000, None)
    assert sizes("vgg16") == (None, (64, 128, 256, 512, 512), None)


def test_every_variant_has_a_card():
    variants = {}
    for name in models.list_models():
        entry = registry.entry(name)
        variants.setdefault(entry.builder, set()).add(entry.variant)
    for build, registered in variants.items():
        with pytest.raises(ValueError, match="`variant` must be") as error:
            build("no variant")
        expected = str(error.value).partition("Received")[0]
        assert set(re.findall(r"'([^']+)'", expected)) == registered, build.__name__


def test_the_folder_is_imported_by_one_name_only():
    code = Path(models.__file__).read_text()
    with pytest.raises(ImportError, match="import it by that name.*here as `models`"):
        exec(code, {"__name__": "models"})


def memory_in_use():
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0


def test_counting_allocates_nothing_and_restores_the_state():
    models.count_parameters("rnnsearch_50", **TINY["rnnsearch_50"])  # imports
    before = memory_in_use()
    assert models.count_parameters("seq2seq_sutskever") == 384_112_000
    assert memory_in_use() - before < 200e6  # The weights would be 1,536e6.
    # The next model has real weights, not placeholders.
    model = models.create("rnnsearch_50", **TINY["rnnsearch_50"], dropout=0.5)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


COUNTS = {
    name: count for graph in GRAPHS.values() for name, count in graph.parameters.items()
}
# Number of layers of large models with equal blocks.
LAYERS = {
    name: layers for graph in GRAPHS.values() for name, layers in graph.layers.items()
}


def test_formulas_agree_with_counts_and_publications():
    assert bert(768, 12) == COUNTS["bert_base"]
    assert bert(1024, 24) == COUNTS["bert_large"]
    assert gpt(50_257, 1024, 768, 12) == COUNTS["gpt2_small"]
    assert gpt(40_478, 512, 768, 12, norms=False) == COUNTS["gpt_117m"]
    assert vit(768, 12, 16) == COUNTS["vit_base_patch16"]
    # Published without running means and variances.
    for name, blocks in (("resnet50", (3, 4, 6, 3)), ("resnet101", (3, 4, 23, 3))):
        count = resnet(*blocks) + dense(2048, 1000)
        assert count == models.describe(name).parameters
        card = models.describe(f"fcn_{name}")
        assert card.parameters == fcn_resnet(*blocks)
    for name, count in (
        ("resnet18", basic_resnet(2, 2, 2, 2) + dense(512, 1000)),
        ("resnet34", basic_resnet(3, 4, 6, 3) + dense(512, 1000)),
        ("resnet152", resnet(3, 8, 36, 3) + dense(2048, 1000)),
    ):
        assert count == models.describe(name).parameters
    # Published without norms, which are frozen.
    for name, blocks, more in (
        ("faster_rcnn_resnet50", (3, 4, 6, 3), 0),
        ("faster_rcnn_resnet101", (3, 4, 23, 3), 0),
        ("mask_rcnn_resnet50", (3, 4, 6, 3), mask_head()),
    ):
        count = pyramid_detector(*blocks, norm=0) + more
        assert count == models.describe(name).parameters
    # Published with two layers of each co-attention that nothing calls.
    uncalled = 6 * (dense(1024, 1024) + dense(1024, 768))
    assert models.describe("vilbert_base").parameters == 246_726_656 - uncalled
    assert COUNTS["vilbert_base"] == 246_726_656 - uncalled
    assert COUNTS["vln_bert_base"] == 235_720_192
    # The published counts are rounded: "117M" and "345M" of GPT-2 leave out parts.
    for name, count in COUNTS.items():
        published = models.describe(name).parameters
        assert published is None or abs(count / published - 1) < 0.09, name


@pytest.mark.parametrize("name", first_of_families(COUNTS))
def test_published_sizes_have_the_published_parameters(name):
    layers = LAYERS.get(name)
    if COUNTS[name] < 5e7 or layers is None:
        counted = models.count_parameters(name)
    else:
        # Layers are equal, and twelve of them take a second to count.
        one, two = (models.count_parameters(name, num_layers=n) for n in (1, 2))
        counted = one + (layers - 1) * (two - one)
    assert counted == COUNTS[name]


@pytest.mark.parametrize("score", SCORES[1:])
def test_each_score_has_the_parameters_of_its_formula(score):
    counted = tiny(f"rnnsearch_50-{score}").count_params()
    assert counted == rnnsearch(SOURCE_V, V, E, U, A, M, score)


@each_of(
    [case for case in CASES if not CASES[case].head], lambda case: CASES[case].options
)
def test_counting_equals_building(case):
    name, options = CASES[case].name, CASES[case].options
    counted = models.count_parameters(name, **{**TINY[name], **options})
    assert counted == tiny(case).count_params()
    assert counted == sum(w.size for w in tiny(case).get_weights())
