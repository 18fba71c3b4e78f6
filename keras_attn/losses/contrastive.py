"""The losses of CLIP and SigLIP, and their accuracies, over the batch of all devices.

    l = s x yᵀ + b      logits (B, B) of each image x with each text y
    CLIP                1/(2B) Σ_i (logsumexp_j l_ij + logsumexp_j l_ji - 2 l_ii)
    SigLIP              1/B Σ_ij softplus(-z_ij l_ij), z_ij = 1 if i = j, otherwise -1

The matrix is never in memory as a whole: a device computes the rows of its own images
in chunks, for the loss and again for the gradients. Under `tf.distribute` the texts of
all replicas are gathered, the sums of columns are combined, and the gradients of texts
are added up. So loss and gradients are as on one device with the joined batch, also if
replicas have different numbers of pairs.

Legend: B pairs of all devices, P of this device, C rows of a chunk, K chunks, E width
of the embeddings.
"""

from typing import Any, NamedTuple

from keras import ops

from keras_attn.checks.arguments import check_positive, check_rank, fits
from keras_attn.docstrings.descriptions import described_as
from keras_attn.kernels.loop import sequential_scan
from keras_attn.kernels.precision import at_least_float32
from keras_attn.kernels.replicas import (
    add_replicas,
    at_least_one_row,
    first_row,
    gather_rows,
)

# By default a chunk has 4 MB of logits, or this many rows if they are larger.
_CHUNK_LOGITS, _MIN_CHUNK_SIZE = 2**20, 128
_LOWEST = -1e30  # Less than any logit, and -1e30 - (-1e30) is not NaN.


def clip_loss(
    image_embeddings, text_embeddings, scale, *, chunk_size: int | None = None
) -> Any:
    """The mean of two cross-entropies: the text of each image, the image of each text.

    Args:
        image_embeddings: x, (P, E), of length 1 for cosine similarities.
        text_embeddings: y, (P, E); text i belongs to image i.
        scale: s, a scalar, the reciprocal of the temperature.
        chunk_size: Largest number C of rows of the matrix that are in memory at a time.
            None = 2²⁰ / B, but at least 128.

    Returns:
        A scalar in nats, in at least float32. Under `tf.distribute` every replica
        returns the loss of all pairs; each must divide it by the number of replicas, as
        Keras does with its losses, because the gradients of replicas are added up.

    Raises:
        ValueError: If the embeddings do not have two axes, or not the same shape, or
            `chunk_size` is neither None nor a positive integer.

    Reference:
        Radford et al. 2021, figure 3 (arXiv:2103.00020).
    """
    return _loss(_clip, image_embeddings, text_embeddings, (scale,), chunk_size)


@described_as(clip_loss)
def siglip_loss(
    image_embeddings, text_embeddings, scale, bias, *, chunk_size: int | None = None
) -> Any:
    """The sum of a binary cross-entropy for each image and text, divided by B.

    Args:
        image_embeddings: x, (P, E), of length 1 for cosine similarities.
        text_embeddings: y, (P, E); text i belongs to image i.
        scale: s, a scalar.
        bias: b, a scalar.

    Returns:
        A scalar, as from `clip_loss`.

    Raises:
        ValueError: As `clip_loss`.

    Reference:
        Zhai et al. 2023, algorithm 1 (arXiv:2303.15343).
    """
    return _loss(_siglip, image_embeddings, text_embeddings, (scale, bias), chunk_size)


@described_as(clip_loss)
def retrieval_hits(
    image_embeddings, text_embeddings, *, chunk_size: int | None = None
) -> tuple[Any, Any]:
    """Whether the most similar text of an image is its own, and the same of texts.

    Of equally similar ones the first counts.

    Args:
        image_embeddings: x, (P, E).
        text_embeddings: y, (P, E); text i belongs to image i.

    Returns:
        Two tensors (P,) of booleans, of this device's images and of its texts. Under
        `tf.distribute` the pairs of all replicas are searched.

    Raises:
        ValueError: As `clip_loss`.
    """
    x, y = _checked(image_embeddings, text_embeddings, chunk_size)
    x, y = ops.stop_gradient(x), ops.stop_gradient(y)
    matrix = _Matrix(x, y, (1.0,), chunk_size)

    def step(rows, best, likeliest):
        hits = ops.equal(ops.cast(ops.argmax(rows.logits, axis=1), "int32"), rows.own)
        logits = ops.where(rows.is_real[:, None], rows.logits, _LOWEST)
        place = ops.cast(ops.argmax(logits, axis=0), "int32")
        highest = ops.max(logits, axis=0)
        likeliest = ops.where(highest > best, ops.take(rows.own, place), likeliest)
        return (ops.maximum(highest, best), likeliest), hits

    start = matrix.for_columns(_LOWEST), matrix.for_columns(0, "int32")
    (best, likeliest), found = matrix.over_chunks(step, start, "bool")
    # (replicas, B): of equal ones the first.
    best, likeliest = gather_rows(best[None]), gather_rows(likeliest[None])
    replica = ops.argmax(best, axis=0, keepdims=True)
    likeliest = ops.take_along_axis(likeliest, replica, axis=0)[0]
    own = matrix.first + ops.arange(matrix.count, dtype="int32")
    return found, ops.equal(matrix.own_part(likeliest), own)


