"""The maths of attention as pure functions, on `keras.ops` (one exception: a bias).

Legend: B batch, T query length, S key length, N heads, G key/value heads,
H head size, D width.

Masks are boolean, True = attend. Scores become probabilities in float32 at least,
whatever the precision of their inputs. A query with nothing to attend to gets
probabilities of zero, not NaN.
"""

import math

import keras
from keras import ops

# Added to a score that must not be seen. Finite, so that no row turns into NaN, and
# so far below any real score that its probability is exactly zero in float32.
MASKED = -1e9


def project(inputs, kernel, bias=None):
    """A dense projection, as one product of two matrices.

    Flattening the rest first is what makes it fast: a batched product with a matrix
    that every batch shares is a sixth slower on a CPU (TensorFlow 2.21).

    Args:
        inputs: (..., D).
        kernel: (D, E).
        bias: (E,), or None.

    Returns:
        (..., E).
    """
    shape = ops.shape(inputs)
    outputs = ops.matmul(ops.reshape(inputs, (-1, shape[-1])), kernel)
    if bias is not None:
        outputs = add_bias(outputs, bias)
    return ops.reshape(outputs, (*shape[:-1], ops.shape(kernel)[-1]))


def add_bias(inputs, bias):
    """`inputs + bias`, by the operation that TensorFlow makes one with its neighbours.

    On a CPU TensorFlow (2.21) runs a product, a bias and GELU as one operation if the
    bias was added by its own `bias_add`; a sum it joins with the product alone.

    Args:
        inputs: (..., D).
        bias: (D,).

    Returns:
        (..., D).
    """
    is_tensorflow = keras.backend.backend() == "tensorflow"
    if is_tensorflow and not isinstance(inputs, keras.KerasTensor):
        import tensorflow as tf

        return tf.nn.bias_add(inputs, ops.cast(bias, inputs.dtype))
    return ops.add(inputs, bias)


def dot_scores(query, key, scale=1.0):
    """`e_ts = scale · q_t · k_s`.

    With independent components of variance 1 a dot product over D components has
    variance D, and a softmax over such logits is nearly one-hot: hence the
    `scale = 1/√D` of scaled dot-product attention (Vaswani et al. 2017, 3.2.1).

    Args:
        query: (..., T, D).
        key: (..., S, D).
        scale: Factor, applied to the query before the product so that half
            precision does not overflow on the way.

    Returns:
        Scores, (..., T, S).
    """
    if scale != 1.0:
        query = ops.multiply(query, ops.cast(scale, query.dtype))
    return ops.matmul(query, ops.swapaxes(key, -1, -2))


def additive_scores(query, key, weight):
    """`e_ts = vᵀ tanh(q_t + k_s)` (Bahdanau et al. 2015, A.1.2).

    Args:
        query: Projected queries `W s`, (B, T, D).
        key: Projected keys `U h`, (B, S, D).
        weight: `v`, (D, 1).

    Returns:
        Scores, (B, T, S).
    """
    hidden = ops.tanh(ops.add(ops.expand_dims(query, 2), ops.expand_dims(key, 1)))
    return ops.squeeze(project(hidden, weight), -1)


def attention_weights(scores, mask=None, bias=None):
    """Turns scores into probabilities over the keys.

    Args:
        scores: (..., T, S).
        mask: Boolean, broadcastable to `scores`; True = attend.
        bias: Added to the scores, broadcastable to them. Entries below -1e9, such
            as -inf, count as -1e9. To hide a key for good, use `mask`.

    Returns:
        Probabilities in float32 at least, the shape of `scores`. A row whose mask is
        False everywhere is zero everywhere.
    """
    scores = _at_least_float32(scores)
    if bias is not None:
        scores = ops.add(scores, ops.maximum(ops.cast(bias, scores.dtype), MASKED))
    # Keras warns of a softmax over one place; here that is a memory of one row.
    softmax = _certainty if scores.shape[-1] == 1 else ops.softmax
    if mask is None:
        return softmax(scores)
    visible = ops.cast(ops.cast(mask, "bool"), scores.dtype)
    weights = softmax(ops.add(scores, ops.multiply(ops.subtract(1, visible), MASKED)))
    # Where a whole row is hidden, softmax sees equal scores and spreads itself evenly.
    return ops.multiply(weights, visible)


