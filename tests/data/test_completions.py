"""Prompts and completions as rows, padded and packed: which tokens are learned."""

import keras
import numpy as np
import pytest
from model_cases import create, numpy, tiny
from refusals import refuses

from keras_attn import models
from keras_attn.data import completion_dataset
from keras_attn.losses import SmoothedCrossEntropy
from keras_attn.metrics import Perplexity

END, PAD = 2, 0
PROMPTS = [[11, 12], [21], [31, 32, 33], [], [51, 52]]
COMPLETIONS = [[13], [22, 23, 24], [34, 35, 36, 37, 38], [41, 42], [53, 54]]


def batches(prompts=PROMPTS, completions=COMPLETIONS, **options):
    """All batches: tokens, padding masks, labels and weights."""
    options = {"max_length": 6, "batch_size": 2, "end_token_id": END, **options}
    dataset = completion_dataset(prompts, completions, **options)
    found = [
        (x["token_ids"], x["padding_mask"], y, w)
        for x, y, w in dataset.as_numpy_iterator()
    ]
    assert len(found) == int(dataset.cardinality())
    for batch in found:
        dtypes = [part.dtype.name for part in batch]
        assert dtypes == ["int32", "int32", "int32", "float32"]
    return found


def test_padded_rows_by_hand():
    tokens, real, labels, weights = (
        np.concatenate(parts) for parts in zip(*batches(), strict=True)
    )
    assert tokens.tolist() == [
        [11, 12, 13, 2, 0, 0],
        [21, 22, 23, 24, 2, 0],
        [31, 32, 33, 34, 35, 36],  # The completion is cut, without an end token.
        [41, 42, 2, 0, 0, 0],
        [51, 52, 53, 54, 2, 0],
    ]
    assert labels.tolist() == [
        [12, 13, 2, 0, 0, 0],
        [22, 23, 24, 2, 0, 0],
        [32, 33, 34, 35, 36, 37],
        [42, 2, 0, 0, 0, 0],
        [52, 53, 54, 2, 0, 0],
    ]
    assert weights.tolist() == [
        [0, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 1],
        [1, 1, 0, 0, 0, 0],  # Nothing precedes 41.
        [0, 1, 1, 1, 0, 0],
    ]
    # A token without a label, the end token, is padding.
    assert real.sum(1).tolist() == [3, 4, 6, 2, 4]
    assert (real[:, :1] == 1).all() and (np.diff(real) <= 0).all()


def test_without_an_end_token():
    _, _, labels, weights = batches(end_token_id=None)[0]
    assert labels[0].tolist() == [12, 13, 0, 0, 0, 0]
    assert weights[0].tolist() == [0, 1, 0, 0, 0, 0]


def test_rows_are_as_long_as_the_batch_needs():
    found = batches(pad_to_multiple_of=4, max_length=7, pad_token_id=9)
    assert [batch[0].shape for batch in found] == [(2, 4), (2, 7), (1, 4)]
    assert found[0][0].tolist() == [[11, 12, 13, 2], [21, 22, 23, 24]]
    assert found[1][2][1].tolist() == [42, 2, 9, 9, 9, 9, 9]


