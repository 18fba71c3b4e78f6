"""Finds the maps of any Keras model that a decoder can use, by their size.

Legend: B batch, H and W pixels.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras

# Pixels per side of the image on which the maps of a model of any size are measured,
# and by which it is enlarged to see how much a map grows.
_PROBE = 256
_GROWTH = 1024


def find_skips(backbone: keras.Model, layer_names: Sequence[str] | None = None):
    """The last map of each size, before it is halved.

    A map counts only if everything after it depends only on it, so a map inside a
    residual block does not. The scale of a map is how much it grows with the image, so
    convolutions without padding ("valid"), which crop its border, do not matter.

    Args:
        backbone: A model of one input, images (B, H, W, channels). A head is ignored.
        layer_names: Layers whose outputs to take instead.

    Returns:
        The maps by their scale: 1 for a map with half the rows and columns of the
        images, 2 for a quarter, and so on; and the scales of the maps that are smaller
        than rounding explains.

    Raises:
        TypeError: If `backbone` is not a functional Keras model.
        ValueError: If `backbone` has other inputs, a layer in `layer_names` is unknown
            or does not output a map, two maps have the same size, or no map is smaller
            than the image.
    """
    check_backbone(backbone)
    if layer_names is None:
        tensors = _bottlenecks(backbone)
    else:
        tensors = [_get_output(backbone, name) for name in layer_names]
    sides, sizes, scales = _measure(backbone, tensors)
    found: dict[int, Any] = {}
    size_of: dict[int, tuple[int, int]] = {}
    for tensor, size, scale in zip(tensors, sizes, scales, strict=True):
        if layer_names is not None:
            if scale in found or scale is None:
                raise ValueError(
                    "`skip_layers` must be layers whose maps have different sizes: "
                    "the image size, half of it, a fourth, and so on. Received: "
                    f"skip_layers={tuple(layer_names)} with maps of 1 / "
                    f"{[s if s is None else 2**s for s in scales]}"
                )
        # After the last map of a scale that is not halved again there is only a head,
        # and a map that is larger than the one before it is padding.
        elif (
            not scale
            or (found and scale > max(found) + 1)
            or max(size) > max(size_of.get(scale, size))
        ):
            continue
        found[scale], size_of[scale] = tensor, size
    if not found or max(found) == 0:
        raise ValueError(
            "`backbone` must have a map (B, rows, columns, channels), channels last, "
            "that is smaller than the image by a power of two. Pass a different "
            "backbone, or name its layers in `skip_layers`. "
            f"Received: backbone={backbone!r}"
        )
    if layer_names is None:
        _check_reaches_the_end(backbone, sizes, scales, max(found))
    lacking = {x for x, size in size_of.items() if not _is_halved(sides, size, x)}
    return found, lacking


def _check_reaches_the_end(backbone, sizes, scales, smallest):
    """Raises if the last map of the backbone is smaller than all the maps found."""
    maps = [scale for size, scale in zip(sizes, scales, strict=True) if min(size) > 1]
    if maps and (maps[-1] is None or maps[-1] > smallest):
        raise ValueError(
            "`backbone` must have maps of half the image size, a fourth and so on, "
            "down to its last map. Pass a different backbone, or name its layers in "
            f"`skip_layers`. Received: backbone={backbone!r}, whose smallest usable "
            f"map is 1 / {2**smallest} of the image"
        )


def check_backbone(backbone):
    """Raises unless a backbone is a functional model of images."""
    if not isinstance(backbone, keras.Model) or not hasattr(backbone, "operations"):
        raise TypeError(
            "`backbone` must be a functional Keras model, such as one of "
            f"`keras.applications`. Received: backbone={backbone!r}"
        )
    shapes = [tuple(tensor.shape) for tensor in backbone.inputs]
    if len(shapes) != 1 or len(shapes[0]) != 4 or shapes[0][-1] is None:
        raise ValueError(
            "`backbone` must take one input, images (batch, rows, columns, channels). "
            f"Received: backbone={backbone!r} with inputs of {shapes}"
        )


def _get_output(backbone, name):
    names = [layer.name for layer in backbone.layers]
    if name not in names:
        raise ValueError(
            "`skip_layers` must be names of layers in the `backbone`: see "
            f"`backbone.summary()`. Received: {name!r}"
        )
    tensor = backbone.get_layer(name).output
    if not isinstance(tensor, keras.KerasTensor) or len(tensor.shape) != 4:
        raise ValueError(
            "`skip_layers` must have one output each, (batch, rows, columns, channels)."
            f" Received: {name!r} with the output {tensor}"
        )
    return tensor


def _bottlenecks(backbone) -> list[Any]:
    """The maps that determine everything after them, in order."""
    maps = [x for x in backbone.outputs if len(x.shape) == 4]
    # If there are several maps, such as one per stage, the last one.
    end = maps[-1] if maps else backbone.outputs[0]
    nodes = _nodes_before(backbone, end)
    needed = {id(end): -1}  # The last operation that reads each tensor.
    for turn, node in enumerate(nodes):
        needed |= {id(tensor): turn for tensor in node.input_tensors}
    needed[id(end)] = len(nodes)
    found, waiting = [], {id(backbone.inputs[0])}
    for turn, node in enumerate(nodes):
        waiting = {key for key in waiting if needed[key] > turn}
        waiting |= {id(x) for x in node.output_tensors if needed.get(id(x), -1) > turn}
        if len(waiting) == 1:
            found += [x for x in node.output_tensors if id(x) in waiting]
    return [tensor for tensor in found if len(tensor.shape) == 4]


def _nodes_before(backbone, end):
    """The operations that lead to a tensor, each after the operations it depends on."""
    producers = {
        id(tensor): node
        for depth in backbone._nodes_by_depth.values()
        for node in depth
        for tensor in node.output_tensors
        if not node.is_input
    }
    order, seen, stack = [], set(), [(id(end), False)]
    while stack:
        key, is_done = stack.pop()
        node = producers.get(key)
        if node is None or (id(node) in seen and not is_done):
            continue
        if is_done:
            order.append(node)
            continue
        seen.add(id(node))
        stack.append((key, True))
        stack += [(id(tensor), False) for tensor in node.input_tensors]
    return order


def _measure(backbone, tensors):
    """Rows and columns of an image and of each map for it, and the maps' scales."""
    sides = tuple(side or _PROBE for side in backbone.inputs[0].shape[1:3])
    sizes = _sizes(backbone, tensors, sides)
    try:
        larger = _sizes(backbone, tensors, [side + _GROWTH for side in sides])
    except (ValueError, TypeError):
        # A layer inside, such as learned positions, accepts only one size of image.
        return sides, sizes, [_scale_of_size(sides, size) for size in sizes]
    growths = [
        tuple(end - start for start, end in zip(*pair, strict=True))
        for pair in zip(sizes, larger, strict=True)
    ]
    return sides, sizes, [_scale_of_growth(growth) for growth in growths]


