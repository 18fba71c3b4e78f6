"""DALL·E, beyond the contract of all models: masks, loss, caches and images."""

from typing import Any

import keras
import numpy as np
import pytest
from families.dalle import GRID, TEXT, TINY
from families.dvae import TINY as TINY_DVAE
from model_cases import create, inputs_for, layer_names, numpy, tiny, varied
from model_family import V

from keras_attn import models
from keras_attn.decoding import Greedy, Sample, generate, next_state
from keras_attn.models import generate_images
from keras_attn.models.dalle import attention_of_block

CASE = "dalle_12b"
CODES = GRID[0] * GRID[1]


def examples(model, batch=3):
    """Captions with padding at either end and in between, and whole images."""
    inputs = inputs_for(model, batch=batch, length=7, target=CODES)
    mask = np.array([[1] * 7, [0, 0, 1, 1, 1, 0, 0], [1, 0, 1, 1, 0, 0, 1]], bool)
    return {**inputs, "padding_mask": mask[:batch]}


def test_layers_have_their_documented_names():
    names = {"caption_embedding", "image_embedding", "embeddings_dropout"}
    names |= {"row_mask", "column_mask", "convolutional_mask"}
    names |= {"block_0", "block_1", "block_2", "block_3", "final_norm"}
    names |= {"text_logits", "image_logits"}
    layers = tiny(CASE).layers
    assert {layer.name for layer in layers if layer.weights} <= names
    assert names <= layer_names(tiny(CASE))


def test_blocks_attend_as_published():
    kinds = [attention_of_block(index, 64) for index in range(64)]
    assert kinds[:6] == ["row", "column", "row", "row", "row", "column"]
    # In the paper's numbers, from 1.
    columns = [i for i, kind in enumerate(kinds, 1) if kind == "column"]
    assert columns == [*range(2, 64, 4)]
    assert [i for i, kind in enumerate(kinds, 1) if kind == "convolutional"] == [64]


def test_cached_logits_equal_those_of_the_whole_sequence():
    model = tiny(CASE)
    inputs = examples(model)
    expected = numpy(model(inputs))["image_logits"]
    pair = model.incremental()
    codes = inputs.pop("decoder_token_ids")
    caption = {
        name: np.pad(value, [(0, 0), (0, TEXT - 7)]) for name, value in inputs.items()
    }
    state = numpy(pair.prefill(caption))
    np.testing.assert_allclose(state["logits"], expected[:, 0], rtol=0, atol=1e-5)
    for place in range(CODES - 1):
        before = {name: state[name] for name in pair.step.input if name != "token_ids"}
        outputs = numpy(pair.step({**before, "token_ids": codes[:, place]}))
        state = next_state(before, outputs)
        np.testing.assert_allclose(
            state["logits"], expected[:, place + 1], rtol=0, atol=1e-5
        )


def cross_entropies(model, inputs):
    """-log p of every word after the first one, and of every code, by example."""
    outputs = numpy(model(inputs))
    text, image = [], []
    for row in range(len(inputs["token_ids"])):
        mask = inputs["padding_mask"][row]
        words, logits = (
            inputs["token_ids"][row][mask],
            outputs["text_logits"][row][mask],
        )
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        text.append([-log_p[p, word] for p, word in enumerate(words[1:])])
        codes, logits = inputs["decoder_token_ids"][row], outputs["image_logits"][row]
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        image.append([-log_p[p, code] for p, code in enumerate(codes)])
    return text, image


def test_the_loss_weights_codes_seven_times():
    model = create(CASE)
    inputs = examples(model)
    text, image = cross_entropies(model, inputs)
    text_loss, image_loss = np.mean(sum(text, [])), np.mean(image)
    model.compile("sgd")
    found = model.evaluate(inputs, verbose=0, return_dict=True)
    np.testing.assert_allclose(found["text_loss"], text_loss, rtol=1e-5)
    np.testing.assert_allclose(found["image_loss"], image_loss, rtol=1e-5)
    expected = (text_loss + 7 * image_loss) / 8
    np.testing.assert_allclose(found["loss"], expected, rtol=1e-5)
    # An example of weight 0 fills up a batch.
    weights = np.array([1.0, 0.0, 1.0])
    kept = np.mean(text[0] + text[2]), np.mean(image[0] + image[2])
    loss = model.compute_loss(inputs, None, model(inputs), weights)
    np.testing.assert_allclose(loss, (kept[0] + 7 * kept[1]) / 8, rtol=1e-5)
    # No caption has a second word.
    alone = {**inputs, "padding_mask": np.eye(3, 7, dtype=bool)}
    loss = model.compute_loss(alone, None, model(alone))
    image_loss = np.mean(cross_entropies(model, alone)[1])
    np.testing.assert_allclose(loss, 7 * image_loss / 8, rtol=1e-5)