def _loss(kind, x, y, scalars, chunk_size):
    """The loss from `_clip` or `_siglip`, whose gradients are computed in chunks."""
    x, y = _checked(x, y, chunk_size)
    scalars = [ops.cast(scalar, x.dtype) for scalar in scalars]

    @ops.custom_gradient
    def loss(x, y, *scalars):
        # Without `stop_gradient` an outer tape would record every operation.
        x, y, *scalars = (ops.stop_gradient(tensor) for tensor in (x, y, *scalars))
        matrix = _Matrix(x, y, scalars, chunk_size)
        total, compute_slopes = kind(matrix)
        count = ops.maximum(ops.cast(matrix.total, x.dtype), 1)

        def gradient(upstream):
            # The loss of every replica depends on these embeddings.
            factor = add_replicas(upstream) / count
            return matrix.gradients(compute_slopes, factor)

        return add_replicas(total) / count, gradient

    return loss(x, y, *scalars)


def _clip(matrix):
    """The sum of the losses of this device's pairs, and B times its slopes."""

    def step(rows, total, peak, mass):
        own_logits = ops.take_along_axis(rows.logits, rows.own[:, None], axis=1)
        # Subtracted first: exact for a pair that is almost certain.
        losses = ops.logsumexp(rows.logits - own_logits, axis=1)
        total += ops.sum(ops.where(rows.is_real, losses, 0.0))
        logits = ops.where(rows.is_real[:, None], rows.logits, _LOWEST)
        highest = ops.maximum(peak, ops.max(logits, axis=0))
        mass = mass * ops.exp(peak - highest)
        mass += ops.sum(ops.exp(logits - highest), axis=0)
        return (total, highest, mass), own_logits[:, 0]

    start = matrix.zero, matrix.for_columns(_LOWEST), matrix.for_columns(0)
    (total, peak, mass), own = matrix.over_chunks(step, start)
    # (replicas, B)
    peaks, masses = gather_rows(peak[None]), gather_rows(mass[None])
    peak = ops.max(peaks, axis=0)
    mass = ops.sum(masses * ops.exp(peaks - peak), axis=0)
    losses = matrix.own_part(peak) - own + ops.log(matrix.own_part(mass))

    def compute_slopes(rows):
        columns = ops.exp(rows.logits - peak) / mass
        both = ops.softmax(rows.logits, axis=1) + columns
        return both / 2 - ops.cast(matrix.is_own(rows), both.dtype)

    return (total + ops.sum(losses)) / 2, compute_slopes


def _siglip(matrix):
    """As `_clip`."""

    def step(rows):
        logits = ops.where(matrix.is_own(rows), -rows.logits, rows.logits)
        return (), ops.sum(ops.softplus(logits), axis=1)

    def compute_slopes(rows):
        is_own = matrix.is_own(rows)
        slopes = ops.sigmoid(ops.where(is_own, -rows.logits, rows.logits))
        return ops.where(is_own, -slopes, slopes)

    _, losses = matrix.over_chunks(step, ())
    return ops.sum(losses), compute_slopes


class _Rows(NamedTuple):
    """A chunk of the rows of a matrix.

    Attributes:
        images: x of these rows, (C, E).
        logits: (C, B).
        own: The index of the text of each image among all B, (C,).
        is_real: (C,), False in the padding of the last chunk, where x is 0 and `own` is
            that of the last image.
    """

    images: Any
    logits: Any
    own: Any
    is_real: Any


