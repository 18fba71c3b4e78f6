"""Worked examples in numbers: what a layer does, as tables of text.

Each number is computed by the layer of this library that the text names; the steps
between are the formulas beside them, and end in what the layer returns.

Legend: H and W rows and columns of a map, h and w of a smaller one, U units or filters,
n inputs, k kernel size, s stride, p padding.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_not_negative, check_positive
from keras_attn.layers import (
    Conv2D,
    Dense,
    MaxPoolWithIndices,
    MaxUnpool2D,
    TransposedConv2D,
)

_MOST = 12  # Rows and columns of a table that can be read.


class WorkedExample(NamedTuple):
    """An example in numbers.

    Attributes:
        text: What to print: formulas and tables, lines of at most 80 letters for the
            default numbers.
        arrays: The numbers of the tables, float32 or int32, by name.
    """

    text: str
    arrays: dict[str, np.ndarray]


def worked_convolution(image: Any = None, kernel: Any = None) -> WorkedExample:
    """A fully connected layer as a convolution: the same weights, the same numbers.

    A `Dense` layer of a map of h × w values is a `Conv2D` whose kernel is as large as
    the map. On a larger map the convolution is that layer at each location.

    Args:
        image: The larger map, numbers (H, W), at most 12 × 12. Default: 4 × 5.
        kernel: The weights of U units, (h, w, U), h <= H and w <= W. Default: two units
            that see 3 × 3 values.

    Returns:
        The text, and the arrays `image`, `kernel`, `window` (h, w), `dense` (U,),
        `convolution` (U,), `dense_everywhere` and `convolution_everywhere`, both
        (H - h + 1, W - w + 1, U).

    Raises:
        ValueError: If an array is not of this shape, or not finite.

    Example:
        ```python
        from keras_attn import viz

        print(viz.worked_convolution().text)
        ```

    Reference:
        Long et al. 2015, "Fully Convolutional Networks for Semantic Segmentation",
        section 3.1 (arXiv:1411.4038).
    """
    if image is None:
        image = [[1, 0, 2, 1, 0], [3, 1, 0, 0, 2], [0, 2, 1, 4, 1], [1, 0, 0, 2, 3]]
    if kernel is None:
        first = [[1, 0, -1], [2, 0, -2], [1, 0, -1]]
        second = [[0, 1, 0], [1, -3, 1], [0, 1, 0]]
        kernel = np.stack([first, second], axis=-1)
    image = _check("image", image, ("H", "W"))
    kernel = _check("kernel", kernel, ("h", "w", "U"))
    (height, width), (rows, columns, units) = image.shape, kernel.shape
    if rows > height or columns > width:
        raise ValueError(
            f"`kernel` must be at most as large as `image`, {height} x {width}. "
            f"Received: kernel.shape={kernel.shape}"
        )
    dense = Dense(units, use_bias=False)
    convolution = Conv2D(units, (rows, columns), use_bias=False)
    dense.build((None, rows * columns))
    convolution.build((None, None, None, 1))
    # (h, w, U) -> (h · w, U): row-major, as the map is flattened.
    dense.set_weights([kernel.reshape(-1, units)])
    convolution.set_weights([kernel[:, :, None]])

    def run(layer, inputs):
        return ops.convert_to_numpy(layer(inputs))

    window = image[:rows, :columns]
    windows = np.lib.stride_tricks.sliding_window_view(image, (rows, columns))
    flat = windows.reshape(-1, rows * columns)
    arrays = {
        "image": image,
        "kernel": kernel,
        "window": window,
        "dense": run(dense, window.reshape(1, -1))[0],
        "convolution": run(convolution, window[None, ..., None])[0, 0, 0],
        "dense_everywhere": run(dense, flat).reshape(*windows.shape[:2], units),
        "convolution_everywhere": run(convolution, image[None, ..., None])[0],
    }
    everywhere = arrays["convolution_everywhere"]
    names = f"Dense({units})", f"Conv2D({units}, ({rows}, {columns}))"
    lines = [
        "A fully connected layer is a convolution whose kernel is as large as its map.",
        "",
        f"  {names[0].ljust(len(names[1]))}     y[u] = sum_i x[i] W[i, u]         "
        f"i = {columns} · row + column",
        f"  {names[1]}     y[u] = sum_rc x[r, c] K[r, c, u]  "
        f"K = W as ({rows}, {columns}, {units})",
        "",
        *_beside(
            {f"map x ({rows}, {columns})": window}
            | {f"K of unit {u}": kernel[:, :, u] for u in range(units)}
        ),
        "",
        *_table(
            [("Dense, of the flattened map", *arrays["dense"])]
            + [("Conv2D, of the map", *arrays["convolution"])],
            ["", *(f"unit {u}" for u in range(units))],
        ),
        "",
        f"On a larger map ({height}, {width}) the same layer is applied at each of "
        f"{len(flat)} locations:",
        "",
        *_beside(
            {f"map ({height}, {width})": image}
            | {f"Conv2D, unit {u}": everywhere[:, :, u] for u in range(units)}
        ),
        "",
        f"Dense, of each of the {len(flat)} windows, differs by at most "
        f"{np.abs(everywhere - arrays['dense_everywhere']).max():g}.",
    ]
    return WorkedExample("\n".join(lines), arrays)


def worked_unpooling(
    image: Any = None, values: Any = None, pool_size: int = 2
) -> WorkedExample:
    """Max pooling that stores where each maximum was, and unpooling by these places.

    Args:
        image: The map to pool, numbers (H, W), at most 12 × 12, multiples of
            `pool_size`. Default: 4 × 4.
        values: The map to unpool, (H / pool_size, W / pool_size), such as what later
            layers make of the maxima. Default: 1, 2, 3, ….
        pool_size: Rows and columns of a window.

    Returns:
        The text, and the arrays `image`, `maxima`, `places`, as the layer returns them,
        `values` and `unpooled` (H, W).

    Raises:
        ValueError: If an array is not of this shape, or not finite.

    Example:
        ```python
        from keras_attn import viz

        print(viz.worked_unpooling([[1, 5], [7, 3]]).text)
        ```

    Reference:
        Noh et al. 2015, "Learning Deconvolution Network for Semantic Segmentation",
        section 3.2.1 (arXiv:1505.04366).
    """
    if image is None:
        image = [[1, 5, 2, 0], [7, 3, 1, 4], [2, 2, 9, 6], [0, 8, 3, 5]]
    image = _check("image", image, ("H", "W"))
    side = check_positive("pool_size", pool_size)
    if any(size % side for size in image.shape):
        raise ValueError(
            f"`image` must have rows and columns that are multiples of `pool_size`. "
            f"Received: image.shape={image.shape}, pool_size={side}"
        )
    pooled = tuple(size // side for size in image.shape)
    if values is None:
        values = np.arange(1, np.prod(pooled) + 1).reshape(pooled)
    values = _check("values", values, ("h", "w"))
    if values.shape != pooled:
        raise ValueError(
            f"`values` must have the shape {pooled} of the pooled map. "
            f"Received: values.shape={values.shape}"
        )
    pool, unpool = MaxPoolWithIndices(side), MaxUnpool2D(side)
    maxima, places = pool(image[None, ..., None])
    unpooled = unpool(values[None, ..., None], places, image[None, ..., None])
    arrays = {
        "image": image,
        "maxima": _map(maxima),
        "places": _map(places),
        "values": values,
        "unpooled": _map(unpooled),
    }
    lines = [
        f"Max pooling of {side} x {side} windows stores where each maximum was;",
        "unpooling puts values there.",
        "",
        f"  place = {side} · row + column, within the window, from 0",
        "",
        *_beside(
            {
                f"map {image.shape}": image,
                "maxima": arrays["maxima"],
                "places": arrays["places"],
            }
        ),
        "",
        "MaxUnpool2D, of other values and these places; the other locations are 0:",
        "",
        *_beside({f"values {pooled}": values, "unpooled": arrays["unpooled"]}),
        "",
        "Where the maximum was, row by row of windows:",
        "",
        *_table(
            _moves(arrays, side), ["window", "place", "location", "maximum", "value"]
        ),
    ]
    return WorkedExample("\n".join(lines), arrays)


def worked_transposed_convolution(
    inputs: Any = None, kernel: Any = None, strides: int = 2, padding: int = 0
) -> WorkedExample:
    """A transposed convolution in one dimension or two, step by step.

    Each input value adds a copy of the kernel times that value, s places after the copy
    before it. Where copies overlap, they add up. p places are cropped at each end.

    Args:
        inputs: Numbers (n,) or (h, w). Default: (3,).
        kernel: Numbers (k,) or (k, k), with as many axes as `inputs`; two axes may be
            unlike. Default: 1, 2, 1, in two dimensions its products with itself.
        strides: s, the step from copy to copy.
        padding: p, from 0 to less than k.

    Returns:
        The text, and the arrays `inputs`, `kernel`, `copies`, one for each input value,
        of the uncropped output's shape, `count`, how many copies reach each location,
        `sum`, uncropped, and `output`, what `TransposedConv2D` returns.

    Raises:
        ValueError: If an array is not of this shape, not finite or too large to be
            read, or `padding` is not less than k or leaves nothing.

    Example:
        ```python
        from keras_attn import viz

        print(viz.worked_transposed_convolution([1, 2, 3], [1, 0, -1], strides=2).text)
        print(viz.worked_transposed_convolution([[1, 2], [3, 4]], padding=1).text)
        ```

    Reference:
        Dumoulin and Visin 2016, "A guide to convolution arithmetic for deep learning",
        section 4 (arXiv:1603.07285).
    """
    inputs = [1, 2, 3] if inputs is None else inputs
    inputs = _check("inputs", inputs, ("n",), ("h", "w"))
    is_flat = inputs.ndim == 1
    if kernel is None:
        kernel = np.array([1, 2, 1], "float32")
        kernel = kernel if is_flat else np.outer(kernel, kernel)
    kernel = _check("kernel", kernel, ("k",) if is_flat else ("k", "k"))
    step = check_positive("strides", strides)
    check_not_negative("padding", padding)
    uncropped = [
        (size - 1) * step + k
        for size, k in zip(inputs.shape, kernel.shape, strict=True)
    ]
    if max(uncropped) > 2 * _MOST:
        raise ValueError(
            f"`inputs`, `kernel` and `strides` must give at most {2 * _MOST} rows and "
            f"columns, which can be read. Received: {' x '.join(map(str, uncropped))}"
        )
    if 2 * padding >= min(uncropped):
        raise ValueError(
            "`padding` must leave at least one location of "
            f"{' x '.join(map(str, uncropped))}. Received: padding={padding}"
        )
    # One dimension is a map of one row.
    grid, stamp = (np.atleast_2d(x) for x in (inputs, kernel))
    steps = (1, step) if is_flat else (step, step)
    layer = TransposedConv2D(
        1,
        stamp.shape,
        steps,
        padding=(0, padding) if is_flat else padding,
        use_bias=False,
    )
    layer.build((None, None, None, 1))
    layer.set_weights([stamp[..., None, None]])
    output = _map(layer(grid[None, ..., None]))
    copies = _copies(grid, stamp, steps).reshape(-1, *uncropped)
    arrays = {
        "inputs": inputs,
        "kernel": kernel,
        "copies": np.nan_to_num(copies),
        "count": (~np.isnan(copies)).sum(0, dtype="int32"),
        "sum": np.nansum(copies, 0),
        "output": output[0] if is_flat else output,
    }
    write = _in_one_dimension if is_flat else _in_two_dimensions
    return WorkedExample("\n".join(write(arrays, copies, step, padding)), arrays)


def _copies(grid, kernel, strides) -> np.ndarray:
    """The copy of each value, (values, H, W); NaN where it adds nothing."""
    size = [
        (n - 1) * s + k
        for n, s, k in zip(grid.shape, strides, kernel.shape, strict=True)
    ]
    copies = np.full((grid.size, *size), np.nan, "float32")
    for copy, (place, value) in zip(copies, np.ndenumerate(grid), strict=True):
        top, left = np.multiply(place, strides)
        copy[top : top + kernel.shape[0], left : left + kernel.shape[1]] = (
            value * kernel
        )
    return copies


def _in_one_dimension(arrays, copies, step: int, padding: int) -> list[str]:
    """The lines of a transposed convolution of a row of numbers."""
    inputs, kernel, total = (arrays[name] for name in ("inputs", "kernel", "sum"))
    rows: list[Sequence[Any]] = [
        (f"x[{i}] · w = {_number(value)} · w", *copy)
        for i, (value, copy) in enumerate(zip(inputs, copies, strict=True))
    ]
    rows.append(("sum", *total))
    if padding:
        gone = np.full(padding, np.nan)
        rows.append(("cropped", *gone, *arrays["output"], *gone))
    rows.append(("copies here", *arrays["count"]))
    return [
        "Transposed convolution in 1-D: each value adds a copy of the kernel.",
        "",
        f"  y[s i + j - p] += x[i] w[j]     (n - 1) s + k - 2 p = "
        f"{len(arrays['output'])} values",
        "",
        f"  x = {_joined(inputs)}     w = {_joined(kernel)}     n = {len(inputs)}, "
        f"k = {len(kernel)}, s = {step}, p = {padding}",
        "",
        *_table(rows, ["location", *(str(j - padding) for j in range(len(total)))]),
        "",
        f"TransposedConv2D, of a map of one row: {_joined(arrays['output'])}",
    ]


def _in_two_dimensions(arrays, copies, step: int, padding: int) -> list[str]:
    """The lines of a transposed convolution of a map."""
    inputs, kernel, output = (arrays[name] for name in ("inputs", "kernel", "output"))
    lines = [
        "Transposed convolution in 2-D: each value adds a copy of the kernel.",
        "",
        "  y[s i + a - p, s j + b - p] += x[i, j] w[a, b]     "
        f"(h - 1) s + k - 2 p: {' x '.join(map(str, output.shape))}",
        "",
        *_beside({f"x {inputs.shape}": inputs, f"w {kernel.shape}": kernel}),
        "",
        f"s = {step}, p = {padding}; the copy of x[i, j], from row {step} i and column "
        f"{step} j on:",
    ]
    for i, row in enumerate(copies.reshape(*inputs.shape, *copies.shape[1:])):
        panels = {
            f"x[{i}, {j}] · w = {_number(inputs[i, j])} · w": copy
            for j, copy in enumerate(row)
        }
        lines += ["", *_beside(panels)]
    cropped = f"TransposedConv2D: the sum, {padding} cropped at each side"
    return [
        *lines,
        "",
        *_beside({"sum of the copies": arrays["sum"], "copies here": arrays["count"]}),
        "",
        *_beside({cropped: output}),
    ]


def _moves(arrays: dict[str, np.ndarray], side: int) -> list[Sequence[Any]]:
    """A row for each window: where its maximum was, and what is put there."""
    rows = []
    for (i, j), place in np.ndenumerate(arrays["places"]):
        row, column = divmod(int(place), side)
        location = i * side + row, j * side + column
        maximum, value = arrays["maxima"][i, j], arrays["values"][i, j]
        rows.append((str((i, j)), place, str(location), maximum, value))
    return rows


def _map(tensor) -> np.ndarray:
    """(1, H, W, 1) -> (H, W)."""
    return ops.convert_to_numpy(tensor)[0, ..., 0]


def _check(name: str, value: Any, *shapes: tuple[str, ...]) -> np.ndarray:
    """An array as float32, after a check that it has one of the shapes."""
    try:
        array = np.asarray(value, "float32")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be numbers, rows of the same length. "
            f"Received: {name}={value!r}"
        ) from error
    fits = array.ndim in map(len, shapes)
    if not fits or not all(1 <= size <= _MOST for size in array.shape):
        expected = " or ".join(f"({', '.join(shape)})" for shape in shapes)
        raise ValueError(
            f"`{name}` must have the shape {expected}, each of 1 to {_MOST}: "
            f"the tables are to be read. Received: {name}.shape={array.shape}"
        )
    if not np.isfinite(array).all():
        raise ValueError(f"`{name}` must be finite. Received: {name}={value!r}")
    return array


def _number(value) -> str:
    """A number as text, 0 also for -0."""
    return f"{value + 0:g}"


def _joined(values: np.ndarray) -> str:
    return "  ".join(map(_number, values))


def _beside(panels: dict[str, np.ndarray]) -> list[str]:
    """Lines of maps side by side, under their names; "." where a number is NaN."""
    blocks = []
    for name, array in panels.items():
        cells = [["." if np.isnan(x) else _number(x) for x in row] for row in array]
        widest = max(len(cell) for row in cells for cell in row)
        rows = ["  ".join(cell.rjust(widest) for cell in row) for row in cells]
        width = max(len(name), *map(len, rows))
        blocks.append([line.ljust(width) for line in (name, *rows)])
    height = max(map(len, blocks))
    for block in blocks:
        block += [" " * len(block[0])] * (height - len(block))
    return [f"  {'     '.join(parts)}".rstrip() for parts in zip(*blocks, strict=True)]


def _table(rows: Sequence[Sequence[Any]], header: Sequence[str]) -> list[str]:
    """Lines of a table: the first column is text; nothing where a number is NaN."""
    written = [
        header,
        *(
            [
                x if isinstance(x, str) else "" if np.isnan(x) else _number(x)
                for x in row
            ]
            for row in rows
        ),
    ]
    widths = [max(map(len, column)) for column in zip(*written, strict=True)]
    lines = []
    for first, *rest in written:
        cells = [x.rjust(w) for x, w in zip(rest, widths[1:], strict=True)]
        lines.append("  " + "  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines
