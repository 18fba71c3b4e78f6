"""Models that answer questions about images, against the equations of their papers."""

import keras
import numpy as np
import pytest
from attention_reference import softmax
from lstm_reference import numpy_step
from model_cases import build, create, inputs_for, outputs_of, tiny

from keras_attn.layers import PositionWeightedSum, WordGuidedAttention
from keras_attn.viz import capture_attention

ASK, SHOW = "vqa_ask_attend_answer", "vqa_show_ask_attend_answer"
BOTH = pytest.mark.parametrize("case", [ASK, SHOW])


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

    The convolution is that of the paper, on each place with the whole question
    appended.
    """
    names = ("word_embedding", "question", "glimpses", "hidden", "logits")
    (table,), lstm, glimpses, (w_1, b_1), (w_2, b_2) = parts_of(model, *names)
    question = memory = np.zeros(len(lstm[1]))
    for word in words:
        question, memory = numpy_step(lstm, np.tanh(table[word]), question, memory)
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


def test_what_these_models_alone_refuse():
    with pytest.raises(ValueError, match=r"`num_hops` must be one of 1, 2\. Received"):
        build(ASK, num_hops=3)
    words, places = np.ones((2, 3, 5)), np.ones((2, 7, 11))
    with pytest.raises(ValueError, match="`key` must be as wide as `query`"):
        WordGuidedAttention()(words, places, places)
    with pytest.raises(ValueError, match="`inputs` must have a length of at most 2"):
        PositionWeightedSum(2)(words)