class _Matrix:
    """The rows of this device's images in the matrix of logits.

    Attributes:
        count: P.
        total: B.
        first: The index of this device's first pair among all.
        grid: K and C; the last chunk is padded.
        texts: y of all devices, (B, E).
        zero: A scalar of their dtype.
    """

    def __init__(self, x, y, scalars, chunk_size):
        self.count = ops.shape(x)[0]
        self.first = first_row(self.count)
        self.texts = gather_rows(y)
        self.total = ops.shape(self.texts)[0]
        self.grid = _grid(self.count, self.total, chunk_size)
        self.zero = ops.zeros((), y.dtype)
        # The last batch may leave a replica without pairs. Its only row is padding.
        self._images = at_least_one_row(x)
        self._scalars = scalars

    def over_chunks(self, step, state, output_dtype=None):
        """`state, output = step(rows, *state)` for each chunk of rows.

        Args:
            step: From `_Rows` and the state to the next state and an output (C, …).
            state: A tuple of tensors.
            output_dtype: Default: the dtype of the texts.

        Returns:
            The last state, and the outputs of all rows, (P, …).
        """
        chunks, size = self.grid
        scale, *bias = self._scalars

        def body(index, *state):
            place = index * size + ops.arange(size, dtype="int32")
            is_real = place < self.count
            place = ops.minimum(place, _maximum(self.count - 1, 0))
            images = ops.take(self._images, place, axis=0)
            images = ops.where(is_real[:, None], images, 0.0)
            # TensorFlow's optimizer makes the transposition a part of the product.
            logits = ops.matmul(images * scale, ops.transpose(self.texts))
            logits = logits + bias[0] if bias else logits
            own = ops.minimum(self.first + place, self.total - 1)
            rows = _Rows(images, logits, own, is_real)
            return step(rows, *state)

        dtype = output_dtype or self.texts.dtype
        state, outputs = sequential_scan(body, state, chunks, dtype)
        outputs = ops.reshape(outputs, (-1, *outputs.shape[2:]))
        return state, outputs[: self.count]

    def for_columns(self, value, dtype=None):
        """The value for each column, (B,)."""
        return ops.full((self.total,), value, dtype or self.texts.dtype)

    def own_part(self, columns):
        """(B, …) -> (P, …)."""
        return columns[self.first : self.first + self.count]

    def is_own(self, rows):
        """Whether a text belongs to an image, (C, B)."""
        return ops.equal(ops.arange(self.total, dtype="int32"), rows.own[:, None])

    def gradients(self, compute_slopes, factor):
        """Gradients of x (P, E), of y (P, E), of s, and of b if there is one.

        Args:
            compute_slopes: From `_Rows` to the gradients of logits, (C, B), which are
                divided by `factor`.
            factor: A scalar.
        """
        scale = self._scalars[0]

        def step(rows, d_texts, d_scale, *d_bias):
            slopes = compute_slopes(rows)
            d_rows = factor * ops.matmul(slopes, self.texts)  # (C, E)
            images = (factor * scale) * rows.images
            d_texts += ops.matmul(ops.transpose(slopes), images)  # (B, E)
            d_scale += ops.sum(d_rows * rows.images)
            sums = ops.where(rows.is_real, ops.sum(slopes, axis=1), 0.0)
            d_bias = (d + factor * ops.sum(sums) for d in d_bias)
            return (d_texts, d_scale, *d_bias), scale * d_rows

        start = ops.zeros_like(self.texts), *(self.zero for _ in self._scalars)
        (d_texts, *d_scalars), d_images = self.over_chunks(step, start)
        return d_images, self.own_part(add_replicas(d_texts)), *d_scalars


def _grid(count, total, chunk_size):
    """K and C for P and B, all of them tensors if the number of pairs is unknown."""
    if chunk_size is None:
        chunk_size = _maximum(_CHUNK_LOGITS // _maximum(total, 1), _MIN_CHUNK_SIZE)
    chunks = _maximum((count + chunk_size - 1) // chunk_size, 1)
    # Equal chunks need the least padding.
    return chunks, _maximum((count + chunks - 1) // chunks, 1)


def _maximum(number, minimum):
    return (max if isinstance(number, int) else ops.maximum)(number, minimum)


def _checked(image_embeddings, text_embeddings, chunk_size):
    """Both embeddings in the same dtype, at least float32."""
    if chunk_size is not None:
        check_positive("chunk_size", chunk_size)
    x, y = map(ops.convert_to_tensor, (image_embeddings, text_embeddings))
    check_rank("image_embeddings", x, 2, "(pairs, width)")
    check_rank("text_embeddings", y, 2, "(pairs, width)")
    if not fits(x.shape, y.shape):
        raise ValueError(
            "`image_embeddings` and `text_embeddings` must have the same shape, one "
            f"row for each pair. Received: image_embeddings.shape={tuple(x.shape)}, "
            f"text_embeddings.shape={tuple(y.shape)}"
        )
    x = at_least_float32(x)
    return x, ops.cast(y, x.dtype)
