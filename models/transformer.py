"""The Transformer: an encoder-decoder made of attention only.

    source -> embedding + position -> N encoder blocks ─┐ keys and values
    target -> embedding + position -> N decoder blocks ─┴─> logits

    x = √D E[token]                      (B, T, D)    `token_embedding`
    p = sinusoids(t), or P[t]            (T, D)       `position_embedding`
    h = x + p                            (B, T, D)    combine="add", the paper's
    h = [x; p] W                         (B, T, D)    combine="concatenate", and
                                                      `position_projection`, W (2D, D)

Lectures show the sum and the concatenation side by side; papers that concatenate
(Jaegle et al. 2021, arXiv:2103.03206) let the next layer mix the two. Here x and p are
D wide each and W projects them back to D: the embedding matrix stays the output matrix,
and blocks, caches and residuals keep their width. `[x; p] W = x W_x + p W_p`, so adding
is the case W = [I; I], in which tokens and positions share the dimensions.

The encoder is here; the blocks and the decoder are in
`models/parts/decoders/cross_decoder.py`.

Legend: B batch, S source length, T target length, L length of a cache, D width, V
vocabulary.
Layers: `token_embedding` (of both sides, and the output matrix), `position_embedding`,
`position_projection` if it is concatenated, `encoder_dropout`, `decoder_dropout`,
`encoder_block_0`, …, `decoder_block_0`, …, and `encoder_norm`, `decoder_norm` if the
blocks are pre-norm. `incremental()` finds them by these names.
"""

