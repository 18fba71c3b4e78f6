"""The fused kernel of self-attention on several devices, each with its own heads.

Legend: D width, N heads, H size of a head.
"""

import keras
from keras import ops

PARTS = ("query", "key", "value")


def parts_by_head(kernel, bias, widths):
    """Queries', keys' and values' kernels and biases, each device with its heads.

    A fused kernel is (D, 3·N·H): all queries, then all keys, then all values. A device
    holds one contiguous piece of an array, and no piece of this one has the query, key
    and value of one head. So `models.layout_map` divides the stored kernel by rows, and
    here its three parts are divided again, by columns, which are heads: devices
    exchange pieces of the kernel once per use, and no queries, keys or values.

    Args:
        kernel: The layer's fused kernel, (D, E).
        bias: (E,), or None.
        widths: Columns of the queries, keys and values; their sum is E.

    Returns:
        Three pairs of a kernel and its bias; None unless the current
        `keras.distribution` has layouts for the parts of this kernel, or if the kernel
        is not a variable (low-rank updates, integers).
    """
    distribution = keras.distribution.distribution()
    if distribution is None or not isinstance(kernel, keras.Variable):
        return None
    distribute_tensor = keras.distribution.distribute_tensor
    parts, start = [], 0
    for name, width in zip(PARTS, widths, strict=True):
        layout = distribution.get_tensor_layout(f"{kernel.path}/{name}")
        if layout is None:
            return None
        columns = slice(start, start + width)
        part = ops.convert_to_tensor(kernel)[:, columns]
        # First as it is stored; otherwise XLA divides the whole kernel by columns, and
        # then moves what is on the wrong device for this part.
        part = distribute_tensor(part, distribution.get_variable_layout(kernel))
        part_bias = None
        if bias is not None:
            part_bias = distribute_tensor(
                ops.convert_to_tensor(bias)[columns],
                distribution.get_variable_layout(bias),
            )
        parts.append((distribute_tensor(part, layout), part_bias))
        start += width
    return parts
