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
    here its three parts are divided again, by columns, which are heads: devices exchange
    pieces of the kernel, which is smaller than the projections that they would exchange
    otherwise.

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
    parts, start = [], 0
    for name, width in zip(PARTS, widths, strict=True):
        layout = distribution.get_tensor_layout(f"{kernel.path}/{name}")
        if layout is None:
            return None
        columns = slice(start, start + width)
        part = keras.distribution.distribute_tensor(
            ops.convert_to_tensor(kernel)[:, columns], layout
        )
        parts.append((part, None if bias is None else bias[columns]))
        start += width
    return parts