def scaled_dot_product_attention(
    query,
    key,
    value,
    *,
    cache=None,
    mask=None,
    bias=None,
    scale=None,
    dropout=None,
):
    """`softmax(q kᵀ / √H) v`, in heads (Vaswani et al. 2017, 3.2).

    With fewer key/value heads than query heads, consecutive query heads share one
    (grouped-query attention, Ainslie et al. 2023, arXiv:2305.13245); the keys are
    never repeated in memory. Nor are those of a cache joined with the new ones, which
    would copy them: each is multiplied by itself, and the scores are joined.

    Args:
        query: (B, N, T, H).
        key: (B, G, S, H), N a multiple of G.
        value: (B, G, S, V).
        cache: Keys (B, G, C, H) and values (B, G, C, V) of earlier positions. They
            come before `key` and `value` in the masks, the bias and the
            probabilities, where S then stands for C + S. None = there are none.
        mask: Boolean, broadcastable to (B, N, T, S); True = attend.
        bias: Added to the scores, broadcastable to (B, N, T, S).
        scale: Factor of the scores. None = 1/√H.
        dropout: A function applied to the probabilities, or None.

    Returns:
        The attended values, (B, N, T, V), and the probabilities before dropout,
        (B, N, T, S).
    """
    batch, heads, length, size = ops.shape(query)
    groups = key.shape[1]
    if scale is None:
        scale = 1.0 / math.sqrt(query.shape[-1])
    if groups != heads:
        # The queries of one group lie side by side: (B, G, N/G·T, H).
        query = ops.reshape(query, (batch, groups, -1, size))
    scores = dot_scores(query, key, scale)
    if cache is not None:
        earlier = dot_scores(query, cache[0], scale)
        scores = ops.concatenate([earlier, scores], axis=-1)
    if groups != heads:
        scores = ops.reshape(scores, (batch, heads, length, -1))
    weights = attention_weights(scores, mask, bias)
    mixed = ops.cast(weights, value.dtype)
    if dropout is not None:
        mixed = dropout(mixed)
    if groups != heads:
        mixed = ops.reshape(mixed, (batch, groups, -1, ops.shape(mixed)[-1]))
    if cache is None:
        attended = ops.matmul(mixed, value)
    else:
        own = ops.shape(value)[2]
        attended = ops.add(
            ops.matmul(mixed[..., :-own], cache[1]),
            ops.matmul(mixed[..., -own:], value),
        )
    if groups != heads:  # (B, G, N/G·T, V) -> (B, N, T, V)
        attended = ops.reshape(attended, (batch, heads, length, value.shape[-1]))
    return attended, weights