def test_the_weight_of_the_codes_is_saved(tmp_path):
    model = create(CASE, image_weight=3.0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.image_weight == 3.0
    inputs = examples(model)
    text, image = cross_entropies(model, inputs)
    loss = loaded.compute_loss(inputs, None, loaded(inputs))
    expected = (np.mean(sum(text, [])) + 3 * np.mean(image)) / 4
    np.testing.assert_allclose(loss, expected, rtol=1e-5)


@pytest.mark.compiled
def test_the_plan_counts_a_caption_and_an_image():
    found = models.plan(CASE, **TINY)
    assert found.sequence == TEXT + CODES
    assert found.has_tokens
    # Keys and values of four blocks, float32, and which slots are filled.
    assert found.cache == 4 * 2 * (TEXT + CODES) * 21 * 4 + (TEXT + CODES) + 4 + 4


@pytest.mark.parametrize(
    "options, match",
    [
        ({"window_size": 4}, "`window_size` must be an odd positive integer"),
        ({"image_weight": -1.0}, "`image_weight` must be a number of at least 0"),
    ],
)
def test_sizes_that_no_model_has(options, match):
    with pytest.raises(ValueError, match=match):
        models.build_dalle(**{**TINY, **options})


def test_captions_and_images_that_are_too_long():
    model = tiny(CASE)
    inputs = examples(model)
    long = np.ones((3, TEXT + 1), "int32")
    for name, value in (
        ("token_ids", long),
        ("decoder_token_ids", np.ones((3, CODES + 1), "int32")),
    ):
        with pytest.raises(ValueError, match=f"`{name}`.* length of at most"):
            model({**inputs, name: value, "padding_mask": np.ones_like(long)})
        layer = "caption_embedding" if name == "token_ids" else "image_embedding"
        mask = [np.ones_like(long)] if name == "token_ids" else []
        with pytest.raises(ValueError, match="must have a length of at most"):
            model.get_layer(layer)(value, *mask)
    with pytest.raises(ValueError, match="`token_ids` must have at most 13 tokens"):
        generate(model, {"token_ids": long}, 2)
    with pytest.raises(ValueError, match="at most 15 fit after this prompt"):
        generate(model, {"token_ids": long[:, :5]}, CODES + 1)
    with pytest.raises(ValueError, match=rf"`token_ids` must be in \[0, {V}\)"):
        generate(model, {"token_ids": np.full((1, 5), V)}, 2)
    # Codes have another vocabulary than words.
    with pytest.raises(ValueError, match=r"`end_token_id` must be in \[0, 23\)"):
        generate(model, {"token_ids": long[:, :5]}, 2, end_token_id=23)


class Letters:
    """A tokenizer of the letters a to s."""

    def encode(self, text):
        return [ord(letter) - ord("a") for letter in text]


@pytest.fixture(scope="module")
def painter():
    """A Transformer and a discrete VAE with the same codes."""
    dvae = models.build_dvae(
        **{**TINY_DVAE, "image_size": (6, 10), "vocabulary_size": 23}
    )
    return varied(CASE), dvae, Letters()


@pytest.mark.compiled
def test_the_best_images_are_kept(painter):
    dalle, dvae, tokenizer = painter
    options: Any = {"num_candidates": 4, "strategy": Sample(seed=3)}
    seen = []

    def scorer(images, caption):
        seen.append((images, caption))
        return images.mean((1, 2, 3))

    def best(**others):
        return generate_images(
            dalle, dvae, tokenizer, "abc", 2, scorer=scorer, **options, **others
        )

    found = best()
    ((candidates, caption),) = seen
    assert caption == "abc"
    assert candidates.shape == (4, 6, 10, 3)
    means = candidates.mean((1, 2, 3))
    assert len(set(means)) == 4
    np.testing.assert_array_equal(found.scores, np.sort(means)[::-1][:2])
    np.testing.assert_allclose(found.images.mean((1, 2, 3)), found.scores)
    assert found.codes.shape == (2, *GRID)
    drawn = numpy(dvae.decode_model()(found.codes))
    np.testing.assert_allclose(drawn, found.images, rtol=0, atol=1e-6)
    # The seed decides, not the size of a batch; and the codes are those of `generate`.
    again = best(batch_size=2)
    np.testing.assert_array_equal(again.codes, found.codes)
    rows = {"token_ids": np.tile([[0, 1, 2]], (4, 1))}
    plain = generate(dalle, rows, CODES, strategy=Sample(seed=3))
    unscored = generate_images(
        dalle, dvae.decode_model(), tokenizer, "abc", 4, strategy=Sample(seed=3)
    )
    np.testing.assert_array_equal(unscored.codes.reshape(4, -1), plain.token_ids)
    np.testing.assert_array_equal(unscored.scores, plain.scores)


@pytest.mark.parametrize(
    "options, error, match",
    [
        (
            {"num_candidates": 2, "num_images": 3},
            ValueError,
            "`num_candidates` must be",
        ),
        ({"num_candidates": 4}, ValueError, "`scorer` is needed to choose.*=4"),
        ({"scorer": "clip"}, TypeError, "`scorer` must be a function.*'clip'"),
        ({"strategy": Greedy()}, TypeError, r"`strategy` must be `Sample\(...\)`"),
        ({"dalle": "dalle"}, TypeError, "`dalle` must be a model.*dalle=str"),
        ({"dvae": "dvae"}, TypeError, "`dvae` must be a model.*dvae=str"),
        (
            {"dvae": tiny("dvae_dalle")},
            ValueError,
            r"`dvae` must have the codes.*\(2, 3\)",
        ),
        (
            {"caption": ""},
            ValueError,
            "`caption` must have between 1 and 13.*: 0 tokens",
        ),
        ({"caption": "a" * 14}, ValueError, "`caption` must have.*Received: 14 tokens"),
        (
            {"scorer": lambda *_: [1.0, 2.0]},
            ValueError,
            r"`scorer` .*\(2,\) for 1 images",
        ),
        (
            {"scorer": lambda *_: [np.nan]},
            ValueError,
            "`scorer` .*not all of them finite",
        ),
    ],
)
@pytest.mark.compiled
def test_what_no_image_can_be_drawn_for(painter, options, error, match):
    dalle, dvae, tokenizer = painter
    arguments = {"dalle": dalle, "dvae": dvae, "tokenizer": tokenizer, "caption": "abc"}
    with pytest.raises(error, match=match):
        generate_images(**{**arguments, **options})


@pytest.mark.shipped
def test_one_seed_gives_the_same_codes_in_every_runtime(tmp_path):
    from export_formats import SUFFIXES

    from keras_attn.export import export, load_runner

    model = varied(CASE)
    # A caption that generation pads, and one with padding before it.
    caption = {
        "token_ids": [[5, 11, 2, 7], [0, 0, 13, 3]],
        "padding_mask": [[1, 1, 1, 1], [0, 0, 1, 1]],
    }
    expected = generate(model, caption, CODES, strategy=Sample(seed=5))
    assert len(np.unique(expected.token_ids)) > 5
    for suffix in SUFFIXES.values():
        path = tmp_path / f"dalle{suffix}"
        report = export(model, path)
        assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-4
        runner = load_runner(path)
        assert set(runner.signatures) == {"prefill", "step"}
        assert runner.max_length == TEXT + CODES
        found = generate(runner, caption, CODES, strategy=Sample(seed=5))
        np.testing.assert_array_equal(found.token_ids, expected.token_ids)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-4)
        with pytest.raises(ValueError, match=rf"`token_ids` must be in \[0, {V}\)"):
            generate(runner, {"token_ids": [[V]]}, 2)
