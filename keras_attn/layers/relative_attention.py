"""Multi-head attention by content and by distance, for Transformer-XL and XLNet.

The maths is in `keras_attn.ops.relative`; here are the weights and what is checked.

Legend: B batch, T tokens, M places of memory, S = M + T keys, R = T + S distances,
P targets, N heads, H head size, D width.
"""

from types import SimpleNamespace

import keras
from keras import ops

from keras_attn.checks import (
    check_fraction,
    check_matches,
    check_positive,
    check_rank,
)
from keras_attn.layers import recorder
from keras_attn.layers.base import BaseLayer
from keras_attn.layers.dropout import Dropout
from keras_attn.layers.initializers import fork
from keras_attn.ops import (
    attention_weights,
    both_masks,
    merge_heads,
    merge_masks,
    project,
    split_heads,
)
from keras_attn.ops.relative import (
    relative_distances,
    relative_scores,
    relative_sinusoids,
)


@keras.saving.register_keras_serializable("keras_attn")
class RelativePositionEncoding(BaseLayer):
    """Sines and cosines of every distance between a token and a key.

    Args:
        max_distance: Tokens further apart count as this far apart. Default: no limit.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: (B, T, D).
        memory: (B, M, D), what stands in front of the inputs.

    Returns:
        (1, R, D), for the distances S, S-1, …, 1-T.

    Raises:
        ValueError: for inputs or a memory that are not of rank 3.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860).
    """

    def __init__(self, max_distance=None, *, max_wavelength=10_000, **kwargs):
        super().__init__(**kwargs)
        if max_distance is not None:
            check_positive("max_distance", max_distance)
        self.max_distance = max_distance
        self.max_wavelength = max_wavelength

    def call(self, inputs, memory=None):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        length = keys = ops.shape(inputs)[1]
        if memory is not None:
            check_rank("memory", memory, 3, "(batch, memory length, width)")
            keys = ops.shape(memory)[1] + length
        distances = relative_distances(length, keys)
        if self.max_distance is not None:
            distances = ops.clip(distances, -self.max_distance, self.max_distance)
        table = relative_sinusoids(distances, inputs.shape[-1], self.max_wavelength)
        return ops.expand_dims(ops.cast(table, self.compute_dtype), 0)

    def compute_output_shape(self, inputs_shape, memory_shape=None):
        lengths = [inputs_shape[1], inputs_shape[1]]
        if memory_shape is not None:
            lengths.append(memory_shape[1])
        distances = None if None in lengths else sum(lengths)
        return (1, distances, inputs_shape[-1])


