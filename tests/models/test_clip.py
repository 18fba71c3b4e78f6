"""CLIP and SigLIP beyond the contract: their loss, towers, encoders and classifiers."""

import math
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import TINY, build, create, numpy, tiny

from keras_attn import models
from keras_attn.data.text.wordpiece import WordPieceTokenizer

CLIP, RESNET = "clip_vit_base_patch32", "clip_rn50"
SIGLIP = "siglip_base_patch16_224"
ROWS, T = 5, 7


def pairs(model, rows=ROWS, seed=1) -> Any:
    """Images and texts without padding."""
    rng = np.random.default_rng(seed)
    return {
        "images": rng.normal(size=(rows, *model.input["images"].shape[1:])).astype("f"),
        "token_ids": rng.integers(1, 19, (rows, T)).astype("int32"),
    }


def log_softmax(logits):
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("case", [CLIP, SIGLIP])
def test_the_loss_is_that_of_the_paper(case):
    model = create(case)
    inputs = pairs(model)
    found = numpy(model(inputs))
    scale = np.exp(numpy(model.similarity.logit_scale))
    logits = scale * found["image_embeddings"] @ found["text_embeddings"].T
    if case == CLIP:
        rows, columns = log_softmax(logits), log_softmax(logits.T)
        expected = -(np.trace(rows) + np.trace(columns)) / (2 * ROWS)
    else:
        logits = logits + numpy(model.similarity.logit_bias)
        signs = 2 * np.eye(ROWS) - 1
        expected = np.log1p(np.exp(-signs * logits)).sum() / ROWS
    embeddings = found["image_embeddings"], found["text_embeddings"]
    np.testing.assert_allclose(numpy(model.logits(*embeddings)), logits, atol=1e-5)
    model.compile()
    results = model.evaluate(inputs, batch_size=ROWS, verbose=0, return_dict=True)
    np.testing.assert_allclose(results["loss"], expected, rtol=1e-5)
    own = np.arange(ROWS)
    for name, axis in (("image_accuracy", 1), ("text_accuracy", 0)):
        share = np.mean(logits.argmax(axis) == own)
        np.testing.assert_allclose(results[name], share, rtol=1e-6)


@pytest.mark.compiled
def test_pairs_are_learned_and_the_temperature_keeps_its_range():
    model = build(CLIP, num_layers=1, text_num_layers=1)
    similarity = model.similarity
    np.testing.assert_allclose(numpy(similarity.logit_scale), math.log(1 / 0.07), 1e-6)
    inputs = pairs(model, rows=4)
    model.compile(keras.optimizers.Adam(0.01))
    similarity.logit_scale.assign(math.log(99.999))
    losses = model.fit(inputs, epochs=30, batch_size=4, verbose=0).history
    assert losses["loss"][-1] < 0.1 < 1.0 < losses["loss"][0]
    assert losses["image_accuracy"][-1] == losses["text_accuracy"][-1] == 1
    assert 0 <= numpy(similarity.logit_scale) <= np.float32(math.log(100))


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="reads tf.data")
@pytest.mark.compiled
def test_a_data_set_of_pairs_needs_no_labels():
    import tensorflow as tf

    model = build(SIGLIP)
    dataset = tf.data.Dataset.from_tensor_slices(pairs(model)).batch(ROWS)
    model.compile()
    by_name = model.evaluate(dataset, verbose=0, return_dict=True)
    assert set(by_name) == {"loss", "image_accuracy", "text_accuracy"}


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "predict_on_batch"])
def test_pairs_have_as_many_texts_as_images(method):
    model = tiny(CLIP)
    inputs = pairs(model)
    inputs["token_ids"] = inputs["token_ids"][:2]
    message = r"same number of rows. Received: {'images': 5, 'token_ids': 2}"
    with pytest.raises(ValueError, match=message):
        getattr(model, method)(inputs)


