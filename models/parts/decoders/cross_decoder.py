"""A Transformer's blocks, and its decoder, which attends to the features of an encoder.

    tokens -> embedding -> decoder_block_0 -> decoder_block_1 -> … (-> decoder_norm)
                             ↑ keys and values of the encoder's features

The encoder reads a text (`transformer.py`) or an image (`transformer_captioners.py`).

Legend: B batch, S positions of the encoder, T target length, P prompt length, L length
of a cache, N heads, H head size, D width, E width of the encoder, V vocabulary.
Layers: `token_embedding` (also the output matrix), `encoder_block_0`, …,
`decoder_block_0`, …, and `encoder_norm`, `decoder_norm` if the blocks are pre-norm.
"""

import math
from typing import TypedDict

import keras

from keras_attn.argument_types import Activation
from keras_attn.decoding import IncrementalPair
from keras_attn.layers import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attn.layers.embeddings.token_embedding import TokenEmbedding
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.parts.decoders import incremental
from keras_attn.models.parts.functional import by_name, numbered, sequence_inputs
from keras_attn.models.parts.variants import FROM_VARIANT
from keras_attn.ops import token_positions


class StackOptions(TypedDict, total=False):
    """Types of the options of `block_stack`, for the builders that pass them on."""

    num_layers: int
    num_heads: int
    mlp_dim: int
    norm_first: bool
    activation: Activation
    layer_norm_epsilon: float
    attention_dropout: float
    mlp_dropout: float


def block_stack(
    side: str,
    *,
    num_layers: int = FROM_VARIANT,
    num_heads: int = FROM_VARIANT,
    mlp_dim: int = FROM_VARIANT,
    norm_first: bool = False,
    activation: Activation = "relu",
    layer_norm_epsilon: float = 1e-6,
    dropout: float = FROM_VARIANT,
    attention_dropout: float = 0.0,
    mlp_dropout: float = 0.0,
    **initializers,
) -> list:
    """The blocks of one side of a Transformer, and the norm after pre-norm blocks.

    Args:
        side: `"encoder"` or `"decoder"`.
        num_layers: Number of blocks.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        norm_first: Pre-norm instead of post-norm.
        activation: Activation of the feed-forward networks.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output.
        attention_dropout: Probability of dropping an attention probability.
        mlp_dropout: Probability of dropping a hidden unit.
        **initializers: `kernel_initializer` and `output_initializer` of the blocks.
    """
    blocks = {"encoder": TransformerEncoderBlock, "decoder": TransformerDecoderBlock}
    layers = [
        blocks[side](
            num_heads,
            mlp_dim,
            norm_first=norm_first,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            dropout=dropout,
            attention_dropout=attention_dropout,
            mlp_dropout=mlp_dropout,
            name=f"{side}_block_{index}",
            **initializers,
        )
        for index in range(num_layers)
    ]
    if norm_first:
        norm = LayerNormalization(epsilon=layer_norm_epsilon, name=f"{side}_norm")
        layers.append(norm)
    return layers


def scaled_embedding(vocabulary_size: int, hidden_dim: int) -> TokenEmbedding:
    """Embeddings to multiply by √D, after which they have a variance of 1."""
    return TokenEmbedding(
        vocabulary_size,
        hidden_dim,
        embeddings_initializer=normal(1 / math.sqrt(hidden_dim)),
        name="token_embedding",
    )


def decode(layers, hidden, memory=None, caches=None, **masks):
    """Features (B, T, D), and for every block its scores and the caches.

    The scores are the probabilities (B, N, T, S) of the cross-attention; the caches the
    keys and values of both attentions.

    Args:
        layers: Layers by name.
        hidden: The embedded target, (B, T, D).
        memory: The encoder's features, (B, S, E); None with caches.
        caches: In a step, the arguments `cache` and `cross_cache` of every block.
        **masks: `encoder_padding_mask` (B, S), and `padding_mask` of the target.
    """
    blocks = numbered(layers, "decoder_block")
    scores, entries = [], []
    # All are always returned: Keras can't share a layer between graphs if its number of
    # outputs differs.
    options = {"return_attention_scores": True, "return_cache": True, **masks}
    for block, cache in zip(blocks, caches or [{}] * len(blocks), strict=True):
        hidden, _, seen, *entry = block(hidden, memory, **cache, **options)
        scores.append(seen)
        entries.append(entry)
    if "decoder_norm" in layers:
        hidden = layers["decoder_norm"](hidden)
    return hidden, scores, entries


def incremental_pair(model, encode, embed, length, **fields) -> IncrementalPair:
    """The models for decoding token by token; prompts may be padded on either side.

    The state is that of `keras_attn.models.parts.decoders.incremental` with, for each
    block, the keys and values of the encoder's features, `source_key_0`,
    `source_value_0`, … (B, N, S, H), which do not change.

    Args:
        model: A model whose input `decoder_token_ids` is the target.
        encode: From layers and inputs to features (B, S, E) and their padding mask
            (B, S), an input, or None.
        embed: From layers, tokens (B, T) and positions (B, T) to (B, T, D).
        length: L.
        **fields: Further fields of the pair.
    """
    layers = by_name(model.layers)
    prefill, mask = _prefill(model, layers, encode, embed, length)
    return IncrementalPair(
        prefill,
        _step(layers, embed, length, mask),
        prompt="decoder_token_ids",
        max_length=length,
        **fields,
    )


def _prefill(model, layers, encode, embed, length):
    """Reads the source and the prompt, and pads the caches to their length.

    Returns:
        The model, and the encoder's padding mask (B, S), one of its inputs, or None.
    """
    inputs = {
        tensor.name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=tensor.name)
        for tensor in model.inputs
    }
    inputs |= sequence_inputs("decoder_padding_mask")
    prompt_mask = inputs["decoder_padding_mask"]
    memory, memory_mask = encode(layers, inputs)
    positions = token_positions(prompt_mask)
    hidden, _, caches = decode(
        layers,
        embed(layers, inputs["decoder_token_ids"], positions),
        memory,
        encoder_padding_mask=memory_mask,
        padding_mask=prompt_mask,
    )
    own, source = zip(*caches, strict=True)
    outputs = {
        "logits": incremental.next_token_logits(layers, hidden, prompt_mask),
        **incremental.state_after_prompt(prompt_mask, own, length),
        **incremental.name_caches(source, "source_"),
    }
    return keras.Model(inputs, outputs, name="prefill"), memory_mask


def _step(layers, embed, length, memory_mask):
    """Reads one token per row."""
    blocks = numbered(layers, "decoder_block")
    attentions = [block.self_attention for block in blocks]
    inputs = incremental.step_inputs(attentions, length)
    if memory_mask is not None:
        inputs |= sequence_inputs(memory_mask.name)
    attentions = [block.cross_attention for block in blocks]
    inputs |= incremental.cache_inputs(attentions, None, "source_")
    source_caches = incremental.caches_by_block(inputs, "source_")
    step = incremental.DecodingStep(inputs)
    hidden, _, entries = decode(
        layers,
        embed(layers, step.token_ids, step.positions),
        caches=[
            {"cache": own, "cross_cache": source}
            for own, source in zip(step.caches, source_caches, strict=True)
        ],
        padding_mask=step.padding_mask,
        encoder_padding_mask=None if memory_mask is None else inputs[memory_mask.name],
    )
    outputs = {
        "logits": layers["token_embedding"](hidden[:, 0], reverse=True),
        **step.state_after([own for own, _ in entries]),
    }
    return keras.Model(inputs, outputs, name="step")
