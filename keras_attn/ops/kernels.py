"""What layers compute with their kernels.

A kernel is a tensor, or an object with a method of the same name for each function of
this file, and `value_as_tensor` for `kernel_value`: `LowRankKernel` adds low-rank
updates, `QuantizedKernel` has integers (`layers/adaptation/`).

Legend: D width of the inputs, E width of the outputs, N rows.
"""

from keras import ops


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
