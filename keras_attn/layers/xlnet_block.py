"""What XLNet is made of besides its attention: the block, and where targets start.

Legend: B batch, T tokens, M places of memory, S = M + T keys, P targets, D width.
"""

import keras
from keras import ops

from keras_attn.checks import check_fraction, check_positive, check_rank
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.feed_forward import FeedForward
from keras_attn.layers.initializers import fork
from keras_attn.layers.layer_normalization import LayerNormalization
from keras_attn.layers.relative_attention import RelativeMultiHeadAttention


def permutation_mask(order):
    """What each token may see when tokens are predicted in a given order.

    Args:
        order: The turn of each token, (B, T): the smallest number comes first. Tokens
            of the same turn don't see one another.

    Returns:
        (B, T, T), True where token t comes later than token s, and so may see it.
    """
    return ops.greater(ops.expand_dims(order, 2), ops.expand_dims(order, 1))


@keras.saving.register_keras_serializable("keras_attn")
class TargetEmbedding(BaseLayer):
    """The one vector that every target's query stream starts from: `g_i = w`.

    A target must not know its own token, so all it starts with is this vector; what
    tells it from other targets is its place.

    Args:
        embeddings_initializer: For the vector, (1, D).
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: Token embeddings, (B, T, D), which start the content stream.
        target_mapping: (B, P, T), 1 where target p is token t; or None.

    Returns:
        The start of a stream: the inputs, or with a `target_mapping` the vector once
        for each target, (B, P, D).

    Raises:
        ValueError: for an argument that is not of rank 3.

    Reference:
        Yang et al. 2019, "XLNet", section 2.3 (arXiv:1906.08237).
    """

    def __init__(self, embeddings_initializer="uniform", **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)

    def build(self, inputs_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(1, inputs_shape[-1]),
            initializer=fork(self.embeddings_initializer),
        )

    def call(self, inputs, target_mapping=None):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        if target_mapping is None:
            return inputs
        check_rank("target_mapping", target_mapping, 3, "(batch, targets, length)")
        batch, targets = ops.shape(target_mapping)[:2]
        shape = (batch, targets, inputs.shape[-1])
        vector = ops.cast(self.embeddings, inputs.dtype)
        return ops.broadcast_to(ops.expand_dims(vector, 0), shape)

    def compute_output_shape(self, inputs_shape, target_mapping_shape=None):
        if target_mapping_shape is None:
            return inputs_shape
        return *target_mapping_shape[:2], inputs_shape[-1]


@keras.saving.register_keras_serializable("keras_attn")
class SegmentMemory(BaseLayer):
    """What a block read, for the same block to see again in the next segment.

    No gradient goes back into it.

    Args:
        memory_length: States to keep, the last ones.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: What the block read in the tokens' places, (B, T, D).
        memory: What it had in front of that, (B, M, D).

    Returns:
        (B, M + T or `memory_length`, D), whichever is shorter.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.2 (arXiv:1901.02860).
    """

    def __init__(self, memory_length, **kwargs):
        super().__init__(**kwargs)
        self.memory_length = check_positive("memory_length", memory_length)

    def compute_output_shape(self, inputs_shape, memory_shape):
        lengths = (inputs_shape[1], memory_shape[1])
        kept = None if None in lengths else min(sum(lengths), self.memory_length)
        return inputs_shape[0], kept, inputs_shape[2]

    def call(self, inputs, memory):
        states = ops.concatenate([ops.cast(memory, inputs.dtype), inputs], axis=1)
        return ops.stop_gradient(states[:, -self.memory_length :])


