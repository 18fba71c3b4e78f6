"""Examples of what attention is for: their figures by hand, and a run with small sizes.

And the table of the "X, attend and Y", whose rows are checked against the registry.
"""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import EXAMPLES, assert_drawn

from keras_attn import models, viz

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.fixture
def scale(example_module):
    return example_module("why_scale")


def test_entropy_and_gradient_of_a_softmax(scale):
    scores = np.random.default_rng(0).normal(size=(3, 7))
    weights = scale.softmax(scores)
    for row, norm in zip(weights, scale.gradient_norm(weights), strict=True):
        jacobian = np.diag(row) - np.outer(row, row)
        assert norm == pytest.approx(np.linalg.norm(jacobian), rel=1e-12)
    keys = np.random.default_rng(1).normal(size=(2, 7, 5))
    queries = np.random.default_rng(2).normal(size=(2, 3, 5))
    weights = scale.softmax(queries @ keys.swapaxes(1, 2) / 4)
    norms = scale.query_gradient_norm(weights, keys, 1 / 4)
    for row, own, norm in zip(weights, keys, norms, strict=True):
        jacobians = [(np.diag(a) - np.outer(a, a)) @ own / 4 for a in row]
        np.testing.assert_allclose(norm, [*map(np.linalg.norm, jacobians)], rtol=1e-12)
    same = scale.softmax(np.zeros((1, 7)))
    assert scale.entropy(same) == pytest.approx(np.log(7))
    assert scale.entropy(scale.softmax(np.array([[0.0, -900.0]]))) == 0
    # Where 1 - a rounds to 0. Of weights 1 - x and x all derivatives are x (1 - x).
    (tiny,) = scale.gradient_norm(scale.softmax(np.array([[0.0, -50.0]])))
    assert tiny == pytest.approx(2 * np.exp(-50), rel=1e-9)


def test_scores_have_the_variance_of_the_theory(scale):
    found = scale.measure(256, 53, 300, seed=0)
    assert found["variance"] == pytest.approx(256, rel=0.05)
    entropy, gradient, of_query = found["scaled"]
    assert entropy.shape == gradient.shape == of_query.shape == (300,)
    assert entropy.mean() == pytest.approx(np.log(53) - 0.5, rel=0.02)
    # 1 / √D cancels the D numbers of a key.
    for values in (gradient, of_query):
        assert values.mean() == pytest.approx(np.sqrt(np.e / 53), rel=0.2)
    assert found["plain"][0].mean() < 0.1 * entropy.mean()
    assert np.median(found["plain"][1]) < 0.3 * np.median(gradient)
    # Few queries, but large ones: the header's last paragraph.
    assert found["plain"][2].mean() > 5 * of_query.mean()


@pytest.mark.runs
def test_why_scale(example, tmp_path):
    printed = example("why_scale", "--smoke", "--run-dir", tmp_path)
    rows = re.findall(r"^\| (\d+) \| [\d.]+ \| [\d.]+ \| .* \|$", printed, re.M)
    assert rows == ["4", "16"]
    assert_drawn(tmp_path, "why_scale")
    with pytest.raises(SystemExit, match="--keys must be at least 2"):
        example("why_scale", "--keys", 1, "--run-dir", tmp_path)


@pytest.fixture
def it(example_module):
    return example_module("it")


def test_the_words_of_every_pair_are_found(it):
    assert len(it.PAIRS) == len({pair[4:] + pair[:4] for pair in it.PAIRS}) >= 20
    for pair in it.PAIRS:
        assert len({*pair[:4]}) == 4
        for text in it.sentences_of(pair, pair[2:4]):
            words = text.lower().replace("'", " ' ").rstrip(".").split()
            for word in ("it", *pair[:2]):
                assert len(it.pieces_of(word, ["[CLS]", *words])) == 1
    tokens = "the ani ##mal saw it".split()
    assert it.pieces_of("animal", tokens) == [1, 2]
    for word in ("ani", "mal", "them"):
        with pytest.raises(SystemExit, match=f"error: '{word}' must occur once"):
            it.pieces_of(word, tokens)


def test_turns_in_both_directions(it):
    first = np.array([[0.3, 0.1, -0.2, 0.4]])
    second = np.array([[-0.1, 0.2, 0.5, -0.6]])
    turns = it.Margins(first, second).turns()
    # Right, none, wrong, right: as large as the smaller of the two margins.
    np.testing.assert_allclose(turns, [[0.1, 0, -0.2, 0.4]])
    weights = np.array([[0.1, 0.2, 0.3, 0.4, 0.0]])
    tokens = "the ani ##mal street it".split()
    pair = ("animal", "street", "tired", "wide", "")
    np.testing.assert_allclose(it.margin(pair, tokens, weights), [0.2 + 0.3 - 0.4])


def test_verdicts_on_planted_heads(it, capsys):
    random = np.random.default_rng(1)
    noise = [random.normal(size=(24, 11)) for _ in range(2)]
    names = [f"head {head}" for head in range(11)]

    def verdict(share):
        first, second = (each.copy() for each in noise)
        rows = slice(int(24 * share))
        first[rows, 3], second[rows, 3] = 5.0, -5.0
        first[rows.stop :, 3] = second[rows.stop :, 3] = 1.0
        margins = it.Margins(first, second)
        found = it.report(names, margins, it.Margins(*noise), 500, random)
        if share:
            assert it.best_head(margins.turns()) == 3
        return found, capsys.readouterr().out

    assert verdict(1.0)[0] == "holds"
    found, printed = verdict(0.4)
    assert found == "holds in part"
    assert re.search(r"^\| head 3 \| 9 \| 0 \| 38% \|", printed, re.M)
    assert it.report(names, *[it.Margins(*noise)] * 2, 500, random) == "does not hold"


