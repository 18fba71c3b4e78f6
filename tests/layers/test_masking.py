"""Keras masks, as `Embedding(mask_zero=True)` attaches them to its outputs."""

import keras
import numpy as np
import pytest
from layer_contract import assert_close, randomize

from keras_attn import layers

IDS = np.array([[3, 5, 2, 0, 0], [4, 2, 1, 6, 5]])
OTHER_IDS = np.array([[1, 4, 2], [6, 0, 0]])
WIDTH, HEADS = 11, 3


def self_attention(layer, query, value, query_mask=None, value_mask=None):
    return layer(query, padding_mask=query_mask, return_attention_scores=True)


def query_with_mask(layer, query, value, query_mask=None, value_mask=None):
    # With a second tensor Keras passes the mask under another name.
    return layer(
        query,
        padding_mask=query_mask,
        attention_mask=np.ones((1, 5, 5), bool),
        return_attention_scores=True,
    )


def cross(layer, query, value, query_mask=None, value_mask=None):
    return layer(query, value, padding_mask=value_mask, return_attention_scores=True)


def causal(layer, query, value, query_mask=None, value_mask=None):
    return layer(
        query,
        padding_mask=query_mask,
        use_causal_mask=True,
        return_attention_scores=True,
    )


def decoder(layer, query, value, query_mask=None, value_mask=None):
    return layer(
        query,
        value,
        padding_mask=query_mask,
        encoder_padding_mask=value_mask,
        return_attention_scores=True,
    )


def rnn(layer, query, value, query_mask=None, value_mask=None):
    state = np.zeros((2, WIDTH), "float32")
    outputs = layer(
        query,
        value,
        state,
        memory_padding_mask=value_mask,
        return_attention_scores=True,
    )
    return [outputs["states"], outputs["attention_scores"]]


def mha(**options):
    return layers.MultiHeadAttention(HEADS, 7, **options)


def block(kind, **options):
    return kind(HEADS, 13, key_dim=7, **options)


CASES = {
    "additive": (lambda: layers.AdditiveAttention(7), cross),
    "dot_product": (layers.DotProductAttention, cross),
    "mha_self": (mha, self_attention),
    "mha_self_with_mask": (mha, query_with_mask),
    "mha_causal": (mha, causal),
    "mha_cross": (mha, cross),
    "encoder_post": (lambda: block(layers.TransformerEncoderBlock), self_attention),
    "encoder_pre": (
        lambda: block(layers.TransformerEncoderBlock, norm_first=True),
        self_attention,
    ),
    "encoder_with_mask": (
        lambda: block(layers.TransformerEncoderBlock),
        query_with_mask,
    ),
    "decoder_only": (lambda: block(layers.TransformerDecoderBlock), self_attention),
    "decoder": (
        lambda: block(layers.TransformerDecoderBlock, norm_first=True),
        decoder,
    ),
    "rnn": (
        lambda: layers.AttentionRNN(
            keras.layers.GRUCell(WIDTH), layers.AdditiveAttention(7)
        ),
        rnn,
    ),
}
every_case = pytest.mark.parametrize(("make", "call"), CASES.values(), ids=list(CASES))


@pytest.fixture
def policy(request):
    keras.config.set_dtype_policy(request.param)
    yield
    keras.config.set_dtype_policy("float32")


class ReturnsMask(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs, mask=None):
        return mask


@pytest.mark.each_value
@every_case
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"], indirect=True)
def test_keras_masks_are_padding_masks(make, call, policy):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True, dtype="float32")
    plain = keras.layers.Embedding(7, WIDTH, dtype="float32")
    layer = make()
    call(layer, embedding(IDS), embedding(OTHER_IDS))  # Builds the layers.
    plain.build()
    plain.embeddings.assign(embedding.embeddings)
    randomize(layer)
    found = call(layer, embedding(IDS), embedding(OTHER_IDS))
    inputs = plain(IDS), plain(OTHER_IDS)
    assert_close(found, call(layer, *inputs, IDS != 0, OTHER_IDS != 0), atol=0)
    unmasked = call(layer, *inputs)
    with pytest.raises(AssertionError):
        assert_close(found, unmasked, atol=1e-3)


@every_case
@pytest.mark.compiled
def test_keras_masks_in_a_compiled_model(make, call):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    ids, other_ids = keras.Input((5,), dtype="int32"), keras.Input((3,), dtype="int32")
    layer = make()
    if isinstance(layer, layers.AttentionRNN):
        pooled = keras.ops.zeros_like(embedding(ids)[:, 0])
        outputs = layer(
            embedding(ids), embedding(other_ids), pooled, return_attention_scores=True
        )
        outputs = [outputs["states"], outputs["attention_scores"]]
    else:
        outputs = call(layer, embedding(ids), embedding(other_ids))
    model = keras.Model([ids, other_ids], outputs)
    randomize(model)
    found = model.predict([IDS, OTHER_IDS], verbose=0)
    assert_close(found, call(layer, embedding(IDS), embedding(OTHER_IDS)))


@every_case
def test_the_mask_of_the_queries_is_passed_on(make, call):
    embedding = keras.layers.Embedding(7, WIDTH, mask_zero=True)
    outputs = call(make(), embedding(IDS), embedding(OTHER_IDS))[0]
    if call is rnn:  # Returns a dictionary, without masks.
        assert ReturnsMask()(outputs) is None
    else:
        assert_close(ReturnsMask()(outputs), IDS != 0, atol=0)


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
