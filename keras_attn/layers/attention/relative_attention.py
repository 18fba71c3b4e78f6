"""Multi-head attention with relative positions, for Transformer-XL and XLNet.

The equations are in `keras_attn.ops.relative`.

Legend: B batch, T tokens, M memory length, S = M + T keys, R = T + S distances,
P targets, N heads, H head size, D width.
"""

from types import SimpleNamespace

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import check_fraction, check_positive
from keras_attn.kernels.precision import at_least_float32_dtype
from keras_attn.layers import recorder
from keras_attn.layers.attention.relative_checks import check_call, sum_of_lengths
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, make_dropout
from keras_attn.layers.embeddings.relative_position_encoding import encode_distances
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.projection import add_projection
from keras_attn.ops import both_masks, merge_masks
from keras_attn.ops.relative import relative_attention


@keras.saving.register_keras_serializable("keras_attn")
class RelativeMultiHeadAttention(BaseLayer):
    """Multi-head self-attention with relative positions, for one of two streams.

    `concat(head_1 … head_N) W^O`, `head_i = softmax(e_i) v_i`, with the scores e of
    `keras_attn.ops.relative`. The projections have no biases.

    The content stream is standard self-attention. The query stream predicts tokens: the
    query of a target contains the target's position but not its content, and attends to
    the keys and values of the content stream. Each call computes one stream; both use
    the same weights.

    Args:
        num_heads: N.
        key_dim: H.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For each of the projection kernels.
        bias_initializer: For u, v, w and the segment embeddings.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The content stream, (B, T, D).
        targets: The query stream, (B, P, D). If given, the call computes the query
            stream.
        target_mapping: (B, P, T), required with `targets`: 1 where target p is token t.
            Rows are one-hot, and no token belongs to two targets.
        positions: Encoded distances, (1, R, D). Default: the output of
            `RelativePositionEncoding()`.
        memory: States before the inputs, which are also attended to, (B, M, D).
        same_segment: (B, T, S), True where token and key are in the same segment.
            Default: everywhere. The segment term is then the same for every key of a
            query and is left out.
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        The content stream, (B, T, D), or with `targets` the query stream, (B, P, D).
        With `return_attention_scores` also the probabilities, (B, N, T, S) or
        (B, N, P, S).

    Raises:
        ValueError: If an input does not have 3 axes, a mask has the wrong shape, or
            only one of `targets` and `target_mapping` is given.

    Masking:
        Without a memory, the Keras mask of the inputs is used as a `padding_mask`. A
        query whose keys are all masked gets heads of zeros.

    Recording:
        The probabilities of the query stream are recorded as `<path>/query_stream`.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860); two streams
        and segments: Yang et al. 2019, "XLNet", sections 2.3 to 2.5
        (arXiv:1906.08237).
    """

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        *,
        dropout: float = 0.0,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        seed: int | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.num_heads = check_positive("num_heads", num_heads)
        self.key_dim = check_positive("key_dim", key_dim)
        self.dropout = check_fraction("dropout", dropout)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.seed = seed
        self._dropout = make_dropout(self) if dropout else None

    def build(self, inputs_shape):
        width, heads = inputs_shape[-1], self.num_heads * self.key_dim
        vectors = (self.num_heads, self.key_dim)

        def projection(name, inputs, outputs):
            return add_projection(self, name, (inputs,), outputs, use_bias=False)

        def vector(name, shape):
            initializer = independent_copy(self.bias_initializer, name)
            return self.add_weight(name=name, shape=shape, initializer=initializer)

        self.query = projection("query", width, heads)
        self.key = projection("key", width, heads)
        self.value = projection("value", width, heads)
        self.position = projection("position", width, heads)
        self.output_projection = projection("output", heads, width)
        self.content_bias = vector("content_bias", vectors)
        self.position_bias = vector("position_bias", vectors)
        self.segment_bias = vector("segment_bias", vectors)
        self.segment_embedding = vector("segment_embedding", (2, *vectors))

    def call(
        self,
        inputs,
        targets=None,
        *,
        target_mapping=None,
        positions=None,
        memory=None,
        same_segment=None,
        padding_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        inputs_mask=None,
    ):
        check_call(
            self,
            inputs,
            targets,
            target_mapping=target_mapping,
            positions=positions,
            memory=memory,
            same_segment=same_segment,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
        )
        if memory is None:  # Keras' masks do not cover the memory.
            # If a call has a single tensor, Keras names its mask `mask`; if it has
            # several, Keras names each mask `<argument>_mask`.
            keras_mask = inputs_mask if mask is None else mask
            padding_mask = both_masks(padding_mask, keras_mask)
        if positions is None:
            positions = encode_distances(inputs, memory, dtype=self.compute_dtype)
        known = inputs  # (B, S, D)
        if memory is not None:
            known = ops.concatenate([memory, inputs], axis=1)
        queries = self._heads(self.query, inputs if targets is None else targets)
        mapping = None
        if targets is not None:
            mapping = ops.expand_dims(ops.cast(target_mapping, self.compute_dtype), 1)
            # From (B, N, P, H) to the positions of their tokens, (B, N, T, H), where
            # their distances to the keys match `relative_distances`.
            queries = ops.matmul(ops.swapaxes(mapping, 2, 3), queries)
        heads, weights = relative_attention(
            queries,
            self._heads(self.key, known),
            self._heads(self.value, known),
            self._heads(self.position, positions),
            self.content_bias,
            self.position_bias,
            segment_bias=self.segment_bias,
            segment_embedding=self.segment_embedding,
            same_segment=same_segment,
            mask=merge_masks(padding_mask=padding_mask, attention_mask=attention_mask),
            dropout=dropout_function(self._dropout, training),
            return_weights=return_attention_scores or recorder.is_recording(),
        )
        path = self.path
        if mapping is not None:
            heads = ops.matmul(mapping, heads)  # (B, N, P, H)
            if weights is not None:
                weights = ops.matmul(ops.cast(mapping, weights.dtype), weights)
            # A model may call the two streams in any order: each has its own name.
            path = f"{path}/query_stream"
        recorder.record(SimpleNamespace(path=path), weights)
        outputs = self.output_projection.merge_heads(heads)
        return (outputs, weights) if return_attention_scores else outputs

    def compute_output_spec(
        self,
        inputs,
        targets=None,
        *,
        memory=None,
        return_attention_scores=False,
        **options,
    ):
        # Written out because JAX, when tracing, assumes that all unknown lengths are
        # equal; here they are T, S and T + S.
        check_call(self, inputs, targets, memory=memory, **options)
        stream = inputs if targets is None else targets
        outputs = keras.KerasTensor(stream.shape, self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length, _ = stream.shape
        return outputs, keras.KerasTensor(
            (batch, self.num_heads, length, sum_of_lengths(inputs, memory)),
            at_least_float32_dtype(self.compute_dtype),
        )

    def _heads(self, projection, inputs):
        """(B, T, D) -> (B, N, T, H)."""
        (heads,) = projection.heads(inputs, (self.num_heads,))
        return heads
