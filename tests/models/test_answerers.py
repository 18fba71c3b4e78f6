"""Models that answer questions about images, against the equations of their papers."""

import keras
import numpy as np
import pytest
from model_cases import build, create, inputs_for, numpy, outputs_of, tiny

from keras_attn import models
from keras_attn.layers import GlimpseAttention, PositionWeightedSum, WordGuidedAttention
from keras_attn.viz import capture_attention

ASK, SHOW = "vqa_ask_attend_answer", "vqa_show_ask_attend_answer"
BOTH = pytest.mark.parametrize("case", [ASK, SHOW])


def softmax(scores):
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()


def parts_of(model, *names):
    """The weights of layers of a model, as lists."""
    return [
        [weight.astype("float64") for weight in model.get_layer(name).get_weights()]
        for name in names
    ]


def real_words(inputs, row):
    """Numbers of the real words of a question, and its locations, (L, C)."""
    words = inputs["token_ids"][row][inputs["padding_mask"][row]]
    features = inputs["features"][row].astype("float64")
    return words, features.reshape(-1, features.shape[-1])


def padded_inputs(model):
    """Questions of 5 and 2 words between padding on both sides."""
    inputs = inputs_for(model, length=9)
    inputs["padding_mask"] = np.zeros((2, 9), bool)
    inputs["padding_mask"][0, 2:7] = True
    inputs["padding_mask"][1, 1:3] = True
    return inputs


def ask_attend_answer(model, words, places):
    """Equations 2 to 11 of Xu and Saenko, for one image and question."""
    names = ("word_embedding", "question", "attention_embedding", "logits")
    (table,), (w_q, b_q), (w_a, b_a), (w_p, b_p) = parts_of(model, *names)
    w_e, b_e = parts_of(model, "evidence_embedding_0")[0]
    v = [table[word] for word in words]
    question = sum(w_q[t] * v[t] for t in range(len(v))) + b_q
    embedded = [w_a.T @ place + b_a for place in places]
    correlations = np.array([[one @ other for other in embedded] for one in v])
    maps = [softmax(correlations.max(axis=0))]
    evidence = [w_e.T @ place + b_e for place in places]
    output = sum(a * e for a, e in zip(maps[0], evidence, strict=True)) + question
    if "hop_1" in {layer.name for layer in model.layers}:
        w_e2, b_e2 = parts_of(model, "evidence_embedding_1")[0]
        maps.append(softmax(np.array([one @ output for one in evidence])))
        second = [w_e2.T @ place + b_e2 for place in places]
        output = sum(a * e for a, e in zip(maps[1], second, strict=True)) + output
    return w_p.T @ np.maximum(output, 0) + b_p, np.array(maps), correlations


@pytest.mark.parametrize("num_hops", [1, 2])
def test_ask_attend_answer_is_that_of_the_equations(num_hops):
    options = {"return_attention_scores": True, "return_word_correlations": True}
    model = create(ASK, num_hops=num_hops, **options)
    inputs = padded_inputs(model)
    found = outputs_of(model, inputs)
    assert found["attention_scores"].shape == (2, num_hops, 21)
    for row in range(2):
        words, places = real_words(inputs, row)
        logits, maps, correlations = ask_attend_answer(model, words, places)
        np.testing.assert_allclose(found["logits"][row], logits, atol=1e-5)
        np.testing.assert_allclose(found["attention_scores"][row], maps, atol=1e-5)
        mask = inputs["padding_mask"][row]
        by_word = found["word_correlations"][row]
        np.testing.assert_allclose(by_word[mask], correlations, atol=1e-5)
        assert not by_word[~mask].any()


