"""ViLBERT."""

import numpy as np
from attention_reference import (
    gelu,
    layer_norm,
    multi_head,
    multi_head_weights,
    relu,
    weights_of,
)
from families.bert import bert
from model_family import POSITIONED, C, Graph, U, dense

TINY = {
    **POSITIONED,
    "feature_dim": U,
    "region_dim": 22,
    "num_region_layers": 2,
    "num_region_heads": 2,
    "region_mlp_dim": 19,
    "co_attention_dim": 26,
    # Long random queries and keys would leave each word a single region.
    "num_co_attention_heads": 13,
    "text_co_layers": (1, 1),
    "region_co_layers": (0, 1),
}
_ORDER = (
    *("block_0", "co_attention_0", "region_block_0", "co_attention_1"),
    *("block_1", "region_block_1"),
)


def _norm(layer, x):
    weights = weights_of(layer)
    return layer_norm(x, weights["gamma"], weights["beta"], layer.epsilon)


def linear(layer, x):
    weights = weights_of(layer)
    return x @ weights["kernel"] + weights["bias"]


def _feed(layer, norm, x):
    return _norm(norm, x + linear(layer.contract, gelu(linear(layer.expand, x))))


def _attend(layer, norm, x, y, mask):
    """`norm(x + attention(x, y))`; `mask` (B, S) of y."""
    shape = (len(x), layer.num_heads, x.shape[1], y.shape[1])
    mask = np.broadcast_to(mask[:, None, None], shape)
    outputs, _ = multi_head(
        x, y, y, multi_head_weights(layer), layer.num_heads, mask=mask
    )
    return _norm(norm, x + outputs)


def _block(layer, x, mask):
    x = _attend(layer.attention, layer.attention_norm, x, x, mask)
    return _feed(layer.feed_forward, layer.feed_forward_norm, x)


def embedded_words(model, inputs):
    """The sum of BERT's embeddings, (B, T, D)."""
    tables = {
        name: np.asarray(model.get_layer(f"{name}_embedding").embeddings, "float64")
        for name in ("token", "segment", "position")
    }
    words = (
        tables["token"][inputs["token_ids"]] + tables["segment"][inputs["segment_ids"]]
    )
    return words + tables["position"][: words.shape[1]]


def with_areas(boxes):
    """The five numbers of a box, (…, 5)."""
    sides = boxes[..., 2:] - boxes[..., :2]
    return np.concatenate([boxes, sides[..., :1] * sides[..., 1:]], axis=-1)


def streams(model, words, regions, mask, real):
    """The outputs of both streams, from sums of embeddings and masks.

    The layers are in the order of `_ORDER`: two co-attentions, the last blocks after
    them.
    """
    layer = model.get_layer
    words = _norm(layer("embeddings_norm"), words)
    regions = _norm(layer("region_norm"), regions)
    for name in _ORDER:
        if name.startswith("block"):
            words = _block(layer(name), words, mask)
            continue
        if name.startswith("region"):
            regions = _block(layer(name), regions, real)
            continue
        co = layer(name)
        x, y = regions, words
        regions = _attend(co.region_attention, co.region_attention_norm, x, y, mask)
        words = _attend(co.text_attention, co.text_attention_norm, y, x, real)
        regions = _feed(co.region_feed_forward, co.region_feed_forward_norm, regions)
        words = _feed(co.text_feed_forward, co.text_feed_forward_norm, words)
    return {
        "sequence_output": words,
        "region_output": regions,
        "pooled_output": relu(linear(layer("text_pooler"), words[:, 0])),
        "pooled_region_output": relu(linear(layer("region_pooler"), regions[:, 0])),
    }


def reference(model, inputs):
    """Lu et al. 2019, section 2.2; the order of the layers from the authors' code."""
    layer, real = model.get_layer, inputs["region_padding_mask"]
    features, boxes = inputs["region_features"], inputs["region_boxes"]
    whole = (features * real[..., None]).sum(1) / real.sum(1, keepdims=True)
    features = np.concatenate([whole[:, None], features], axis=1).astype("float64")
    whole = np.tile([0.0, 0, 1, 1, 1], (len(boxes), 1, 1))
    locations = np.concatenate([whole, with_areas(boxes)], axis=1)
    real = np.concatenate([np.ones((len(real), 1), bool), real], axis=1)
    regions = linear(layer("region_embedding"), features)
    regions += linear(layer("location_embedding"), locations)
    words = embedded_words(model, inputs)
    return streams(model, words, regions, inputs["padding_mask"], real)


def vilbert():
    """The body without the dense layers of the published code that nothing calls."""
    text = bert(768, 12) - dense(768, 768)  # BERT without its pooler.
    embeddings = dense(2048, 1024) + dense(5, 1024) + 2 * 1024
    block = 4 * dense(1024, 1024) + 2 * dense(1024, 1024) + 4 * 1024
    # Queries of the regions, keys and values of the words, output; and the reverse.
    attentions = 2 * dense(1024, 1024) + 2 * dense(768, 1024)
    attentions += dense(768, 1024) + 2 * dense(1024, 1024) + dense(1024, 768)
    networks = 2 * dense(1024, 1024) + dense(768, 3072) + dense(3072, 768)
    co_attention = attentions + networks + 4 * (1024 + 768)
    poolers = dense(768, 1024) + dense(1024, 1024)
    return text + embeddings + 6 * block + 6 * co_attention + poolers


GRAPHS = [
    Graph(
        "vilbert_base",
        TINY,
        {"vilbert_base": vilbert()},
        heads={
            "vilbert_pretrainer": {"num_region_classes": C},
            "vilbert_classifier": {"num_classes": C, "hidden_dim": 31},
            "vilbert_scorer": {"fusion": "add"},
            "vilbert_referring": {},
        },
        exported=("vilbert_scorer", "vilbert_referring"),
        reference=reference,
    )
]