def test_pairs_have_no_labels_or_weights():
    model = build(CLIP)
    model.compile(run_eagerly=True)
    inputs = pairs(model)
    with pytest.raises(ValueError, match="`sample_weight` must be None"):
        model.compute_loss(y_pred=model(inputs), sample_weight=np.ones(ROWS))
    with pytest.raises(ValueError, match="`y` must be None: the model learns only"):
        model.evaluate(inputs, np.zeros(ROWS), verbose=0)


def test_a_text_ends_at_its_end_token():
    """What follows, and how much of it, changes nothing."""
    model = tiny(f"{CLIP}-end_token")
    encoder = model.text_encoder()
    ids = np.array([[5, 9, 3, 7, 3, 11], [3, 1, 2, 4, 5, 6]], "int32")
    expected = numpy(encoder(ids))
    changed = ids.copy()
    changed[0, 3:], changed[1, 1:] = 0, 13
    longer = np.pad(changed, ((0, 0), (0, 4)), constant_values=3)
    for other in (changed, longer):
        np.testing.assert_allclose(numpy(encoder(other)), expected, atol=1e-6)
    # Of all ids the largest.
    encoder = tiny(CLIP).text_encoder()
    ids[:, 3] = 17
    changed, longer = ids.copy(), np.pad(ids, ((0, 0), (0, 4)))
    changed[:, 4:] = 16
    for other in (changed, longer):
        np.testing.assert_allclose(
            numpy(encoder(other)), numpy(encoder(ids)), atol=1e-6
        )


def test_siglip_does_not_read_what_no_patch_covers():
    """As the published `siglip-so400m-patch14-384`, 27 patches of 14 pixels."""
    whole = tiny(SIGLIP)
    rows, columns, _ = whole.input["images"].shape[1:]
    larger = build(SIGLIP, image_size=(rows + 1, columns + 2))
    larger.set_weights(whole.get_weights())
    images = np.random.default_rng(0).normal(size=(2, rows + 1, columns + 2, 3))
    found = numpy(larger.image_encoder()(images.astype("float32")))
    cropped = images[:, :rows, :columns].astype("float32")
    np.testing.assert_allclose(found, numpy(whole.image_encoder()(cropped)), atol=1e-6)
    with pytest.raises(ValueError, match="(?i)patch"):
        build(SIGLIP, image_size=3)


@pytest.mark.parametrize("case", [CLIP, RESNET, SIGLIP])
def test_the_towers_alone_compute_the_same(case):
    model = tiny(case)
    inputs = pairs(model)
    expected = numpy(model(inputs))
    for build_encoder, name, output in (
        (models.build_clip_image_encoder, "images", "image_embeddings"),
        (models.build_clip_text_encoder, "token_ids", "text_embeddings"),
    ):
        encoder = build_encoder(model, name="mine")
        assert encoder.name == "mine"
        np.testing.assert_array_equal(numpy(encoder(inputs[name])), expected[output])
        lengths = np.linalg.norm(expected[output], axis=1)
        np.testing.assert_allclose(lengths, 1, rtol=1e-5)
    image = {id(weight) for weight in models.build_clip_image_encoder(model).weights}
    text = {id(weight) for weight in models.build_clip_text_encoder(model).weights}
    assert not image & text
    scalars = {id(weight) for weight in model.similarity.weights}
    assert image | text | scalars == {id(weight) for weight in model.weights}


@pytest.mark.parametrize(
    "case, arguments, message",
    [
        (CLIP, {"stem_dim": 6}, "`patch_size` is for .* a ViT, and `stem_dim` for"),
        (RESNET, {"mlp_dim": 6}, "`mlp_dim` is for .*, and `num_blocks` for a ResNet"),
        (RESNET, {"image_size": (16, 20)}, "`image_size` must be a multiple of 8"),
        (CLIP, {"image_size": (16, 20)}, "multiple of `patch_size`"),
        (CLIP, {"end_token_id": 19}, r"`end_token_id` must be in \[0, 19\)"),
        (CLIP, {"text_num_heads": 5}, "multiple of `num_heads`"),
    ],
)
def test_an_argument_with_which_no_model_can_be_built_is_named(
    case, arguments, message
):
    with pytest.raises(ValueError, match=message):
        build(case, **arguments)