@keras.saving.register_keras_serializable("keras_attn")
class XLNetBlock(BaseLayer):
    """Relative attention, then a feed-forward network, for either of two streams.

    Each is followed by a residual and a norm, `x = norm(x + f(x))`; both streams go
    through the same weights, a call each.

    Args:
        num_heads: N.
        mlp_dim: Width of the feed-forward network's hidden layer.
        key_dim: H. Default: D / N.
        activation: Of the feed-forward network.
        layer_norm_epsilon: Added to the variance.
        dropout: Probability of dropping a unit of a sub-layer's output or of the
            hidden layer.
        attention_dropout: Probability of dropping an attention probability.
        kernel_initializer: For every kernel.
        bias_initializer: For the biases and segment vectors of the attention.
        seed: Seed of the dropouts.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The content stream, (B, T, D).
        targets: The query stream, (B, P, D). With it the call is one of the query
            stream.
        return_attention_scores: Whether to return the probabilities as well.
        **attending: `target_mapping`, `positions`, `memory`, `same_segment`,
            `permutation_mask`, `padding_mask`, `attention_mask`, as for
            `RelativeMultiHeadAttention`.

    Returns:
        As `RelativeMultiHeadAttention`.

    Raises:
        ValueError: where D is no multiple of N and no `key_dim` is given.

    Reference:
        Yang et al. 2019, "XLNet", appendix A.2 (arXiv:1906.08237).
    """

    def __init__(
        self,
        num_heads,
        mlp_dim,
        *,
        key_dim=None,
        activation="gelu",
        layer_norm_epsilon=1e-12,
        dropout=0.0,
        attention_dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.mlp_dim = check_positive("mlp_dim", mlp_dim)
        self.key_dim = key_dim
        self.activation = keras.activations.get(activation)
        self.layer_norm_epsilon = layer_norm_epsilon
        self.dropout = check_fraction("dropout", dropout)
        self.attention_dropout = check_fraction("attention_dropout", attention_dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed

    def build(self, inputs_shape):
        width = inputs_shape[-1]
        key_dim = self.key_dim
        if key_dim is None:
            if width % self.num_heads:
                raise ValueError(
                    "The width must be a multiple of `num_heads`, or `key_dim` given. "
                    f"Received: width={width}, num_heads={self.num_heads}"
                )
            key_dim = width // self.num_heads
        shared = {"dtype": self.dtype_policy, "seed": self.seed}
        self.attention = RelativeMultiHeadAttention(
            self.num_heads,
            key_dim,
            dropout=self.attention_dropout,
            kernel_initializer=fork(self.kernel_initializer, "attention"),
            bias_initializer=fork(self.bias_initializer, "attention"),
            name="attention",
            **shared,
        )
        self.attention.build(inputs_shape)
        self.attention_norm = self._new_norm("attention_norm", inputs_shape)
        self.feed_forward = FeedForward(
            self.mlp_dim,
            activation=self.activation,
            dropout=self.dropout,
            kernel_initializer=fork(self.kernel_initializer, "feed_forward"),
            name="feed_forward",
            **shared,
        )
        self.feed_forward.build(inputs_shape)
        self.feed_forward_norm = self._new_norm("feed_forward_norm", inputs_shape)
        self._residual_dropout = Dropout(self.dropout, name="dropout", **shared)
        self._residual_dropout.build(inputs_shape)

    def _new_norm(self, name, shape):
        norm = LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )
        norm.build(shape)
        return norm

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
        outputs = self.attention(
            inputs,
            targets,
            target_mapping=target_mapping,
            positions=positions,
            memory=memory,
            same_segment=same_segment,
            permutation_mask=permutation_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        attended, *scores = outputs if return_attention_scores else (outputs,)
        stream = inputs if targets is None else targets
        attended = self._residual_dropout(attended, training=training)
        hidden = self.attention_norm(ops.add(stream, attended))
        outputs = self.feed_forward(hidden, training=training)
        outputs = self._residual_dropout(outputs, training=training)
        outputs = self.feed_forward_norm(ops.add(hidden, outputs))
        return (outputs, *scores) if return_attention_scores else outputs

    def compute_output_spec(self, inputs, targets=None, **attending):
        return self.attention.compute_output_spec(inputs, targets, **attending)
