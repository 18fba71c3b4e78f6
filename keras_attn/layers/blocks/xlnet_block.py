"""The XLNet block, its memory, and the first layer of its query stream.

Legend: B batch, T tokens, M memory length, S = M + T keys, P targets, N heads, H head
size, D width.
"""

import keras
from keras import ops

from keras_attn.checks.argument_types import Activation, Initializer
from keras_attn.checks.arguments import (
    check_fraction,
    check_positive,
    check_positive_or_none,
    check_rank,
    check_shape,
)
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.gelu import get_activation
from keras_attn.layers.attention.attention_checks import check_attention_mask
from keras_attn.layers.attention.relative_attention import RelativeMultiHeadAttention
from keras_attn.layers.attention.relative_checks import sum_of_lengths
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.blocks.sub_layers import (
    build_now,
    feed_forward,
    head_size,
    layer_norm,
)
from keras_attn.layers.dropout import make_dropout
from keras_attn.layers.initializers import independent_copy
from keras_attn.ops import merge_masks


def permutation_mask(order):
    """Mask of what each token attends to when tokens are predicted in a given order.

    Args:
        order: Rank of each token in the order of prediction, (B, T), lowest first.
            Tokens of equal rank do not attend to each other.

    Returns:
        (B, T, T), True where token t comes after token s, and so attends to it.
    """
    return ops.greater(ops.expand_dims(order, 2), ops.expand_dims(order, 1))


@keras.saving.register_keras_serializable("keras_attn")
class TargetEmbedding(BaseLayer):
    """First layer of the query stream: the same learned vector, `g_i = w`.

    A target must not see its own token, so every target starts from the same vector;
    only its position distinguishes it from the others.

    Args:
        embeddings_initializer: Initializer of the vector, (1, D).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Token embeddings, (B, T, D), the input of the content stream.
        target_mapping: (B, P, T), 1 where target p is token t; or None.

    Returns:
        The input of a stream: `inputs`, or with a `target_mapping` the vector repeated
        for each target, (B, P, D).

    Raises:
        ValueError: If an argument does not have 3 axes.

    Reference:
        Yang et al. 2019, "XLNet", section 2.3 (arXiv:1906.08237).
    """

    def __init__(self, embeddings_initializer: Initializer = "uniform", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(1, inputs_shape[-1]),
            initializer=independent_copy(self.embeddings_initializer),
        )

    def call(self, inputs, target_mapping=None):
        shapes = [x.shape for x in (inputs, target_mapping) if x is not None]
        self.compute_output_shape(*shapes)  # Checks the shapes.
        if target_mapping is None:
            return inputs
        batch, targets = ops.shape(target_mapping)[:2]
        shape = (batch, targets, inputs.shape[-1])
        vector = ops.cast(self.embeddings, inputs.dtype)
        return ops.broadcast_to(ops.expand_dims(vector, 0), shape)

    def compute_output_shape(self, inputs_shape, target_mapping_shape=None):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        if target_mapping_shape is None:
            return inputs_shape
        check_rank(
            "target_mapping", target_mapping_shape, 3, "(batch, targets, length)"
        )
        return *target_mapping_shape[:2], inputs_shape[-1]


@keras.saving.register_keras_serializable("keras_attn")
class SegmentMemory(BaseLayer):
    """Keeps the last inputs of a block as its memory for the next segment.

    No gradient flows into the memory.

    Args:
        memory_length: Maximum number of positions to keep.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The block's inputs for this segment, (B, T, D).
        memory: Its memory of earlier segments, (B, M, D).

    Returns:
        The last positions of both, (B, min(M + T, `memory_length`), D).

    Raises:
        ValueError: If an input has the wrong shape.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.2 (arXiv:1901.02860).
    """

    def __init__(self, memory_length: int, **kwargs):
        super().__init__(**kwargs)
        self.memory_length = check_positive("memory_length", memory_length)

    def compute_output_shape(self, inputs_shape, memory_shape):
        check_rank("inputs", inputs_shape, 3, "(batch, length, width)")
        expected = (inputs_shape[0], None, inputs_shape[2])
        check_shape("memory", memory_shape, expected, "(batch, memory length, width)")
        lengths = (inputs_shape[1], memory_shape[1])
        kept = None if None in lengths else min(sum(lengths), self.memory_length)
        return inputs_shape[0], kept, inputs_shape[2]

    def call(self, inputs, memory):
        self.compute_output_shape(inputs.shape, memory.shape)  # Checks the shapes.
        states = ops.concatenate([ops.cast(memory, inputs.dtype), inputs], axis=1)
        return ops.stop_gradient(states[:, -self.memory_length :])


