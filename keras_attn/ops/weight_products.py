"""Products, rows and convolutions with the kernels of layers.

A kernel is a tensor, or an object with a method of the same name for each function of
this file, and `value_as_tensor` for `kernel_value`: `LowRankKernel` adds LoRA weights,
`QuantizedKernel` has integers (`layers/adaptation/`).

Legend: D width of the inputs, E width of the outputs, N rows.
"""

from keras import ops

from keras_attn.kernels.bias import add_bias


def product(rows, kernel):
    """`x W`.

    Args:
        rows: (..., D).
        kernel: (D, E).

    Returns:
        (..., E).
    """
    own = getattr(kernel, "product", None)
    return ops.matmul(rows, kernel) if own is None else own(rows)


def transposed_product(rows, kernel):
    """`x Wᵀ`, such as the logits of an embedding that is tied to the output layer.

    Args:
        rows: (..., E); the product runs in their precision.
        kernel: (D, E).

    Returns:
        (..., D).
    """
    own = getattr(kernel, "transposed_product", None)
    if own is not None:
        return own(rows)
    # Keras keeps embeddings in float32 in a layer that computes in 16 bits.
    return ops.matmul(rows, ops.transpose(ops.cast(kernel, rows.dtype)))


def kernel_rows(kernel, indices):
    """The rows of a kernel, such as the vectors of tokens.

    Args:
        kernel: (D, E).
        indices: Integers in [0, D), (...).

    Returns:
        (..., E).
    """
    own = getattr(kernel, "kernel_rows", None)
    return ops.take(kernel, indices, axis=0) if own is None else own(indices)


def convolution(function, inputs, kernel):
    """A convolution of any kind.

    Args:
        function: `(inputs, kernel) -> outputs`, linear in both.
        inputs: The inputs of the convolution.
        kernel: (..., D, E); the last axis is the channels of the outputs.

    Returns:
        The outputs of `function`.
    """
    own = getattr(kernel, "convolution", None)
    return function(inputs, kernel) if own is None else own(function, inputs)


def kernel_value(kernel):
    """The kernel as one tensor, for a layer that computes something else with it.

    Args:
        kernel: The kernel.

    Returns:
        A tensor, or the variable that the kernel is.
    """
    own = getattr(kernel, "value_as_tensor", None)
    return kernel if own is None else own()


def project(inputs, kernel, bias=None):
    """A dense projection, `x W + b`.

    All axes but the last are flattened first: on a CPU a batched product with a shared
    matrix is a sixth slower than one product of two matrices (TensorFlow 2.21).

    Args:
        inputs: (..., D).
        kernel: (D, E); as for `ops.product`.
        bias: (E,), or None.

    Returns:
        (..., E).
    """
    shape, is_matrix = ops.shape(inputs), len(inputs.shape) == 2
    if not is_matrix:
        inputs = ops.reshape(inputs, (-1, shape[-1]))
    outputs = product(inputs, kernel)
    if bias is not None:
        outputs = add_bias(outputs, bias)
    # A reshape of a matrix would come between the bias and an activation, which
    # TensorFlow fuses.
    return (
        outputs if is_matrix else ops.reshape(outputs, (*shape[:-1], kernel.shape[-1]))
    )


def project_neighborhoods(inputs, kernel, bias=None):
    """A dense projection of each location of a map together with its neighbors.

    `y_ij = Σ_pq W_pq x_{i+p, j+q} + b`, a convolution with a stride of 1. Locations
    outside the map count as zeros.

    Args:
        inputs: (B, H, W, D), H rows and W columns.
        kernel: (R, C, D, E), R rows and C columns of neighbors; (1, 1, D, E) is a
            projection of each location by itself.
        bias: (E,), or None.

    Returns:
        (B, H, W, E).
    """

    def convolve(inputs, kernel):
        return ops.conv(inputs, kernel, padding="same", data_format="channels_last")

    outputs = convolution(convolve, inputs, kernel)
    return outputs if bias is None else add_bias(outputs, bias)
