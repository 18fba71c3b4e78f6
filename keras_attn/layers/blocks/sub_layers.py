"""Helpers of the Transformer, Swin and XLNet blocks that build their sub-layers."""

from keras_attn.layers.blocks.feed_forward import FeedForward
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.normalization.layer_normalization import LayerNormalization


def build_now(layer, *shapes):
    """Builds a sub-layer and returns it.

    Each sub-layer is built before the next one is created, because both draw random
    seeds: a different order would change the initial weights of a seeded model.

    Args:
        layer: A Keras layer.
        *shapes: Shapes of the tensors that it will be called with.
    """
    layer.build(*shapes)
    return layer


def layer_norm(block, name: str) -> LayerNormalization:
    """A layer normalization of a block, not built yet."""
    return LayerNormalization(
        epsilon=block.layer_norm_epsilon, dtype=block.dtype_policy, name=name
    )


def feed_forward(block, **options) -> FeedForward:
    """The feed-forward network of a block, not built yet.

    Args:
        block: The block, which provides the sizes, the initializer and the seed.
        **options: Further arguments of `FeedForward`.
    """
    return FeedForward(
        block.mlp_dim,
        activation=block.activation,
        kernel_initializer=independent_copy(block.kernel_initializer, "feed_forward"),
        seed=block.seed,
        dtype=block.dtype_policy,
        name="feed_forward",
        **options,
    )


def head_size(width: int, num_heads: int, key_dim: int | None) -> int:
    """Width of the queries and keys of one head: `key_dim`, by default D / N.

    Args:
        width: D.
        num_heads: N.
        key_dim: None = the default.

    Raises:
        ValueError: If D is not a multiple of N and `key_dim` is None.
    """
    if key_dim is not None:
        return key_dim
    if width % num_heads:
        raise ValueError(
            "The width must be a multiple of `num_heads`, or `key_dim` given. "
            f"Received: width={width}, num_heads={num_heads}"
        )
    return width // num_heads
