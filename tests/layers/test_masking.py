"""Keras masks, as `Embedding(mask_zero=True)` attaches them to its outputs."""

import keras
import numpy as np
import pytest
from layer_contract import assert_close, randomize

from keras_attn import layers

IDS = np.array([[3, 5, 2, 0, 0], [4, 2, 1, 6, 5]])
OTHER_IDS = np.array([[1, 4, 2], [6, 0, 0]])
WIDTH, HEADS = 11, 3


def mha():
    return layers.MultiHeadAttention(HEADS, 7)


def encoder(**options):
    return layers.TransformerEncoderBlock(HEADS, 13, key_dim=7, **options)


def decoder():
    return layers.TransformerDecoderBlock(HEADS, 13, key_dim=7, norm_first=True)


# With a second tensor Keras passes the mask under another name.
OPEN = {"attention_mask": np.ones((1, 5, 5), bool)}
# The layer, whether it attends to other vectors, and options of its call.
CASES = {
    "additive": (lambda: layers.AdditiveAttention(7), True, {}),
    "dot_product": (layers.DotProductAttention, True, {}),
    "mha_self": (mha, False, {}),
    "mha_self_with_mask": (mha, False, OPEN),
    "mha_causal": (mha, False, {"use_causal_mask": True}),
    "mha_cross": (mha, True, {}),
    "encoder_post": (encoder, False, {}),
    "encoder_pre": (lambda: encoder(norm_first=True), False, {}),
    "encoder_with_mask": (encoder, False, OPEN),
    "decoder_only": (decoder, False, {}),
    "decoder": (decoder, True, {}),
}
every_case = pytest.mark.parametrize(
    ("make", "crosses", "options"), CASES.values(), ids=list(CASES)
)


def call(layer, query, value, crosses, options):
    inputs = [query, value] if crosses else [query]
    return layer(*inputs, return_attention_scores=True, **options)


class ReturnsMask(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return mask


@every_case
@pytest.mark.compiled
def test_keras_masks_in_a_compiled_model(make, crosses, options):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    ids, other_ids = keras.Input((5,), dtype="int32"), keras.Input((3,), dtype="int32")
    layer = make()
    outputs = call(layer, embedding(ids), embedding(other_ids), crosses, options)
    model = keras.Model([ids, other_ids], outputs)
    randomize(model)
    found = model.predict([IDS, OTHER_IDS], verbose=0)
    inputs = embedding(IDS), embedding(OTHER_IDS)
    assert_close(found, call(layer, *inputs, crosses, options))


@every_case
def test_keras_masks_are_used_and_that_of_the_queries_is_passed_on(
    make, crosses, options
):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    inputs = embedding(IDS), embedding(OTHER_IDS)
    outputs, *_, scores = call(make(), *inputs, crosses, options)
    assert_close(ReturnsMask()(outputs), IDS != 0, atol=0)
    of_keys = np.moveaxis(np.asarray(scores), -1, 1)
    real = (OTHER_IDS if crosses else IDS) != 0
    assert not of_keys[~real].any() and of_keys[real].any()


@pytest.mark.parametrize(
    "make",
    [
        lambda: layers.FeedForward(13),
        lambda: layers.Maxout(1),
        layers.SinusoidalPositionEmbedding,
        lambda: layers.LearnedPositionEmbedding(7),
    ],
)
def test_other_layers_pass_masks_on(make):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    assert_close(ReturnsMask()(make()(embedding(IDS))), IDS != 0, atol=0)


def test_a_wrong_mask_is_an_error_with_a_keras_mask_too():
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    with pytest.raises(ValueError, match="`padding_mask` must have the shape"):
        mha()(embedding(IDS), padding_mask=np.ones((2, 7), bool))


def test_explicit_and_keras_masks_are_combined():
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    mask = np.array([[False, True, True, True, True]] * 2)
    _, scores = mha()(embedding(IDS), padding_mask=mask, return_attention_scores=True)
    attended = np.asarray(scores) > 0
    assert (attended == (mask & (IDS != 0))[:, None, None]).all()


def test_keras_masks_of_a_call_do_not_mask_its_cache():
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    layer = mha()
    layer(np.zeros((2, 5, WIDTH)))
    cache = [np.zeros((2, HEADS, 13, 7), "float32")] * 2
    _, scores, _ = layer(
        embedding(IDS),
        cache=cache,
        cache_index=4,
        use_causal_mask=True,
        return_attention_scores=True,
    )
    attended = np.asarray(scores)[0, 0] > 0
    assert (attended == np.tri(5, 13, 4, dtype=bool)).all()
