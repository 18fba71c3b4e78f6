"""The Transformer: attention alone, from one sentence to another.

    source -> embedding + position -> N encoder blocks ─┐ keys and values
    target -> embedding + position -> N decoder blocks ─┴─> logits

Legend: B batch, S source length, T target length, P prompt length, L length of a cache,
N heads, H head size, D width, V vocabulary.
Layers: `token_embedding` (of both sides, and the output matrix), `position_embedding`,
`encoder_dropout`, `decoder_dropout`, `encoder_block_0`, …, `decoder_block_0`, …, and
`encoder_norm`, `decoder_norm` where the blocks are pre-norm. `incremental()` finds
them by these names.
"""

import math

import keras
from keras import ops

from keras_attn.decoding import IncrementalPair
from keras_attn.layers import (
    SinusoidalPositionEmbedding,
    TransformerDecoderBlock,
    TransformerEncoderBlock,
)
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import normal
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.token_embedding import TokenEmbedding
from keras_attn.models.parts import incremental
from keras_attn.models.parts.functional import Functional
from keras_attn.models.parts.registry import ModelCard, register
from keras_attn.models.parts.variants import resolve
from keras_attn.ops import row_positions, token_positions

# Vaswani et al. 2017, table 3; the vocabulary is that of English-German.
VARIANTS = {
    "base": {
        "vocabulary_size": 37_000,
        "num_layers": 6,
        "hidden_dim": 512,
        "num_heads": 8,
        "mlp_dim": 2048,
        "dropout": 0.1,
    },
    "big": {
        "vocabulary_size": 37_000,
        "num_layers": 6,
        "hidden_dim": 1024,
        "num_heads": 16,
        "mlp_dim": 4096,
        "dropout": 0.3,
    },
}


def build_transformer(
    variant="base",
    *,
    vocabulary_size=None,
    num_layers=None,
    hidden_dim=None,
    num_heads=None,
    mlp_dim=None,
    norm_first=False,
    activation="relu",
    layer_norm_epsilon=1e-6,
    dropout=None,
    attention_dropout=0.0,
    mlp_dropout=0.0,
    name="transformer",
):
    """Encoder and decoder blocks on one embedding, which is also the output matrix.

    Embeddings are multiplied by √D (section 3.4), positions are sinusoids, norms
    follow the residuals. There is no limit to the length of a sentence. Those of the
    source count from its first real token, so padding on the left moves nothing.

    Args:
        variant: A row of `VARIANTS`; what is None below is as it says.
        vocabulary_size: V, of source and target together.
        num_layers: Blocks of the encoder, and of the decoder.
        hidden_dim: D.
        num_heads: Attention heads a block.
        mlp_dim: Width of the feed-forward networks.
        norm_first: Pre-norm instead of the paper's post-norm; then a norm follows the
            last block of each side.
        activation: Of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of an embedding or a sub-layer.
        attention_dropout: Probability of dropping an attention probability.
        mlp_dropout: Probability of dropping a hidden unit.
        name: Of the model.

    Returns:
        A model from `token_ids` (B, S), `padding_mask` (B, S) and
        `decoder_token_ids` (B, T) to logits (B, T, V).

    Reference:
        Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
    """
    numbers = resolve(
        VARIANTS,
        variant,
        vocabulary_size=vocabulary_size,
        num_layers=num_layers,
        hidden_dim=hidden_dim,
        num_heads=num_heads,
        mlp_dim=mlp_dim,
        dropout=dropout,
    )
    width = numbers["hidden_dim"]
    parts = [
        TokenEmbedding(
            numbers["vocabulary_size"],
            width,
            # Multiplied by √D, the embeddings have a variance of 1.
            embeddings_initializer=normal(1 / math.sqrt(width)),
            name="token_embedding",
        ),
        SinusoidalPositionEmbedding(name="position_embedding"),
    ]
    blocks = {"encoder": TransformerEncoderBlock, "decoder": TransformerDecoderBlock}
    for side, block in blocks.items():
        parts.append(Dropout(numbers["dropout"], name=f"{side}_dropout"))
        for index in range(numbers["num_layers"]):
            part = block(
                numbers["num_heads"],
                numbers["mlp_dim"],
                activation=activation,
                norm_first=norm_first,
                layer_norm_epsilon=layer_norm_epsilon,
                dropout=numbers["dropout"],
                attention_dropout=attention_dropout,
                mlp_dropout=mlp_dropout,
                name=f"{side}_block_{index}",
            )
            parts.append(part)
        if norm_first:
            parts.append(
                LayerNormalization(epsilon=layer_norm_epsilon, name=f"{side}_norm")
            )
    part = {layer.name: layer for layer in parts}
    inputs = _inputs()
    memory = _encode(part, inputs)
    hidden, _ = _decode(
        part,
        inputs["decoder_token_ids"],
        memory=memory,
        encoder_padding_mask=inputs["padding_mask"],
    )
    logits = part["token_embedding"](hidden, reverse=True)
    return Transformer(inputs=inputs, outputs=logits, name=name)


def _embed(part, side, token_ids, positions=None):
    """Scaled token embeddings and positions, (B, T, D)."""
    embedding = part["token_embedding"]
    hidden = ops.multiply(embedding(token_ids), math.sqrt(embedding.output_dim))
    hidden = part["position_embedding"](hidden, positions)
    return part[f"{side}_dropout"](hidden)