def split_heads(inputs, num_heads):
    """(B, T, N·H) -> (B, N, T, H)."""
    batch, length, width = ops.shape(inputs)
    heads = ops.reshape(inputs, (batch, length, num_heads, width // num_heads))
    return ops.transpose(heads, (0, 2, 1, 3))


def merge_heads(inputs):
    """(B, N, T, H) -> (B, T, N·H)."""
    batch, heads, length, size = ops.shape(inputs)
    return ops.reshape(
        ops.transpose(inputs, (0, 2, 1, 3)), (batch, length, heads * size)
    )


def causal_mask(query_length, key_length, offset=0):
    """What query t may see when it must not look ahead: keys 0 … t + offset.

    Args:
        query_length: T.
        key_length: S.
        offset: Position of the first query among the keys.

    Returns:
        Boolean mask, (T, S).
    """
    query_position = ops.expand_dims(ops.arange(query_length, dtype="int32"), 1)
    key_position = ops.expand_dims(ops.arange(key_length, dtype="int32"), 0)
    last_visible = ops.add(query_position, ops.cast(offset, "int32"))
    return ops.less_equal(key_position, last_visible)


def token_positions(padding_mask):
    """Numbers the real tokens of each row 0, 1, 2, …, wherever the padding is.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding has the number of the real token before it, or 0.
    """
    count = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1)
    return ops.maximum(ops.subtract(count, 1), 0)


def row_positions(padding_mask):
    """Numbers the positions of each row 0, 1, 2, … from its first real token on.

    So padding on the left moves no token. All that follows has a number of its own,
    padding too: a row padded on the right is numbered 0 … T-1.

    Args:
        padding_mask: (B, T), True = a real token.

    Returns:
        int32 (B, T). Padding before the first real token has 0.
    """
    real = ops.cast(padding_mask, "int32")
    first = ops.cast(ops.argmax(real, axis=1, keepdims=True), "int32")
    # Not `arange`: the length of a symbolic tensor may be unknown.
    number = ops.cumsum(ops.ones_like(real), axis=1)
    return ops.maximum(ops.subtract(number, ops.add(first, 1)), 0)


def banded_mask(query_positions, key_positions, window):
    """What a query sees that looks back no further than `window` tokens.

    Args:
        query_positions: (B, T).
        key_positions: (B, S).
        window: How many tokens it sees, its own one included.

    Returns:
        Boolean mask, (B, T, S); it does not keep a query from looking ahead.
    """
    distance = ops.subtract(
        ops.expand_dims(query_positions, 2), ops.expand_dims(key_positions, 1)
    )
    return ops.less(distance, window)


def both_masks(first, second):
    """What both masks show; a mask that is None shows everything."""
    if first is None or second is None:
        return second if first is None else first
    return ops.logical_and(ops.cast(first, "bool"), ops.cast(second, "bool"))


def merge_masks(*, padding_mask=None, attention_mask=None, causal=None):
    """All that hides a key, as one mask for scores in heads.

    Args:
        padding_mask: (B, S), True = a real key.
        attention_mask: (T, S), (B, T, S) or (B, N, T, S), True = attend.
        causal: (T, S) or (B, T, S), True = attend.

    Returns:
        Boolean mask of rank 4, broadcastable to (B, N, T, S), or None.
    """
    masks = []
    if padding_mask is not None:
        # One axis at a time: `mask[:, None, None, :]` is a strided slice, which
        # LiteRT has no built-in operator for once two axes are unknown.
        row = ops.expand_dims(ops.cast(padding_mask, "bool"), 1)
        masks.append(ops.expand_dims(row, 1))
    if attention_mask is not None:
        mask = ops.cast(attention_mask, "bool")
        if len(mask.shape) == 2:
            mask = ops.expand_dims(mask, 0)
        masks.append(ops.expand_dims(mask, 1) if len(mask.shape) == 3 else mask)
    if causal is not None:
        if len(causal.shape) == 2:
            causal = ops.expand_dims(causal, 0)
        masks.append(ops.expand_dims(causal, 1))
    if not masks:
        return None
    merged = masks[0]
    for mask in masks[1:]:
        merged = ops.logical_and(merged, mask)
    return merged


def sinusoids(positions, dim, max_wavelength=10_000):
    """Sines and cosines of geometrically spaced wavelengths (Vaswani 2017, 3.5).

    `PE(p, 2i) = sin(p / w^(2i/D))`, `PE(p, 2i+1) = cos(p / w^(2i/D))`.

    Args:
        positions: Integers or floats of any shape, (...).
        dim: D, even or odd.
        max_wavelength: w; wavelengths run from 2π to 2πw positions.

    Returns:
        (..., D) in float32.
    """
    pairs = (dim + 1) // 2
    exponents = ops.arange(pairs, dtype="float32") * (2.0 / dim)
    frequencies = ops.exp(exponents * -math.log(max_wavelength))
    angles = ops.expand_dims(ops.cast(positions, "float32"), -1) * frequencies
    interleaved = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    shape = ops.shape(angles)
    return ops.reshape(interleaved, (*shape[:-1], 2 * pairs))[..., :dim]


def sinusoids_2d(height, width, dim, max_wavelength=10_000):
    """Sinusoids of a grid: the row in the first half, the column in the second.

    Args:
        height: Rows.
        width: Columns.
        dim: D, even.
        max_wavelength: As for `sinusoids`.

    Returns:
        (height, width, D) in float32.
    """
    half = dim // 2
    row = sinusoids(ops.arange(height, dtype="int32"), half, max_wavelength)
    column = sinusoids(ops.arange(width, dtype="int32"), half, max_wavelength)
    row = ops.broadcast_to(ops.expand_dims(row, 1), (height, width, half))
    column = ops.broadcast_to(ops.expand_dims(column, 0), (height, width, half))
    return ops.concatenate([row, column], axis=-1)


def maxout(inputs, pieces=2):
    """The largest of each run of neighbours (Goodfellow et al. 2013).

    Args:
        inputs: (..., D·pieces).
        pieces: Neighbours that compete for one output.

    Returns:
        (..., D).
    """
    shape = ops.shape(inputs)
    split = ops.reshape(inputs, (*shape[:-1], shape[-1] // pieces, pieces))
    return ops.max(split, axis=-1)


def _certainty(scores):
    """Ones, which still pass a gradient of zero on to the scores."""
    return ops.exp(ops.subtract(scores, scores))


def _at_least_float32(inputs):
    dtype = keras.backend.standardize_dtype(inputs.dtype)
    return ops.cast(inputs, "float32") if dtype in ("float16", "bfloat16") else inputs
