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
from typing import Any, NamedTuple

from keras_attn.decoding import IncrementalPair
from keras_attn.layers import TransformerDecoderBlock, TransformerEncoderBlock
from keras_attn.layers.embeddings.token_embedding import TokenEmbedding
from keras_attn.layers.initializers import normal
from keras_attn.layers.normalization.layer_normalization import LayerNormalization
from keras_attn.models.parts.bert_encoder import token_embedding
from keras_attn.models.parts.decoders import incremental
from keras_attn.models.parts.decoders.pair_builders import build_pair, inputs_like
from keras_attn.models.parts.functional import by_name, numbered, sequence_inputs
from keras_attn.ops import token_positions


def block_stack(
    side: str,
    *,
    num_layers,
    num_heads,
    mlp_dim,
    norm_first,
    activation,
    layer_norm_epsilon,
    dropout,
    attention_dropout,
    mlp_dropout,
    **initializers,
) -> list:
    """The blocks of one side of a Transformer, and the norm after pre-norm blocks.

    Builders take the descriptions of their arguments from here.

    Args:
        side: `"encoder"` or `"decoder"`.
        num_layers: Number of blocks in the encoder, and in the decoder.
        num_heads: Attention heads per block.
        mlp_dim: Width of the feed-forward networks.
        norm_first: Pre-norm instead of the paper's post-norm; then a norm follows the
            last block of each side.
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
    initializer = normal(1 / math.sqrt(hidden_dim))
    return token_embedding(vocabulary_size, hidden_dim, initializer)


class Decoded(NamedTuple):
    """The results of the decoder.

    Attributes:
        features: (B, T, D).
        scores: For each block the probabilities of the cross-attention, (B, N, T, S).
        caches: For each block the keys and values of the self-attention.
        source_caches: For each block the keys and values of the cross-attention,
            (B, N, S, H).
    """

    features: Any
    scores: list[Any]
    caches: list[Any]
    source_caches: list[Any]


def decode(layers, hidden, memory=None, caches=None, **masks) -> Decoded:
    """The features of the target, and what each block attends to.

    Args:
        layers: Layers by name.
        hidden: The embedded target, (B, T, D).
        memory: The encoder's features, (B, S, E); None with caches.
        caches: In a step, the arguments `cache` and `cross_cache` of every block.
        **masks: `encoder_padding_mask` (B, S), and `padding_mask` of the target.
    """
    blocks = numbered(layers, "decoder_block")
    decoded = Decoded(hidden, [], [], [])
    # All are always returned: Keras can't share a layer between graphs in which its
    # number of outputs differs.
    options = {"return_attention_scores": True, "return_cache": True, **masks}
    for block, cache in zip(blocks, caches or [{}] * len(blocks), strict=True):
        hidden, _, scores, own, source = block(hidden, memory, **cache, **options)
        decoded.scores.append(scores)
        decoded.caches.append(own)
        decoded.source_caches.append(source)
    if "decoder_norm" in layers:
        hidden = layers["decoder_norm"](hidden)
    return decoded._replace(features=hidden)


def incremental_pair(model, encode, embed, length, **fields) -> IncrementalPair:
    """The models for decoding token by token; prompts may be padded on either side.

    The state is as in `keras_attn.models.parts.decoders.incremental`, plus, for each
    block, the keys and values of the encoder's features, `source_key_0`,
    `source_value_0`, … (B, N, S, H), which do not change.

    Args:
        model: A model whose input `decoder_token_ids` is the target.
        encode: From layers and inputs to features (B, S, E) and their padding mask
            (B, S), the input `padding_mask`, or None.
        embed: From layers, tokens (B, T) and positions (B, T) to (B, T, D).
        length: L.
        **fields: Further fields of the pair.
    """
    layers = by_name(model.layers)

    def prefill(inputs):
        """Reads the source and the prompt, and pads the caches to their length."""
        prompt_mask = inputs["decoder_padding_mask"]
        memory, memory_mask = encode(layers, inputs)
        positions = token_positions(prompt_mask)
        decoded = decode(
            layers,
            embed(layers, inputs["decoder_token_ids"], positions),
            memory,
            encoder_padding_mask=memory_mask,
            padding_mask=prompt_mask,
        )
        state = {
            **incremental.state_after_prompt(prompt_mask, decoded.caches, length),
            **incremental.name_caches(decoded.source_caches, "source_"),
        }
        if memory_mask is not None:
            state["padding_mask"] = memory_mask
        features = decoded.features
        return incremental.next_token_logits(layers, features, prompt_mask), state

    def step(token_ids, state):
        """Reads one token per row."""
        now = incremental.DecodingStep(token_ids, state)
        source_caches = incremental.caches_by_block(state, "source_")
        decoded = decode(
            layers,
            embed(layers, now.token_ids, now.positions),
            caches=[
                {"cache": own, "cross_cache": source}
                for own, source in zip(now.caches, source_caches, strict=True)
            ],
            padding_mask=now.padding_mask,
            encoder_padding_mask=state.get("padding_mask"),
        )
        logits = layers["token_embedding"](decoded.features[:, 0], reverse=True)
        return logits, now.state_after(decoded.caches)

    inputs = inputs_like({tensor.name: tensor for tensor in model.inputs})
    return build_pair(
        {**inputs, **sequence_inputs("decoder_padding_mask")},
        prefill,
        step,
        prompt="decoder_token_ids",
        max_length=length,
        **fields,
    )