LABELS = ["cat", "red dog", "bird"]


def tokenize(captions):
    """Ids of characters, from 1 to 18, the largest at the end of each row."""
    rows = [[1 + ord(c) % 17 for c in caption][:29] + [18] for caption in captions]
    width = max(map(len, rows))
    return np.array([row + [0] * (width - len(row)) for row in rows])


@pytest.fixture(scope="module")
def small():
    """A model with 31 positions, enough for the captions."""
    return create(CLIP)


def test_a_classifier_is_the_mean_of_the_captions_of_each_class(small):
    templates = ("a {}.", "{} at {}!")
    model = models.zero_shot_classifier(
        small, tokenize, LABELS, templates, batch_size=2
    )
    encode, images = small.text_encoder(), pairs(small)["images"]
    means = []
    for label in LABELS:
        captions = [template.replace("{}", label) for template in templates]
        mean = numpy(encode(tokenize(captions))).mean(axis=0)
        means.append(mean / np.linalg.norm(mean))
    embedded = numpy(small.image_encoder()(images))
    scale = np.exp(numpy(small.similarity.logit_scale))
    logits = numpy(model(images))
    np.testing.assert_allclose(
        logits, scale * embedded @ np.transpose(means), atol=1e-5
    )
    assert model.class_names == tuple(LABELS)
    # Without templates it has one.
    captions = tokenize([f"a photo of a {label}." for label in LABELS])
    expected = small.logits(embedded, numpy(encode(captions)))
    plain = models.zero_shot_classifier(
        small, lambda x: {"token_ids": tokenize(x)}, LABELS
    )
    np.testing.assert_allclose(numpy(plain(images)), expected, atol=1e-5)


@pytest.mark.compiled
def test_a_classifier_fits_evaluates_and_saves(small, tmp_path):
    small.preprocessing = {"do_resize": True}
    model = models.zero_shot_classifier(small, tokenize, LABELS, name="mine")
    images, labels = pairs(small)["images"], np.arange(ROWS) % 3
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    before = model.evaluate(images, labels, verbose=0, return_dict=True)
    model.fit(images, labels, epochs=3, verbose=0)
    after = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert after["loss"] < before["loss"]
    with pytest.raises(ValueError, match=r"`y` must be in \[0, 3\)"):
        model.evaluate(images, labels + 1, verbose=0)
    model.save(tmp_path / "mine.keras")
    loaded = keras.saving.load_model(tmp_path / "mine.keras")
    assert loaded.name == "mine"
    assert loaded.class_names == tuple(LABELS)
    assert loaded.preprocessing == {"do_resize": True}
    np.testing.assert_array_equal(numpy(loaded(images)), numpy(model(images)))


def test_a_classifier_of_siglip_has_a_bias_and_full_padding():
    pytest.importorskip("tensorflow_text")
    model = create(SIGLIP)
    tokenizer = WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "photo", "of", "cat", "."]
    )
    classifier = models.zero_shot_classifier(model, tokenizer, ["cat", "of"])
    assert classifier.get_layer("classifier").bias is not None
    captions = ["a photo of a cat.", "a photo of a of."]
    length = TINY[SIGLIP]["max_sequence_length"]
    ids = tokenizer.encode_batch(captions, max_length=length, pad_to_max_length=True)
    assert ids["token_ids"].shape == (2, length)
    images = pairs(model)["images"]
    expected = model.logits(
        model.image_encoder()(images), model.text_encoder()(ids["token_ids"])
    )
    np.testing.assert_allclose(numpy(classifier(images)), numpy(expected), atol=1e-4)
    with pytest.raises(ValueError, match="at most 31 tokens.* 38 tokens, 'a photo of "):
        models.zero_shot_classifier(model, tokenizer, ["cat", "of " * 31])