def _encode(part, inputs):
    """What the decoder attends to, (B, S, D)."""
    positions = row_positions(inputs["padding_mask"])
    hidden = _embed(part, "encoder", inputs["token_ids"], positions)
    for block in incremental.blocks(part, "encoder_block"):
        hidden = block(hidden, padding_mask=inputs["padding_mask"])
    return part["encoder_norm"](hidden) if "encoder_norm" in part else hidden


def _decode(part, decoder_token_ids, *, positions=None, caches=None, **attended):
    """Features (B, T, D), and of every block the keys and values of both attentions.

    Args:
        part: Layers by name.
        decoder_token_ids: (B, T).
        positions: (B, T). Default: 0 … T-1.
        caches: One dictionary of cache arguments per block, for a step.
        **attended: Further arguments of every block, such as `encoder_padding_mask`.
    """
    memory = attended.pop("memory", None)
    hidden = _embed(part, "decoder", decoder_token_ids, positions)
    after = []
    for index, block in enumerate(incremental.blocks(part, "decoder_block")):
        before = {} if caches is None else caches[index]
        # Asked for even where nobody takes them, and then never computed: Keras can't
        # join graphs in which a layer returns now one tensor, now three.
        hidden, *cached = block(hidden, memory, return_cache=True, **before, **attended)
        after.append(cached)
    if "decoder_norm" in part:
        hidden = part["decoder_norm"](hidden)
    return hidden, after


@keras.saving.register_keras_serializable("keras_attn")
class Transformer(Functional):
    """The functional model of `build_transformer`, which can decode."""

    # A sinusoid has no end; where nobody says how long an answer may be, this long.
    default_max_length = 256

    def incremental(self, max_length=None) -> IncrementalPair:
        """Its two halves for decoding; prompts may be padded on either side.

        The state is that of `keras_attn.models.parts.incremental` with, for each block,
        the keys and values of the source, `source_key_0`, `source_value_0`, …
        (B, N, S, H), which do not change.

        Args:
            max_length: L, the most tokens that prompt and continuation have together.
                Default: 256.
        """
        part = incremental.parts(self)
        length = incremental.check_length(max_length, self.default_max_length)
        return IncrementalPair(
            _prefill(part, length),
            _step(part, length),
            prompt="decoder_token_ids",
            max_length=length,
            source_vocabulary_size=part["token_embedding"].input_dim,
        )


def _prefill(part, length):
    """Reads the source and the prompt, and makes room behind it."""
    prompt_mask = keras.Input((None,), dtype="bool", name="decoder_padding_mask")
    inputs = {**_inputs(), "decoder_padding_mask": prompt_mask}
    hidden, caches = _decode(
        part,
        inputs["decoder_token_ids"],
        positions=token_positions(prompt_mask),
        memory=_encode(part, inputs),
        encoder_padding_mask=inputs["padding_mask"],
        padding_mask=prompt_mask,
    )
    own, source = zip(*caches, strict=True)
    outputs = {
        "logits": incremental.last_logits(part, hidden, prompt_mask),
        **incremental.state_behind(prompt_mask, own, length),
        **incremental.named(source, "source_"),
    }
    return keras.Model(inputs, outputs, name="prefill")


def _step(part, length):
    """Reads one token a row."""
    blocks = incremental.blocks(part, "decoder_block")
    attentions = [block.self_attention for block in blocks]
    inputs = incremental.step_inputs(attentions, length)
    inputs["padding_mask"] = keras.Input((None,), dtype="bool", name="padding_mask")
    attentions = [block.cross_attention for block in blocks]
    inputs |= incremental.cache_inputs(attentions, None, "source_")
    now = incremental.DecodingStep(inputs)
    hidden, caches = _decode(
        part,
        now.token_ids,
        positions=now.positions,
        caches=[
            {"cache": own, "cross_cache": source}
            for own, source in zip(
                now.caches, incremental.pairs_of(inputs, "source_"), strict=True
            )
        ],
        padding_mask=now.padding_mask,
        encoder_padding_mask=inputs["padding_mask"],
    )
    outputs = {
        "logits": part["token_embedding"](hidden[:, 0], reverse=True),
        **now.state_after([own for own, _ in caches]),
    }
    return keras.Model(inputs, outputs, name="step")


def _inputs():
    names = {"token_ids": "int32", "padding_mask": "bool", "decoder_token_ids": "int32"}
    return {
        name: keras.Input((None,), dtype=dtype, name=name)
        for name, dtype in names.items()
    }


def _card(variant, parameters, bleu):
    return ModelCard(
        name=f"transformer_{variant}",
        family="transformer",
        title=f"Transformer {variant}, an encoder-decoder of attention alone",
        paper="Vaswani et al. 2017, arXiv:1706.03762",
        year=2017,
        task="translation",
        parameters=parameters,
        inputs={
            "token_ids": "(B, S) int32, the source",
            "padding_mask": "(B, S) bool, True = a real source token",
            "decoder_token_ids": "(B, T) int32, the target behind its start token",
        },
        outputs={"logits": "(B, T, V), before the softmax"},
        notes=f"WMT'14: BLEU {bleu} (beam of 4, length penalty 0.6)",
    )


for _variant, _count, _bleu in (
    ("base", 65_000_000, "En-De 27.3, En-Fr 38.1"),
    ("big", 213_000_000, "En-De 28.4, En-Fr 41.8"),
):
    register(_card(_variant, _count, _bleu), build_transformer, _variant)
