"""Show, attend and read against the paper's equations, and how it reads."""

import numpy as np
import pytest
from attention_reference import softmax
from lstm_reference import numpy_step
from model_cases import create, full_passes, logits_of, numpy, outputs_of
from model_family import T, U, V

from keras_attn import models
from keras_attn.decoding import generate

WIDTHS = (26, 13, 1, 22)


@pytest.fixture(scope="module")
def reader():
    """A tiny model for images of any width that also returns where it looks."""
    return create("show_attend_read-any_width", widths=True)


@pytest.fixture(scope="module")
def words():
    """Images of different widths, with noise in their padding."""
    rng = np.random.default_rng(4)
    return {
        "images": rng.normal(size=(4, 19, 26, 3)).astype("float32"),
        "widths": np.array(WIDTHS, "int32"),
        "decoder_token_ids": rng.integers(1, V, (4, T)).astype("int32"),
    }


def convolution(image, kernel):
    """A convolution of one image (H, W, C), with zeros around it."""
    size = len(kernel)
    padded = np.pad(image, [(size // 2, size // 2)] * 2 + [(0, 0)])
    rows, columns, _ = image.shape
    return sum(
        padded[p : p + rows, q : q + columns] @ kernel[p, q]
        for p in range(size)
        for q in range(size)
    )


def pooled(image, rows, columns):
    """Maxima of windows, of which the last may be smaller."""
    height, width, _ = image.shape
    return np.array(
        [
            [
                image[i : i + rows, j : j + columns].max((0, 1))
                for j in range(0, width, columns)
            ]
            for i in range(0, height, rows)
        ]
    )


def resnet(weights, image):
    """The map of one image without padding: table 1."""

    def normed(hidden, name):
        hidden = convolution(hidden, weights[f"{name}_conv/kernel"])
        gamma, beta, mean, variance = (
            weights[f"{name}_norm/{part}"]
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        return gamma * (hidden - mean) / np.sqrt(variance + 1e-5) + beta

    def relu(hidden):
        return np.maximum(hidden, 0)

    hidden = relu(normed(relu(normed(image, "stem_0")), "stem_1"))
    for stage, pooling in enumerate(((2, 2), (2, 2), (2, 1), (1, 1))):
        hidden = pooled(hidden, *pooling)
        block = f"stage_{stage}_block_0"
        shortcut = hidden
        if f"{block}_shortcut_conv/kernel" in weights:
            shortcut = normed(hidden, f"{block}_shortcut")
        hidden = normed(relu(normed(hidden, f"{block}_0")), f"{block}_1")
        hidden = relu(normed(relu(hidden + shortcut), f"stage_{stage}"))
    return hidden


def read(weights, image, tokens):
    """Logits (T, V) and probabilities (T, h, w) of one image without padding."""

    def lstms(side):
        return [
            [
                weights[f"{side}_{layer}/{side}_{layer}_cell/{part}"]
                for part in ("kernel", "recurrent_kernel", "bias")
            ]
            for layer in (0, 1)
        ]

    def run(cells, inputs):
        """The states h of the last layer."""
        states, found = [(np.zeros(U), np.zeros(U)) for _ in cells], []
        for x in inputs:
            for layer, cell in enumerate(cells):
                states[layer] = numpy_step(cell, x, *states[layer])
                x = states[layer][0]
            found.append(x)
        return found

    v = resnet(weights, image)
    rows, columns, _ = v.shape
    word = run(lstms("encoder"), v.max(0))[-1]
    embedded = weights["embedding/embeddings"][tokens]
    states = run(lstms("decoder"), [word, *embedded])[1:]
    u, w_h, w_e = (
        weights[f"attention/{part}"]
        for part in ("key/kernel", "query/kernel", "score_vector")
    )
    logits, maps = [], []
    for state in states:
        energies = np.zeros((rows, columns))
        for i, j in np.ndindex(rows, columns):
            hidden = state @ w_h
            for p, q in np.ndindex(3, 3):
                if 0 <= i + p - 1 < rows and 0 <= j + q - 1 < columns:
                    hidden = hidden + v[i + p - 1, j + q - 1] @ u[p, q]
            energies[i, j] = np.tanh(hidden) @ w_e[:, 0]
        alpha = softmax(energies.ravel()).reshape(rows, columns)
        glimpse = (alpha[..., None] * v).sum((0, 1))
        hidden = np.concatenate([state, glimpse])
        logits.append(hidden @ weights["logits/kernel"] + weights["logits/bias"])
        maps.append(alpha)
    return np.array(logits), np.array(maps)


def test_every_step_follows_the_equations(reader, words):
    """Every image is read as it is without its padding."""
    weights = {w.path: numpy(w).astype("float64") for w in reader.weights}
    outputs = outputs_of(reader, words)
    assert outputs["attention_scores"].shape == (4, 1, T, 3 * 7)
    for row, width in enumerate(WIDTHS):
        image = words["images"][row, :, :width].astype("float64")
        tokens = words["decoder_token_ids"][row]
        logits, maps = read(weights, image, tokens)
        np.testing.assert_allclose(outputs["logits"][row], logits, atol=1e-5)
        found = outputs["attention_scores"][row, 0].reshape(T, 3, 7)
        columns = -(-width // 4)
        np.testing.assert_allclose(found[..., :columns], maps, atol=1e-5)
        assert not found[..., columns:].any()


def test_padding_changes_nothing(reader, words):
    expected = outputs_of(reader, words)
    changed = words["images"].copy()
    for row, width in enumerate(WIDTHS):
        changed[row, :, width:] = 7
    got = outputs_of(reader, {**words, "images": changed})
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)
    wider = np.pad(changed, [(0, 0), (0, 0), (0, 11), (0, 0)], constant_values=3)
    got = outputs_of(reader, {**words, "images": wider})
    np.testing.assert_allclose(got["logits"], expected["logits"], atol=1e-5)
    scores = got["attention_scores"].reshape(4, T, 3, 10)[..., :7]
    before = expected["attention_scores"].reshape(4, T, 3, 7)
    np.testing.assert_allclose(scores, before, atol=1e-5)
    # Widths matter, and an image of no columns gives finite numbers.
    whole = {**words, "widths": np.full(4, 26, "int32")}
    difference = np.abs(logits_of(reader, whole) - expected["logits"]).max((1, 2))
    assert difference[0] == 0 and (difference[1:] > 1e-3).all()
    empty = outputs_of(reader, {**words, "widths": np.zeros(4, "int32")})
    assert np.isfinite(empty["logits"]).all() and not empty["attention_scores"].any()


def test_without_widths_images_are_as_wide_as_the_batch(reader, words):
    model = create("show_attend_read-any_width")
    assert {tensor.name for tensor in model.inputs} == {"images", "decoder_token_ids"}
    model.set_weights(reader.get_weights())
    whole = {**words, "widths": np.full(4, 26, "int32")}
    inputs = {name: words[name] for name in ("images", "decoder_token_ids")}
    np.testing.assert_allclose(
        logits_of(model, inputs), logits_of(reader, whole), atol=1e-5
    )


@pytest.mark.compiled
def test_it_reads_step_by_step_what_it_reads_at_once(words):
    model = create("show_attend_read")
    inputs = {name: words[name] for name in ("images", "widths")}
    found = generate(model, inputs, 5, start_token_id=1).token_ids
    start = {**inputs, "decoder_token_ids": np.ones((4, 1), "int32")}
    np.testing.assert_array_equal(found, full_passes(model, start, 5))
    # Rows do not depend on the others of their batch.
    last = {name: value[3:] for name, value in inputs.items()}
    alone = generate(model, last, 5, start_token_id=1)
    np.testing.assert_array_equal(alone.token_ids, found[3:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": (None, 40)}, "`image_size` must have a number of rows.*None"),
        ({"hidden_dims": (3, 5)}, "must each have 4 numbers.*hidden_dims=.3, 5."),
    ],
)
def test_bad_sizes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.build_show_attend_read(**options)


def test_an_image_is_not_wider_than_the_batch(reader, words):
    message = r"`widths` must be in \[0, 27\).*Received: 27 at index \(2,\)"
    with pytest.raises(ValueError, match=message):
        reader({**words, "widths": np.array([3, 4, 27, 2], "int32")})