def test_the_head_is_chosen_without_the_pair(it):
    turns = np.array([[9.0, 0.1], [0.0, 0.1], [0.0, 0.1]])
    assert it.best_head(turns) == 0
    # Without the first pair the other head is best.
    np.testing.assert_allclose(it.chosen_without(turns), [0.1, 0.0, 0.0])


@pytest.mark.runs
@pytest.mark.variation
def test_it(example, tmp_path):
    pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
    pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
    printed = example("it", "--smoke", "--run-dir", tmp_path)
    assert "36 pairs, 4 heads. Of all pairs and heads" in printed
    assert re.search(
        r"^The claim (holds|holds in part|does not hold) for", printed, re.M
    )
    assert_drawn(tmp_path, "it")


@pytest.fixture
def far(example_module):
    return example_module("far_positions")


def test_signals_and_their_answers(far):
    signals, answers, centers, heights = far.make_signals(200, seed=0)
    rows = np.arange(200)[:, None]
    own = signals[rows, centers, 0]
    assert 0.2 <= own.min() and own.max() <= 1
    is_box = np.isclose(signals[rows, centers + 1, 0], own)
    assert (is_box.sum(1) == 2).all()
    assert (centers[:, 1] < 32).all() and (centers[:, 2] >= 32).all()
    left = own[:, :2].mean(1)
    np.testing.assert_allclose(heights["half"][:, 0], left, rtol=1e-6)
    found = answers["half"][rows[:, 0], centers[:, 1], 0]
    np.testing.assert_allclose(found, left, rtol=1e-6)
    for chosen in (is_box, ~is_box):
        pairs = heights["shape"][chosen].reshape(-1, 2)
        expected = own[chosen].reshape(-1, 2).mean(1, keepdims=True)
        np.testing.assert_allclose(pairs, expected.repeat(2, 1), rtol=1e-6)
    # A convolution at a bump's end does not see the next bump: the header's figures.
    assert np.diff(centers).min() - 2 * far.RADIUS >= 6
    doc = far.__doc__ or ""
    many = far.make_signals(4000, seed=1)
    alone, unknown = far.baselines(many[0], many[2], many[3]["half"])
    assert alone == pytest.approx(far.ALONE, rel=0.05)
    assert unknown == pytest.approx(far.UNKNOWN, rel=0.05)
    assert f"{far.ALONE:.3f}" in doc and f"{far.UNKNOWN:.3f}" in doc
    assert far.error_of(many[1]["half"], many[2], many[3]["half"]) < 1e-6


def test_how_far_each_model_sees(far):
    signals, *_ = far.make_signals(1, seed=0)
    changed = signals.copy()
    changed[:, -1] += 1
    for kind in far.MODELS:
        model = far.build(kind, 24)
        moved = np.abs(model(changed) - model(signals))[0, :, 0] > 0
        assert moved[-1]
        assert moved[:-5].any() == moved[0] == (kind != "convolution"), kind


@pytest.mark.runs
@pytest.mark.variation
def test_far_positions(example, tmp_path):
    printed = example("far_positions", "--smoke", "--run-dir", tmp_path)
    rows = re.findall(r"^\| (shape|half) \| (.*?) \| [\d,]+ \| \d+ \| 0", printed, re.M)
    kinds = ["convolution", "+ dilation", "+ attention", "+ positions"]
    assert rows == [(task, kind) for task in ("shape", "half") for kind in kinds]
    assert_drawn(tmp_path, "far_positions")


# What a model of each task attends to.
ATTENDED = {
    "image captioning": "places of an image, for each word",
    "visual question answering": "places of an image, ",
    "speech recognition": "moments of speech",
    "navigation": "words of the instruction",
    "human-robot interaction": "cameras' frames",
    "text recognition": "places of the image of a word",
}


def test_the_table_of_x_attend_and_y():
    text = (DOCS / "see.md").read_text("utf-8")
    text = text[text.index("## X, attend and Y") :]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text[: text.index("\n## In a shell")].splitlines()
        if line.startswith("| [")
    ]
    assert sorted(row[1].strip("`") for row in rows) == models.list_models("*attend*")
    for title, name, builder, paper, attends_to, script, picture in rows:
        card = models.describe(name.strip("`"))
        assert paper == card.paper
        assert ATTENDED[card.task] in attends_to
        assert ("glimpses" in attends_to) == ("glimpses" in card.title)
        words = re.findall(r"\w+", title.partition("]")[0].lower())
        assert [word for word in words if word != "and"] == (
            card.name.removeprefix("caption_").removeprefix("vqa_").split("_")
        )
        build = getattr(models, builder.strip("`"))
        assert builder == f"`{build.__name__}`"
        assert name.strip("`").endswith(build.__name__.removeprefix("build_"))
        # The page that the title links to is about it, and so is the example.
        page = (DOCS / title.partition("](")[2].strip(")")).read_text("utf-8")
        assert card.name in page or build.__name__ in page, title
        source = (EXAMPLES / script.strip("`")).read_text("utf-8")
        assert build.__name__ in source or card.name in source, script
        plot = re.findall(r"`(\w+)`", picture)[0]
        assert inspect.isfunction(getattr(viz, plot))
        assert plot in source, (script, plot)