import functools
import math
from typing import Literal

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Epsilon, Probability
from keras_attn.decoding import IncrementalPair
from keras_attn.docstrings.descriptions import described_as
from keras_attn.layers import (
    Dense,
    LearnedPositionEmbedding,
    SinusoidalPositionEmbedding,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.embeddings.position_embedding import Merge
from keras_attn.layers.initializers import normal
from keras_attn.models.catalog import tasks
from keras_attn.models.catalog.cards import Training, model_cards, scored
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT, block_options, block_sizes
from keras_attn.models.parts.decoders import cross_decoder
from keras_attn.models.parts.decoders.incremental import check_cache_length
from keras_attn.models.parts.functional import (
    Functional,
    by_name,
    numbered,
    sequence_inputs,
)
from keras_attn.ops import row_positions

_sizes = functools.partial(block_sizes, vocabulary_size=37_000)
# Vaswani et al. 2017, table 3; the vocabulary size is for English-German.
VARIANTS = {
    "base": _sizes(num_layers=6, hidden_dim=512, num_heads=8, dropout=0.1),
    "big": _sizes(num_layers=6, hidden_dim=1024, num_heads=16, dropout=0.3),
}
CARDS = model_cards(
    "transformer_{variant}",
    {"base": 65_000_000, "big": 213_000_000},
    training={
        variant: Training(
            "WMT'14 En-De",
            "sections 5.1 and 5.2, table 2",
            tokens=steps * 25_000,
            hardware="p100",
            devices=8,
            hours=hours,
            flops=flops,
        )
        for variant, steps, hours, flops in (
            ("base", 100_000, 12, 3.3e18),
            ("big", 300_000, 3.5 * 24, 2.3e19),
        )
    },
    scores=[
        scored(
            f"BLEU {pair}",
            "newstest 2014, beam of 4",
            "table 2",
            {"base": base, "big": big},
        )
        for pair, base, big in (("En-De", 27.3, 28.4), ("En-Fr", 38.1, 41.8))
    ],
    title="Transformer {variant}, an encoder-decoder of only attention",
    paper="Vaswani et al. 2017, arXiv:1706.03762",
    **tasks.TRANSLATION,
)


@registered(CARDS, VARIANTS)
@described_as(cross_decoder.block_stack)
def build_transformer(
    variant: str = "base",
    *,
    vocabulary_size: int = FROM_VARIANT,
    num_layers: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    norm_first: bool = False,
    positions: Literal["sinusoidal", "learned"] = "sinusoidal",
    combine: Merge = "add",
    max_sequence_length: int | None = None,
    activation: Activation = "relu",
    layer_norm_epsilon: Epsilon = 1e-6,
    dropout: Probability = FROM_VARIANT,
    attention_dropout: Probability = 0.0,
    mlp_dropout: Probability = 0.0,
    name: str = "transformer",
) -> "Transformer":
    """Encoder and decoder blocks; one embedding matrix for both sides and the output.

    Embeddings are multiplied by √D (section 3.4), positions are sinusoids, norms
    follow the residuals. The length of a sentence is not limited, except by learned
    positions. Source positions are counted from the first real token, so padding on the
    left does not change the outputs.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        vocabulary_size: V, shared by source and target.
        hidden_dim: D.
        positions: `"sinusoidal"`, or `"learned"`, a table of vectors that source and
            target share (table 3, row E).
        combine: `"add"`, or `"concatenate"` token and position, D wide each, and
            project them to D, without a bias.
        max_sequence_length: Number of learned positions, the maximum number of tokens
            of a source, and of a target with its start token. Default: 256.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        name: Name of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Raises:
        ValueError: If `max_sequence_length` is given and positions are sinusoids, which
            have no number.

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
    """
    layers = [
        cross_decoder.scaled_embedding(vocabulary_size, hidden_dim),
        *_position_layers(hidden_dim, positions, combine, max_sequence_length),
    ]
    for side in ("encoder", "decoder"):
        layers.append(Dropout(dropout, name=f"{side}_dropout"))
        layers += cross_decoder.block_stack(
            side,
            num_layers=num_layers,
            num_heads=num_heads,
            mlp_dim=mlp_dim,
            norm_first=norm_first,
            mlp_dropout=mlp_dropout,
            **block_options(activation, layer_norm_epsilon, dropout, attention_dropout),
        )
    layers = by_name(layers)
    inputs = sequence_inputs("token_ids", "padding_mask", "decoder_token_ids")
    memory, memory_mask = _encode(layers, inputs)
    decoded = cross_decoder.decode(
        layers,
        _embed_target(layers, inputs["decoder_token_ids"]),
        memory,
        encoder_padding_mask=memory_mask,
    )
    logits = layers["token_embedding"](decoded.features, reverse=True)
    return Transformer(inputs=inputs, outputs=logits, name=name)


def _position_layers(hidden_dim, positions, combine, max_sequence_length):
    """The layer that adds or appends positions, and the projection of the latter."""
    if positions == "learned":
        table = LearnedPositionEmbedding(
            max_sequence_length or Transformer.default_max_length,
            combine,
            embeddings_initializer=normal(1 / math.sqrt(hidden_dim)),
            name="position_embedding",
        )
    elif max_sequence_length is None:
        table = SinusoidalPositionEmbedding(combine, name="position_embedding")
    else:
        raise ValueError(
            "`max_sequence_length` is the number of learned positions; sinusoids set "
            "no limit to the length: leave it out, or pass positions='learned'. "
            f"Received: max_sequence_length={max_sequence_length}"
        )
    if combine == "add":
        return [table]
    return [table, Dense(hidden_dim, use_bias=False, name="position_projection")]


def _embed(layers, side, token_ids, positions=None):
    """Scaled token embeddings with positions, (B, T, D)."""
    embedding = layers["token_embedding"]
    hidden = ops.multiply(embedding(token_ids), math.sqrt(embedding.output_dim))
    hidden = layers["position_embedding"](hidden, positions)
    if "position_projection" in layers:
        hidden = layers["position_projection"](hidden)
    return layers[f"{side}_dropout"](hidden)


def _embed_target(layers, decoder_token_ids, positions=None):
    return _embed(layers, "decoder", decoder_token_ids, positions)


def _encode(layers, inputs):
    """Features (B, S, D), which the decoder attends to, and their padding mask."""
    padding_mask = inputs["padding_mask"]
    positions = row_positions(padding_mask)
    hidden = _embed(layers, "encoder", inputs["token_ids"], positions)
    for block in numbered(layers, "encoder_block"):
        hidden = block(hidden, padding_mask=padding_mask)
    if "encoder_norm" in layers:
        hidden = layers["encoder_norm"](hidden)
    return hidden, padding_mask


@keras.saving.register_keras_serializable("keras_attn")
class Transformer(Functional):
    """The functional model of `build_transformer`, with incremental decoding."""

    # Sinusoids set no limit to the length; without `max_length` caches are this long.
    default_max_length = 256

    @property
    def max_length(self) -> int | None:
        """The maximum number of tokens of a target; None if positions are sinusoids."""
        positions = self.get_layer("position_embedding")
        return getattr(positions, "max_sequence_length", None)

    def incremental(self, max_length=None) -> IncrementalPair:
        """The models for decoding token by token; see `cross_decoder.incremental_pair`.

        Args:
            max_length: L, the maximum number of tokens in the prompt and its
                continuation. Default: the number of positions if they are learned,
                else 256.

        Raises:
            ValueError: If `max_length` exceeds the number of learned positions.
        """
        limit = self.max_length
        length = check_cache_length(
            max_length, limit or self.default_max_length, is_limit=limit is not None
        )
        return cross_decoder.incremental_pair(
            self,
            _encode,
            _embed_target,
            length,
            source_vocabulary_size=self.get_layer("token_embedding").input_dim,
        )