@keras.saving.register_keras_serializable("keras_attn")
@described_as(RelativeMultiHeadAttention)
class XLNetBlock(BaseLayer):
    """Relative attention, then a feed-forward network, for one of two streams.

    Post-norm: `x = norm(x + attention(x))`, then `x = norm(x + FFN(x))`. Each stream is
    one call; both use the same weights.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        key_dim: H. Default: D / N.
        activation: Activation of the feed-forward network's hidden layer.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output or of the
            hidden layer.
        attention_dropout: Probability of dropping an attention probability.
        kernel_initializer: Initializer of every kernel.
        bias_initializer: Initializer of the biases and segment vectors of the
            attention.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The content stream, (B, T, D).
        targets: The query stream, (B, P, D). If given, the call computes the query
            stream, otherwise the content stream.
        permutation_mask: (B, T, T), True where token t comes after token s in the
            factorization order and therefore attends to it. In the content stream a
            token also attends to itself. All tokens attend to the memory.
        return_attention_scores: Whether to also return the attention probabilities.

    Returns:
        As `RelativeMultiHeadAttention`.

    Raises:
        ValueError: If D is not a multiple of N and `key_dim` is None.

    Reference:
        Yang et al. 2019, "XLNet", appendix A.2 (arXiv:1906.08237).
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        *,
        key_dim: int | None = None,
        activation: Activation = "gelu",
        layer_norm_epsilon: float = 1e-12,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.key_dim = check_positive_or_none("key_dim", key_dim)
        self.activation = get_activation(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout = check_fraction("dropout", dropout)
        self.attention_dropout = check_fraction("attention_dropout", attention_dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed

    def build(self, inputs_shape):
        self.attention = RelativeMultiHeadAttention(
            self.num_heads,
            head_size(inputs_shape[-1], self.num_heads, self.key_dim),
            dropout=self.attention_dropout,
            kernel_initializer=independent_copy(self.kernel_initializer, "attention"),
            bias_initializer=independent_copy(self.bias_initializer, "attention"),
            seed=self.seed,
            dtype=self.dtype_policy,
            name="attention",
        )
        self.attention.build(inputs_shape)
        self.attention_norm = build_now(
            layer_norm(self, "attention_norm"), inputs_shape
        )
        self.feed_forward = build_now(
            feed_forward(self, dropout=self.dropout), inputs_shape
        )
        norm = layer_norm(self, "feed_forward_norm")
        self.feed_forward_norm = build_now(norm, inputs_shape)
        self._residual_dropout = make_dropout(self)
        self._residual_dropout.build(inputs_shape)

    def call(
        self,
        inputs,
        targets=None,
        *,
        target_mapping=None,
        positions=None,
        memory=None,
        same_segment=None,
        permutation_mask=None,
        padding_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
    ):
        _check_permutation(inputs, permutation_mask, memory)
        if permutation_mask is not None:
            shape = (inputs.shape[0], self.num_heads, inputs.shape[1])
            shape = (*shape, sum_of_lengths(inputs, memory))
            check_attention_mask("attention_mask", attention_mask, shape)
            visible = ops.cast(permutation_mask, "bool")
            if targets is None:
                visible = _with_diagonal(visible)
            attention_mask = merge_masks(
                attention_mask=attention_mask,
                causal=_with_memory(visible, memory),
                per_head=attention_mask is not None and len(attention_mask.shape) == 4,
            )
        results = self.attention(
            inputs,
            targets,
            target_mapping=target_mapping,
            positions=positions,
            memory=memory,
            same_segment=same_segment,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        # Not requested in every call: the scores of the query stream cost a product.
        attended, scores = results if return_attention_scores else (results, None)
        x = inputs if targets is None else targets
        dropped = self._residual_dropout(attended, training=training)
        x = self.attention_norm(x + dropped)
        outputs = self.feed_forward(x, training=training)
        dropped = self._residual_dropout(outputs, training=training)
        x = self.feed_forward_norm(x + dropped)
        return (x, scores) if return_attention_scores else x

    def compute_output_spec(
        self, inputs, targets=None, *, permutation_mask=None, **attending
    ):
        _check_permutation(inputs, permutation_mask, attending.get("memory"))
        return self.attention.compute_output_spec(inputs, targets, **attending)


def _check_permutation(inputs, permutation_mask, memory):
    if memory is not None:
        check_rank("memory", memory, 3, "(batch, memory length, width)")
    shape = (*inputs.shape[:2], inputs.shape[1])
    check_attention_mask("permutation_mask", permutation_mask, shape, ranks=(3,))


def _with_diagonal(visible):
    """The mask of the content stream, in which a token also attends to itself."""
    index = ops.arange(ops.shape(visible)[1], dtype="int32")
    diagonal = ops.equal(ops.expand_dims(index, 1), ops.expand_dims(index, 0))
    return ops.logical_or(visible, diagonal)


def _with_memory(visible, memory):
    """(B, T, T) -> (B, T, S): every token attends to the memory."""
    if memory is None:
        return visible
    row = ops.expand_dims(ops.ones_like(memory[:, :, 0], dtype="bool"), 1)
    shape = (*ops.shape(visible)[:2], ops.shape(memory)[1])
    return ops.concatenate([ops.broadcast_to(row, shape), visible], axis=2)