@keras.saving.register_keras_serializable("keras_attn")
class RelativeMultiHeadAttention(BaseLayer):
    """Multi-head self-attention by content and distance, of either of two streams.

    The content stream is plain self-attention: a token sees what stands in its place.
    The query stream is for predicting tokens: a target asks from its place, without
    the content of that place, and reads the content stream's keys and values. Both
    streams use the same weights, a call each. The projections have no biases.

    Args:
        num_heads: N.
        key_dim: H.
        dropout: Probability in [0, 1) of dropping an attention probability.
        kernel_initializer: For the projection kernels, each on its own.
        bias_initializer: For u, v, w and the segment vectors.
        seed: Seed of the dropout.
        **kwargs: `name`, `dtype`, … of a Keras layer.

    Call arguments:
        inputs: The content stream, (B, T, D).
        targets: The query stream, (B, P, D). With it the call is one of the query
            stream, and needs `target_mapping`.
        target_mapping: (B, P, T), 1 where target p is token t: one 1 a row, and no
            token is two targets.
        positions: Encoded distances, (1, R, D). Default: those of
            `RelativePositionEncoding()`.
        memory: States in front of the inputs that are attended to as well, (B, M, D).
        same_segment: (B, T, S), True where token and key are of one segment. Default:
            all of them are.
        permutation_mask: (B, T, T), True where token t comes behind token s in the
            order of prediction, and so may see it. In the content stream a token sees
            itself as well. The memory is seen by all.
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        return_attention_scores: Whether to return the probabilities.

    Returns:
        The content stream, (B, T, D), or with `targets` the query stream, (B, P, D);
        followed by the probabilities, (B, N, T, S) or (B, N, P, S), if asked for.

    Raises:
        ValueError: for an input of another rank, a mask of another shape, or one of
            `targets` and `target_mapping` without the other.

    Masking:
        A Keras mask that arrives with the inputs counts as `padding_mask` where there
        is no memory. A query that sees nothing gets heads of zeros.

    Seeing:
        The recorder gets the query stream's probabilities under the layer's path and
        `/query_stream`.

    Reference:
        Dai et al. 2019, "Transformer-XL", section 3.3 (arXiv:1901.02860); two streams
        and segments: Yang et al. 2019, "XLNet", sections 2.3 to 2.5
        (arXiv:1906.08237).
    """

    def __init__(
        self,
        num_heads,
        key_dim,
        *,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
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
        self._dropout = None
        if dropout:
            self._dropout = Dropout(
                dropout, seed=seed, dtype=self.dtype_policy, name="dropout"
            )

    def build(self, inputs_shape):
        width, heads = inputs_shape[-1], self.num_heads * self.key_dim
        shapes = {
            "query_kernel": (width, heads),
            "key_kernel": (width, heads),
            "value_kernel": (width, heads),
            "position_kernel": (width, heads),
            "output_kernel": (heads, width),
            "content_bias": (self.num_heads, self.key_dim),
            "position_bias": (self.num_heads, self.key_dim),
            "segment_bias": (self.num_heads, self.key_dim),
            "segment_embedding": (2, self.num_heads, self.key_dim),
        }
        for name, shape in shapes.items():
            is_kernel = name.endswith("kernel")
            initializer = (
                self.kernel_initializer if is_kernel else self.bias_initializer
            )
            weight = self.add_weight(
                name=name, shape=shape, initializer=fork(initializer, name)
            )
            setattr(self, name, weight)

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
        self._check_call(inputs, targets, target_mapping, positions, memory)
        known = inputs if memory is None else ops.concatenate([memory, inputs], axis=1)
        if positions is None:
            length, keys = ops.shape(inputs)[1], ops.shape(known)[1]
            table = relative_sinusoids(
                relative_distances(length, keys), inputs.shape[-1]
            )
            positions = ops.expand_dims(ops.cast(table, self.compute_dtype), 0)
        # Keras calls the mask of a lone tensor `mask`, of one among several
        # `inputs_mask`. What stands in a memory has no mask of this call's.
        implied_mask = inputs_mask if mask is None else mask
        if memory is None:
            padding_mask = both_masks(padding_mask, implied_mask)
        masks = (same_segment, permutation_mask, padding_mask, attention_mask)
        self._check_masks(inputs, memory, *masks)
        if targets is None:
            places = None
            queries = self._heads(inputs, self.query_kernel)
            permutation_mask = _and_itself(permutation_mask)
        else:
            # Back to their places, where the distances to the keys are known.
            places = ops.expand_dims(ops.cast(target_mapping, self.compute_dtype), 1)
            queries = self._heads(targets, self.query_kernel)
            queries = ops.matmul(ops.swapaxes(places, 2, 3), queries)  # (B, N, T, H)
        visible = merge_masks(
            padding_mask=padding_mask,
            attention_mask=attention_mask,
            causal=_with_memory(permutation_mask, memory),
        )
        scores = relative_scores(
            queries,
            self._heads(known, self.key_kernel),
            self._heads(positions, self.position_kernel),
            self.content_bias,
            self.position_bias,
            segment_bias=self.segment_bias,
            segment_embedding=self.segment_embedding,
            same_segment=same_segment,
        )
        weights = attention_weights(scores, visible)
        mixed = ops.cast(weights, self.compute_dtype)
        if self._dropout is not None and training:
            mixed = self._dropout(mixed, training=True)
        heads = ops.matmul(mixed, self._heads(known, self.value_kernel))
        is_seen = return_attention_scores or recorder.is_recording()
        if places is not None:
            heads = ops.matmul(places, heads)  # (B, N, P, H)
            if is_seen:
                weights = ops.matmul(ops.cast(places, weights.dtype), weights)
        if recorder.is_recording():
            # A model may call the streams in any order, so each has a name of its own.
            stream = "" if places is None else "/query_stream"
            recorder.record(SimpleNamespace(path=f"{self.path}{stream}"), weights)
        outputs = project(merge_heads(heads), self.output_kernel)
        return (outputs, weights) if return_attention_scores else outputs

    def compute_output_spec(
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
        **_,
    ):
        # Tracing would do, but JAX takes all unknown lengths for one, and here are
        # T, S and T + S.
        self._check_call(inputs, targets, target_mapping, positions, memory)
        masks = (same_segment, permutation_mask, padding_mask, attention_mask)
        self._check_masks(inputs, memory, *masks)
        stream = inputs if targets is None else targets
        outputs = keras.KerasTensor(stream.shape, self.compute_dtype)
        if not return_attention_scores:
            return outputs
        batch, length, _ = stream.shape
        return outputs, keras.KerasTensor(
            (batch, self.num_heads, length, _sum_of_lengths(inputs, memory)),
            keras.backend.result_type(self.compute_dtype, "float32"),
        )

    def _heads(self, inputs, kernel):
        return split_heads(project(inputs, kernel), self.num_heads)

    def _check_call(self, inputs, targets, target_mapping, positions, memory):
        check_rank("inputs", inputs, 3, "(batch, length, width)")
        if (targets is None) != (target_mapping is None):
            raise ValueError(
                "`targets` and `target_mapping` belong together: the one says where "
                "the other are. Received: "
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

    def _check_masks(
        self,
        inputs,
        memory,
        same_segment,
        permutation_mask,
        padding_mask,
        attention_mask,
    ):
        batch, length, _ = inputs.shape
        keys = _sum_of_lengths(inputs, memory)
        axes = {"B": batch, "T": length, "S": keys}
        for name, meaning, mask in (
            ("same_segment", "BTS", same_segment),
            ("permutation_mask", "BTT", permutation_mask),
            ("padding_mask", "BS", padding_mask),
        ):
            if mask is not None:
                shape = tuple(axes[axis] for axis in meaning)
                check_rank(name, mask, len(shape), f"({', '.join(meaning)})")
                check_matches(name, mask.shape, shape, f"({', '.join(meaning)})")
        if attention_mask is not None:
            scores = (batch, self.num_heads, length, keys)
            rank = len(attention_mask.shape)
            if rank not in (2, 3):
                check_rank("attention_mask", attention_mask, 4, "of the scores")
            shape = scores if rank == 4 else (batch, length, keys)[-rank:]
            check_matches(
                "attention_mask", attention_mask.shape, shape, "of the scores"
            )


def _and_itself(permutation_mask):
    """What a token of the content stream sees: besides what came before it, itself."""
    if permutation_mask is None:
        return None
    places = ops.arange(ops.shape(permutation_mask)[1], dtype="int32")
    itself = ops.equal(ops.expand_dims(places, 1), ops.expand_dims(places, 0))
    return ops.logical_or(ops.cast(permutation_mask, "bool"), itself)


def _with_memory(permutation_mask, memory):
    """(B, T, S) from (B, T, T): every token sees the memory."""
    if permutation_mask is None or memory is None:
        return permutation_mask
    visible = ops.cast(permutation_mask, "bool")
    remembered = ops.expand_dims(ops.ones_like(memory[:, :, 0], dtype="bool"), 1)
    shape = (*ops.shape(visible)[:2], ops.shape(memory)[1])
    return ops.concatenate([ops.broadcast_to(remembered, shape), visible], axis=2)


def _sum_of_lengths(*sequences):
    """Of those there are, all known; None where one is unknown."""
    lengths = [tensor.shape[1] for tensor in sequences if tensor is not None]
    return None if None in lengths else sum(lengths)


def _shape_of(tensor):
    return None if tensor is None else tuple(tensor.shape)