def show_ask_attend_answer(model, words, places):
    """Section 3 of Kazemi and Elqursh, for one image and question.

    The LSTM is PyTorch's cell. The convolution is that of the paper, on each place with
    the whole question appended.
    """
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    names = ("word_embedding", "question", "glimpses", "hidden", "logits")
    (table,), lstm, glimpses, (w_1, b_1), (w_2, b_2) = parts_of(model, *names)
    kernel, recurrent, bias = lstm
    cell = torch.nn.LSTMCell(*kernel.shape[:1], recurrent.shape[0]).double()
    with torch.no_grad():
        # Both have the order input, forget, cell, output.
        for name, value in {
            "weight_ih": kernel.T,
            "weight_hh": recurrent.T,
            "bias_ih": bias,
            "bias_hh": 0 * bias,
        }.items():
            getattr(cell, name).copy_(torch.tensor(value))
        state = torch.zeros(2, 1, recurrent.shape[0]).double()
        for word in words:
            state = cell(torch.tensor(np.tanh(table[word])[None]), tuple(state))
    question = state[0].numpy()[0]
    w_question, bias, w_place, vectors = glimpses
    places = places / np.linalg.norm(places, axis=-1, keepdims=True)
    convolution = np.concatenate([w_place, w_question])
    hidden = [
        np.maximum(convolution.T @ np.concatenate([place, question]) + bias, 0)
        for place in places
    ]
    maps = np.array([softmax(np.array(hidden) @ vector) for vector in vectors.T])
    seen = [sum(a * p for a, p in zip(one, places, strict=True)) for one in maps]
    evidence = np.concatenate([*seen, question])
    return w_2.T @ np.maximum(w_1.T @ evidence + b_1, 0) + b_2, maps


def test_show_ask_attend_answer_is_that_of_the_equations():
    model = create(SHOW, return_attention_scores=True, num_glimpses=3)
    inputs = padded_inputs(model)
    found = outputs_of(model, inputs)
    assert found["attention_scores"].shape == (2, 3, 21)
    for row in range(2):
        logits, maps = show_ask_attend_answer(model, *real_words(inputs, row))
        np.testing.assert_allclose(found["logits"][row], logits, atol=1e-5)
        np.testing.assert_allclose(found["attention_scores"][row], maps, atol=1e-5)


@BOTH
def test_the_scores_are_those_that_are_captured(case):
    inputs = inputs_for(tiny(case))
    captured = capture_attention(tiny(case), inputs)
    scores = outputs_of(tiny(f"{case}-scores"), inputs)["attention_scores"]
    recorded = np.concatenate(list(captured.values()), axis=1)[:, :, 0]
    np.testing.assert_allclose(recorded, scores, atol=1e-6)
    np.testing.assert_allclose(scores.sum(-1), 1, atol=1e-5)
    expected = ["hop_0", "hop_1"] if case == ASK else ["glimpses"]
    assert [path.split("/")[-1] for path in captured] == expected


@BOTH
def test_a_backbone_gives_the_features(case, tmp_path):
    images = keras.Input((12, 28, 3))
    grid = keras.layers.Conv2D(13, 4, strides=4, activation="relu")(images)
    backbone = keras.Model(images, grid)
    model = create(case, backbone=backbone)
    pictures = np.random.default_rng(2).normal(size=(2, 12, 28, 3)).astype("float32")
    inputs = inputs_for(tiny(case))
    of_images = {**inputs, "images": pictures}
    del of_images["features"]
    logits = outputs_of(model, of_images)["logits"]
    same = build(case)
    for layer in same.layers:
        if layer.weights:
            layer.set_weights(model.get_layer(layer.name).get_weights())
    features = numpy(backbone(pictures))
    expected = outputs_of(same, {**inputs, "features": features})["logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(outputs_of(loaded, of_images)["logits"], logits)
    with pytest.raises(ValueError, match="`images` must have the shape"):
        model({**of_images, "images": pictures[:, :-1]})


@BOTH
def test_dropout_is_where_the_paper_has_it_and_follows_the_seed(case):
    model = build(case)
    rates = {
        layer.name: layer.rate
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Dropout)
    }
    expected = {
        ASK: dict.fromkeys(("places_dropout", "answer_dropout"), 0.4),
        SHOW: dict.fromkeys(
            ("word_dropout", "dropout", "evidence_dropout", "hidden_dropout"), 0.5
        ),
    }[case]
    assert rates == expected
    inputs = inputs_for(model)

    def draw(seed):
        keras.utils.set_random_seed(seed)
        return outputs_of(create(case), inputs, training=True)["logits"]

    np.testing.assert_array_equal(draw(1), draw(1))
    assert np.abs(draw(1) - draw(2)).max() > 1e-3


