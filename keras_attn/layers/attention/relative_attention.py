"""Multi-head attention with relative positions, for Transformer-XL and XLNet.

The equations are in `keras_attn.ops.relative`.

Legend: B batch, T tokens, M memory length, S = M + T keys, R = T + S distances,
P targets, N heads, H head size, D width.
"""

from types import SimpleNamespace
from typing import Any

import keras
from keras import ops

from keras_attn.checks.argument_types import Initializer
from keras_attn.checks.arguments import (
    check_fraction,
    check_matches,
    check_positive,
    check_rank,
)
from keras_attn.kernels.precision import at_least_float32_dtype
from keras_attn.layers import recorder
from keras_attn.layers.attention.attention_checks import (
    check_attention_mask,
    check_padding_mask,
)
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import dropout_function, make_dropout
from keras_attn.layers.embeddings.relative_position_encoding import encode_distances
from keras_attn.layers.initializers import independent_copy
from keras_attn.layers.projection import add_projection
from keras_attn.ops import (
    both_masks,
    merge_masks,
)
from keras_attn.ops.relative import relative_attention


@keras.saving.register_keras_serializable("keras_attn")
class RelativeMultiHeadAttention(BaseLayer):
    """Multi-head self-attention with relative positions, for one of two streams.

    The content stream is standard self-attention. The query stream predicts tokens: the
    query of a target contains the target's position but not its content, and attends to
    the keys and values of the content stream. Each call computes one stream; both use
    the same weights. The projections have no biases.

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
        permutation_mask: (B, T, T), True where token t comes after token s in the
            factorization order and therefore attends to it. In the content stream a
            token also attends to itself. All tokens attend to the memory.
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
        permutation_mask=None,
        padding_mask=None,
        attention_mask=None,
        return_attention_scores=False,
        training=None,
        mask=None,
        inputs_mask=None,
    ):
        self._check_call(
            inputs,
            targets,
            memory,
            target_mapping=target_mapping,
            positions=positions,
            same_segment=same_segment,
            permutation_mask=permutation_mask,
            padding_mask=padding_mask,
            attention_mask=attention_mask,
        )
        content = inputs
        if memory is not None:
            content = ops.concatenate([memory, inputs], axis=1)  # (B, S, D)
        if positions is None:
            positions = encode_distances(inputs, memory, dtype=self.compute_dtype)
        if memory is None:  # Keras masks do not cover the memory.
            # If a call has a single tensor, Keras names its mask `mask`; if it has
            # several, Keras names each mask `<argument>_mask`.
            keras_mask = inputs_mask if mask is None else mask
            padding_mask = both_masks(padding_mask, keras_mask)
        queries, mapping = self._project_queries(inputs, targets, target_mapping)
        if targets is None:
            permutation_mask = _with_diagonal(permutation_mask)
        wants_weights = return_attention_scores or recorder.is_recording()
        heads, weights = relative_attention(
            queries,
            self._heads(self.key, content),
            self._heads(self.value, content),
            self._heads(self.position, positions),
            self.content_bias,
            self.position_bias,
            segment_bias=self.segment_bias,
            segment_embedding=self.segment_embedding,
            same_segment=same_segment,
            mask=merge_masks(
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                causal=_with_memory(permutation_mask, memory),
            ),
            dropout=dropout_function(self._dropout, training),
            return_weights=wants_weights,
        )
        if mapping is not None:
            heads = ops.matmul(mapping, heads)  # (B, N, P, H)
            if wants_weights:
                weights = ops.matmul(ops.cast(mapping, weights.dtype), weights)
        # A model may call the two streams in any order: each has its own name.
        stream = "" if mapping is None else "/query_stream"
        recorder.record(SimpleNamespace(path=f"{self.path}{stream}"), weights)
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
        self._check_call(inputs, targets, memory, **options)
        stream = inputs if targets is None else targets
        outputs = keras.KerasTensor(stream.shape, self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length, _ = stream.shape
        return outputs, keras.KerasTensor(
            (batch, self.num_heads, length, _sum_of_lengths(inputs, memory)),
            at_least_float32_dtype(self.compute_dtype),
        )

    def _project_queries(self, inputs, targets, target_mapping):
        """Queries, (B, N, T, H), and the mapping from tokens to targets or None."""
        if targets is None:
            return self._heads(self.query, inputs), None
        queries = self._heads(self.query, targets)  # (B, N, P, H)
        mapping = ops.expand_dims(ops.cast(target_mapping, self.compute_dtype), 1)
        # Moved to the positions of their tokens, where their distances to the keys
        # match `relative_distances`.
        return ops.matmul(ops.swapaxes(mapping, 2, 3), queries), mapping

    def _heads(self, projection, inputs):
        """(B, T, D) -> (B, N, T, H)."""
        (heads,) = projection.heads(inputs, (self.num_heads,))
        return heads

    def _check_call(
        self,
        inputs,
        targets,
        memory,
        *,
        target_mapping: Any = None,
        positions=None,
        **masks,
    ):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        if (targets is None) != (target_mapping is None):
            raise ValueError(
                "`targets` and `target_mapping` must be given together. Received: "
                f"targets={_shape_of(targets)}, "
                f"target_mapping={_shape_of(target_mapping)}"
            )
        batch, length, width = inputs.shape
        if targets is not None:
            check_rank("targets", targets, 3, "(batch, targets, width)")
            check_rank("target_mapping", target_mapping, 3, "(batch, targets, length)")
            check_matches(
                "target_mapping",
                target_mapping.shape,
                (batch, targets.shape[1], length),
                "(batch, targets, length)",
            )
        if memory is not None:
            check_rank("memory", memory, 3, "(batch, memory length, width)")
            check_matches(
                "memory",
                memory.shape,
                (batch, None, width),
                "(batch, memory length, width)",
            )
        if positions is not None:
            check_rank("positions", positions, 3, "(1, distances, width)")
            distances = _sum_of_lengths(inputs, inputs, memory)
            check_matches(
                "positions",
                positions.shape,
                (1, distances, width),
                "(1, distances, width)",
            )
        self._check_masks(inputs, memory, **masks)

    def _check_masks(
        self,
        inputs,
        memory,
        *,
        same_segment=None,
        permutation_mask=None,
        padding_mask=None,
        attention_mask=None,
        **_,
    ):
        batch, length, _ = inputs.shape
        keys = _sum_of_lengths(inputs, memory)
        check_attention_mask(
            "same_segment", same_segment, (batch, length, keys), ranks=(3,)
        )
        check_attention_mask(
            "permutation_mask", permutation_mask, (batch, length, length), ranks=(3,)
        )
        check_padding_mask("padding_mask", padding_mask, batch, keys)
        scores_shape = (batch, self.num_heads, length, keys)
        check_attention_mask("attention_mask", attention_mask, scores_shape)


def _with_diagonal(permutation_mask):
    """The mask of the content stream, in which a token also attends to itself."""
    if permutation_mask is None:
        return None
    index = ops.arange(ops.shape(permutation_mask)[1], dtype="int32")
    diagonal = ops.equal(ops.expand_dims(index, 1), ops.expand_dims(index, 0))
    return ops.logical_or(ops.cast(permutation_mask, "bool"), diagonal)


def _with_memory(permutation_mask, memory):
    """(B, T, T) -> (B, T, S): every token attends to the memory."""
    if permutation_mask is None or memory is None:
        return permutation_mask
    visible = ops.cast(permutation_mask, "bool")
    row = ops.expand_dims(ops.ones_like(memory[:, :, 0], dtype="bool"), 1)
    shape = (*ops.shape(visible)[:2], ops.shape(memory)[1])
    return ops.concatenate([ops.broadcast_to(row, shape), visible], axis=2)


def _sum_of_lengths(*sequences):
    """Length of the sequences that are not None; None if one is unknown."""
    lengths = [tensor.shape[1] for tensor in sequences if tensor is not None]
    return None if None in lengths else sum(lengths)


def _shape_of(tensor):
    return None if tensor is None else tuple(tensor.shape)