def test_what_no_classifier_can_be_made_of_is_named(small):
    def make(labels=LABELS, templates=("a {}.",), tokenizer=tokenize, **options):
        return models.zero_shot_classifier(
            small, tokenizer, labels, templates, **options
        )

    with pytest.raises(ValueError, match="`labels` must not be empty"):
        make([])
    with pytest.raises(TypeError, match="`labels` must be a list of strings, not one"):
        make("cat")
    with pytest.raises(ValueError, match="`labels` must be different. Received: 'cat'"):
        make(["cat", "dog", "cat"])
    with pytest.raises(ValueError, match="`labels` must be strings .*Received: ' '"):
        make(["cat", " "])
    with pytest.raises(ValueError, match="`labels` must be strings .*Received: 3"):
        make([3])
    with pytest.raises(ValueError, match="`templates` must not be empty"):
        make(templates=[])
    with pytest.raises(TypeError, match="`templates` must be a list of strings"):
        make(templates="a {}.")
    with pytest.raises(ValueError, match="`templates` must have `{}` .*'a photo.'"):
        make(templates=["a {}.", "a photo."])
    with pytest.raises(ValueError, match="at most 31 tokens.*: 32 tokens, 'a cat"):
        make(tokenizer=lambda captions: np.ones((len(captions), 32)))
    with pytest.raises(ValueError, match="one row of token ids for each caption"):
        make(tokenizer=lambda captions: np.ones(31))
    with pytest.raises(TypeError, match="`clip` must be a model from `build_clip`"):
        models.zero_shot_classifier(tiny("vit_base_patch16"), tokenize, LABELS)


# Pictures and captions as embeddings.

CAPTIONS = ["a cat", "a photo of a cat", "of"]


@pytest.fixture(scope="module")
def clip():
    model = create(CLIP)
    rows, columns = model.input["images"].shape[1:3]
    model.preprocessing = {
        "size": {"height": rows, "width": columns},
        "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.4],
    }
    return model


def test_pictures_of_any_size(clip):
    random = np.random.default_rng(0)
    sizes = [(31, 17), (5, 90), (31, 17)]
    pictures = [random.integers(0, 256, (*size, 3), "uint8") for size in sizes]
    found = models.picture_encoder(clip, batch_size=2)(pictures)
    layer, encoder = models.image_preprocessing(clip), clip.image_encoder()
    expected = [numpy(encoder(layer(picture[None])))[0] for picture in pictures]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    assert models.picture_encoder(clip)([]).shape == (0, found.shape[1])


def test_captions(clip):
    found = models.caption_encoder(clip, tokenize, batch_size=2)(CAPTIONS)
    expected = numpy(clip.text_encoder()(tokenize(CAPTIONS)))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert models.caption_encoder(clip, tokenize)([]).shape == (0, found.shape[1])


def test_what_cannot_be_encoded_is_named(clip):
    for make in (
        models.picture_encoder,
        lambda x, **k: models.caption_encoder(x, tokenize, **k),
    ):
        with pytest.raises(TypeError, match="`clip` must be a model from `build_clip`"):
            make(tiny("vit_base_patch16"))
        with pytest.raises(ValueError, match="`batch_size` must be .*batch_size=0"):
            make(clip, batch_size=0)
    other = create(CLIP)
    other.preprocessing = None
    with pytest.raises(ValueError, match="`model` must have a `preprocessing`"):
        models.picture_encoder(other)
    other.preprocessing = {**clip.preprocessing, "size": {"height": 3, "width": 4}}
    with pytest.raises(ValueError, match=r"the size that the model takes.*\(3, 4, 3\)"):
        models.picture_encoder(other)