def _sizes(backbone, tensors, sides) -> list[tuple[int, int]]:
    """Rows and columns of each map, for an image of that size."""
    if not tensors:
        return []
    images = backbone.inputs[0]
    if tuple(images.shape[1:3]) == tuple(sides):
        return [tuple(tensor.shape[1:3]) for tensor in tensors]
    probe = keras.KerasTensor((1, *sides, images.shape[-1]), dtype=images.dtype)
    # Not `Function.compute_output_spec`, which accepts only the input's size.
    outputs = keras.Function(backbone.inputs, list(tensors))._run_through_graph(
        [probe], operation_fn=lambda operation: operation.compute_output_spec
    )
    return [tuple(output.shape[1:3]) for output in outputs]


def _scale_of_growth(growth) -> int | None:
    """The s for which a map grows by 1 / 2^s times as much as the image."""
    for scale in range(_GROWTH.bit_length()):
        if growth == (_GROWTH >> scale, _GROWTH >> scale):
            return scale
    return None


def _scale_of_size(sides, size) -> int | None:
    """The number of halvings, each rounded up or down, between two sizes."""
    for scale in range(max(sides).bit_length()):
        if _is_halved(sides, size, scale):
            return scale
    return None


def _is_halved(sides, size, scale) -> bool:
    """Whether halving `sides` `scale` times, rounding up or down, can give `size`."""
    exact = [side / 2**scale for side in sides]
    return all(
        math.floor(x) <= n <= math.ceil(x) for x, n in zip(exact, size, strict=True)
    )