@BOTH
def test_one_word_one_place_one_row(case):
    model = create(case, grid_size=1)
    inputs = inputs_for(model)
    inputs = {
        name: value[:1] if name == "features" else value[:1, :1]
        for name, value in inputs.items()
    }
    assert outputs_of(model, inputs)["logits"].shape == (1, 29)
    (scores, *_) = capture_attention(model, inputs).values()
    np.testing.assert_allclose(scores, 1)


@BOTH
def test_places_of_zeros_are_finite(case):
    """A ReLU may leave nothing of a location, whose norm is 0 then."""
    inputs = inputs_for(tiny(case))
    inputs["features"][:, 0] = 0
    assert np.isfinite(outputs_of(tiny(case), inputs)["logits"]).all()


@pytest.mark.parametrize(
    "case, arguments, message",
    [
        (ASK, {"num_hops": 3}, r"`num_hops` must be one of 1, 2\. Received"),
        (ASK, {"embedding_dim": -1}, "`embedding_dim` must be a positive integer"),
        (ASK, {"max_question_length": 0}, "`max_question_length` must be a positive"),
        (
            SHOW,
            {"vocabulary_size": 1.5},
            "`vocabulary_size` must be a positive integer",
        ),
        (SHOW, {"num_answers": 0}, "`num_answers` must be a positive integer"),
        (SHOW, {"num_glimpses": 0}, "`num_glimpses` must be a positive integer"),
        (SHOW, {"grid_size": (3, 0)}, "`grid_size` must be a positive integer"),
        (SHOW, {"dropout": 1.0}, r"`dropout` must be a probability in \[0, 1\)"),
    ],
)
def test_sizes_out_of_range_are_refused(case, arguments, message):
    with pytest.raises(ValueError, match=message):
        build(case, **arguments)


def test_the_layers_refuse_other_shapes():
    words, places = np.ones((2, 3, 5)), np.ones((2, 7, 11))
    with pytest.raises(ValueError, match="`key` must be as wide as `query`"):
        WordGuidedAttention()(words, places, places)
    with pytest.raises(ValueError, match="`padding_mask` must have the shape"):
        WordGuidedAttention()(
            words, places, places[..., :5], padding_mask=np.ones((2, 4))
        )
    with pytest.raises(ValueError, match="`query` must have 2 axes"):
        GlimpseAttention(3)(words, places)
    with pytest.raises(ValueError, match="`inputs` are longer than `max_sequence"):
        PositionWeightedSum(2)(words)


def test_a_keras_mask_is_a_padding_mask():
    ids = np.array([[1, 2, 0], [3, 0, 0]])
    words = keras.layers.Embedding(5, 7, mask_zero=True)(ids)
    pooled = PositionWeightedSum(3)(words)
    expected = PositionWeightedSum(3)(numpy(words), padding_mask=ids > 0)
    np.testing.assert_allclose(numpy(pooled), numpy(expected), atol=1e-6)
    places = np.random.default_rng(0).normal(size=(2, 4, 7)).astype("float32")
    seen = WordGuidedAttention()(words, places, places)
    wanted = WordGuidedAttention()(numpy(words), places, places, padding_mask=ids > 0)
    np.testing.assert_allclose(numpy(seen), numpy(wanted), atol=1e-6)


def test_the_published_sizes_have_the_published_grids():
    shapes = {name: models.describe(name).inputs["features"] for name in (ASK, SHOW)}
    assert shapes[ASK].startswith("(B, 7, 7, 1024)")
    assert shapes[SHOW].startswith("(B, 14, 14, 2048)")