@pytest.mark.parametrize("seed", range(5))
def test_packed_rows_have_the_same_pairs(seed):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(100, 200, rng.integers(0, 5)).tolist() for _ in range(23)]
    completions = [rng.integers(200, 300, rng.integers(1, 9)).tolist() for _ in prompts]
    length = 17
    options = {"prompts": prompts, "completions": completions, "max_length": length}
    found = batches(packed=True, batch_size=1, **options)
    wanted = [
        [*prompt, *completion, END]
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    for (tokens,), (real,), (labels,), (weights,) in found:
        count = int(real.sum())
        row = [tokens[0], *labels[:count]]
        assert tokens[:count].tolist() == row[:-1]
        assert (real[:count] == 1).all() and weights[count:].sum() == 0
        # Each pair is whole; completions have tokens of 200 and more.
        for token, weight in zip(labels[:count], weights, strict=False):
            if weight:
                assert token >= 200 or token == END
            if token == END:
                assert weight
        ends = [i for i, token in enumerate(row) if token == END]
        for start, end in zip([0, *(e + 1 for e in ends)], ends, strict=False):
            wanted.remove([int(token) for token in row[start : end + 1]])
        assert ends[-1] == len(row) - 1
    assert not wanted
    padded = batches(batch_size=1, **options)
    assert sum(w.sum() for *_, w in found) == sum(w.sum() for *_, w in padded)
    # As few rows as the tokens allow, or one more.
    total = sum(len(p) + len(c) + 1 for p, c in zip(prompts, completions, strict=True))
    assert len(found) <= -(-total // (length + 1)) + 1 < 0.6 * len(padded)


def test_packed_pairs_are_numbered():
    dataset = batches_of(max_length=10, batch_size=4, packed=True)
    (inputs, *_), *_ = dataset.as_numpy_iterator()
    assert inputs["token_ids"].tolist() == [
        [31, 32, 33, 34, 35, 36, 37, 38, 2, 0],
        [21, 22, 23, 24, 2, 51, 52, 53, 54, 2],
        [11, 12, 13, 2, 41, 42, 2, 0, 0, 0],
    ]
    for row, real, ids in zip(
        inputs["token_ids"], inputs["padding_mask"], inputs["document_ids"], strict=True
    ):
        ends = np.cumsum(row == END) - (row == END)
        assert ids.tolist() == np.where(real, ends + 1, 0).tolist()
    assert "document_ids" not in next(iter(batches_of(packed=False)))[0]


def batches_of(**options):
    options = {"max_length": 20, "batch_size": 8, "end_token_id": END, **options}
    return completion_dataset(PROMPTS, COMPLETIONS, **options)


@pytest.mark.compiled
@pytest.mark.parametrize("name", ["gpt_117m", "gpt2_small", "gpt3_small"])
def test_no_pair_sees_another_one(name):
    """The loss of packed rows is that of padded ones."""
    sizes = {"vocabulary_size": 60, "max_sequence_length": 20}
    model = create(name, num_layers=2, **sizes)
    model.compile(loss=SmoothedCrossEntropy(), jit_compile=False)
    losses = [
        model.evaluate(batches_of(packed=packed), verbose=0) for packed in (False, True)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    # Without the numbers of the pairs it is another one.
    (inputs, labels, _), *_ = batches_of(packed=True).as_numpy_iterator()
    logits = numpy(model(inputs))
    assert logits.shape == (*labels.shape, 60) and inputs.pop("document_ids").max() > 1
    assert abs(logits - numpy(model(inputs))).max() > 0.1


def test_models_that_cannot_tell_texts_apart_refuse_packed_rows():
    model = models.build_gpt_token_classifier(tiny("gpt2_small"), num_classes=3)
    inputs = {name: np.ones((2, 3), "int32") for name in ("token_ids", "padding_mask")}
    ids = inputs["padding_mask"]
    message = r"`document_ids` tells apart texts.*gpt_token_classifier.*'padding_mask'"
    model.compile(loss=SmoothedCrossEntropy(), jit_compile=False)
    for call in (model, model.predict, lambda x: model.fit(x, ids)):
        refuses(message, call, {**inputs, "document_ids": ids})
    with pytest.raises(ValueError, match=r"`document_ids` must have the shape \(2, 3"):
        tiny("gpt2_small")({**inputs, "document_ids": ids[:, :2]})


def test_the_order_differs_by_epoch_and_repeats_by_run():
    def epochs(**options):
        return [
            [batch[0].tolist() for batch in batches(shuffle_seed=1, epoch=e, **options)]
            for e in (0, 1, 0)
        ]

    first, second, again = epochs()
    assert first == again != second
    rows = [sorted(row for batch in found for row in batch) for found in epochs()]
    assert rows[0] == rows[1] == sorted(row for x in batches() for row in x[0].tolist())
    assert all(len(batch) == 2 for batch in epochs(drop_remainder=True)[0])


@pytest.mark.compiled
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_model_learns_the_completions_alone(packed, jit_compile):
    """The loss is that of the tokens of completions, and prompts are not learned."""
    keras.utils.set_random_seed(1)
    sizes = {"num_layers": 1, "hidden_dim": 12, "num_heads": 2, "mlp_dim": 17}
    sizes |= {"vocabulary_size": 60, "max_sequence_length": 13}
    model = models.create("gpt2_small", **sizes, dropout=0.0, attention_dropout=0.0)
    model.compile(
        keras.optimizers.Adam(0.02),
        SmoothedCrossEntropy(),
        weighted_metrics=[Perplexity()],
        jit_compile=jit_compile,
    )
    dataset = batches_of(max_length=13, packed=packed)  # All in one batch.
    (inputs, labels, weights), *_ = dataset.as_numpy_iterator()
    losses = []
    logits = numpy(model(inputs)).astype("float64")
    for b in range(len(labels)):
        for t in range(labels.shape[1]):
            if weights[b, t]:
                powers = np.exp(logits[b, t])
                losses.append(-np.log(powers[labels[b, t]] / powers.sum()))
    # Completions and end tokens, but for the first token of a row.
    assert len(losses) == sum(map(len, COMPLETIONS)) + 5 - 1
    found = model.evaluate(dataset, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert found["perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    history = model.fit(dataset, epochs=60, shuffle=False, verbose=0).history
    assert history["loss"][-1] < 0.3 < 2 < history["loss"][0]
    # What precedes a completion is as unlikely as before: 12 after 11.
    after = numpy(model({name: x[:1] for name, x in inputs.items()}))[0]
    row = inputs["token_ids"][0].tolist()
    place = row.index(11) if 11 in row else row.index(31)
    assert after[place].argmax() != labels[0, place]


def test_wrong_rows_are_named():
    fits = batches(prompts=[[1], [1] * 6, [], [], []])
    assert fits[0][3][1].tolist() == [0] * 5 + [1]
    for options, message in (
        ({"completions": [[1], [2], [3], [], [1]]}, "at least one .*none in row 3"),
        ({"prompts": [[1], [1] * 7, [], [], []]}, "at most 6 .*7 tokens in row 1"),
        ({"prompts": ["Who", *PROMPTS[1:]]}, "token ids; encode the .*'Who' in row 0"),
        ({"completions": [*COMPLETIONS[:4], "Me"]}, "must be lists of token ids"),
        ({"prompts": PROMPTS[1:]}, "and `completions` must have the same"),
    ):
        refuses(f"`{[*options][0]}`.*{message}", batches, **options)
    refuses("must not be empty.*: 0 prompts", batches, prompts=[], completions=[])
    for name in ("max_length", "batch_size", "pad_to_multiple_of"):
        refuses(f"`{name}` must be a positive integer", batches, **{name: 0})
