"""`layout_map`: which axis of which weight `keras.distribution.ModelParallel` divides.

`splits.py` says how each kind of layer is divided; here this becomes layouts by path,
after everything that would go wrong later has been checked.
"""

import difflib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras

from keras_attn.files.hub_names import is_hub_name
from keras_attn.models.catalog.registry import create
from keras_attn.models.parts.keras_state import undone, without_allocating
from keras_attn.models.plans.splits import (
    Group,
    find_groups,
    is_fused,
    key_value_heads,
    weights_by_name,
)

Axes = tuple[str | None, ...]


def layout_map(
    model: str | os.PathLike | keras.Model | Callable[[], keras.Model],
    mesh: "keras.distribution.DeviceMesh",
    *,
    rules: Mapping[str, Axes | None] | None = None,
    model_parallel_dim_name: str = "model",
    data_parallel_dim_name: str = "batch",
    **overrides,
) -> "keras.distribution.LayoutMap":
    r"""The layout of a model's weights on the devices of a mesh.

    Attention is divided by heads, feed-forward networks by hidden units, tables and
    products of a vocabulary by its tokens, convolutions by channels; norms, vectors,
    positions and recurrent loops stay whole on every device (docs/many_devices.md has
    the table). Outputs, losses and gradients are as on one device, up to rounding.

    A variable gets its layout when it is created, so the map is made first, from a
    model that is not allocated, and the model is built or loaded afterwards, under
    `keras.distribution.ModelParallel`.

    Args:
        model: What will be built: a name from `list_models()`, a folder that
            `load_checkpoint` reads or its name on the hub, a function without arguments
            that builds the model (`lambda: build_bert_classifier("base",
            num_classes=3)`), or a model that exists already, from which only paths and
            shapes are taken.
        mesh: The devices, with an axis for each of the two names below.
        rules: Layouts to use instead, as for `keras.distribution.LayoutMap`: a regular
            expression that matches whole paths of variables, and for each axis of the
            variable the name of an axis of the mesh or None. None instead of a tuple
            keeps these variables whole.
        model_parallel_dim_name: The axis of the mesh that divides weights.
        data_parallel_dim_name: The axis of the mesh that divides batches.
        **overrides: Arguments of the model's builder, or of `load_checkpoint`, if
            `model` is a name or a folder.

    Returns:
        A `keras.distribution.LayoutMap`, with one pattern for all blocks whose weights
        are divided alike.

    Raises:
        RuntimeError: If Keras' backend is not JAX. `keras.distribution` has no effect
            on TensorFlow.
        TypeError: If `mesh` is not a `DeviceMesh`, or if overrides are given with a
            model or a function.
        ValueError: If the mesh lacks an axis; a number of heads or an `mlp_dim` is not
            a multiple of the size of the mesh's axis; or a rule matches no variable or
            the same one as another rule, has a wrong number of axes, names an axis that
            the mesh does not have, divides an axis with a rest or one along which a
            convolution slides.

    Warns:
        UserWarning: If weights stay whole because none of their axes can be divided, or
            all weights do.

    Example:
        Needs eight devices:

        ```python
        import keras
        from keras_attn import models

        mesh = keras.distribution.DeviceMesh((2, 4), ["batch", "model"])
        layout = models.layout_map("gpt2_small", mesh)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
        )
        model = models.create("gpt2_small")
        ```
    """
    _check_backend()
    size = _check_mesh(mesh, model_parallel_dim_name, data_parallel_dim_name)
    built = _unallocated(model, overrides)
    variables = {variable.path: variable for variable in built.variables}
    chosen = _check_rules(rules or {}, variables, mesh)
    divided, whole = _divide(built, size, set(chosen))
    if whole:
        warnings.warn(
            f"On a mesh whose axis {model_parallel_dim_name!r} has the size {size}, "
            "these weights stay whole on each device, because no axis that may be "
            f"divided is a multiple of it: {', '.join(whole)}",
            stacklevel=2,
        )
    axes: dict[str, Axes] = {}
    for path, (axis, rank) in divided.items():
        names: list[str | None] = [None] * rank
        if axis is not None:
            names[axis] = model_parallel_dim_name
        axes[path] = tuple(names)
    axes |= {path: given for path, given in chosen.items() if given is not None}
    if not axes:
        warnings.warn(
            "No weight of this model is divided: every device holds all of them, "
            "because all are vectors or inside recurrent loops. "
            "`keras.distribution.DataParallel` does the same. "
            f"Received: model={built.name!r}",
            stacklevel=2,
        )
    layout = keras.distribution.LayoutMap(mesh)
    for pattern, given in _patterns(axes, {*variables, *axes}).items():
        layout[pattern] = given
    return layout


def _check_backend():
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            "`layout_map` needs Keras' JAX backend, because on other backends "
            "`keras.distribution` has no effect: every device would hold and compute "
            "everything. Set KERAS_BACKEND=jax before Keras is imported; on TensorFlow "
            "`tf.distribute.MirroredStrategy` divides batches, but not weights. "
            f"Received: backend={keras.backend.backend()!r}"
        )


def _check_mesh(mesh, model_axis, data_axis) -> int:
    """The size of the axis that divides weights."""
    if not isinstance(mesh, keras.distribution.DeviceMesh):
        raise TypeError(
            "`mesh` must be a `keras.distribution.DeviceMesh`. "
            f"Received: mesh={mesh!r}, a {type(mesh).__name__}"
        )
    if model_axis == data_axis:
        raise ValueError(
            "`model_parallel_dim_name` and `data_parallel_dim_name` must be two axes "
            f"of the mesh. Received: {model_axis!r} for both"
        )
    for argument, axis in (
        ("model_parallel_dim_name", model_axis),
        ("data_parallel_dim_name", data_axis),
    ):
        if axis not in mesh.axis_names:
            raise ValueError(
                f"`{argument}` must be an axis of the mesh, which has "
                f"{', '.join(map(repr, mesh.axis_names))}: name it so in "
                "`keras.distribution.DeviceMesh`, with a size of 1 if it divides "
                f"nothing. Received: {argument}={axis!r}"
            )
    return mesh.shape[list(mesh.axis_names).index(model_axis)]


def _unallocated(model, overrides) -> Any:
    """The model, or a new one without values in its variables."""
    if isinstance(model, keras.Model) or (
        callable(model) and not isinstance(model, str | os.PathLike)
    ):
        if overrides:
            raise TypeError(
                "Arguments of a builder must come with the name of a model or a "
                f"folder. Received: model={model!r}, {', '.join(overrides)}"
            )
        if isinstance(model, keras.Model):
            return model
    with undone(), without_allocating():
        if isinstance(model, os.PathLike) or (
            isinstance(model, str) and (is_hub_name(model) or Path(model).is_dir())
        ):
            from keras_attn.models.checkpoints.loading import build_from_checkpoint

            return build_from_checkpoint(model, **overrides)
        built = create(model, **overrides) if isinstance(model, str) else model()
    if not isinstance(built, keras.Model):
        raise TypeError(
            "`model` must be a name, a folder, a model, or a function that returns a "
            f"model. Received: a function that returns a {type(built).__name__}"
        )
    return built


def _check_rules(rules, variables, mesh) -> dict[str, Axes | None]:
    """Path to layout of every variable that a rule matches."""
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    rule_of: dict[str, str] = {}
    for pattern, axes in rules.items():
        try:
            matched = [path for path in variables if re.fullmatch(pattern, path)]
        except re.error as error:
            raise ValueError(
                f"`rules` must have regular expressions: {error}. Received: {pattern!r}"
            ) from error
        if not matched:
            close = difflib.get_close_matches(pattern, variables, n=3, cutoff=0.3)
            hint = f" Similar paths: {', '.join(close)}." if close else ""
            raise ValueError(
                "`rules` must have patterns that match the whole path of a variable, "
                f"and this one matches none.{hint} Received: {pattern!r}"
            )
        for path in matched:
            if path in rule_of:
                raise ValueError(
                    "`rules` must match a variable once. Received: "
                    f"{rule_of[path]!r} and {pattern!r}, which both match {path}"
                )
            rule_of[path] = pattern
            if axes is not None:
                _check_axes(pattern, axes, variables[path], sizes)
    return {
        path: None if rules[pattern] is None else tuple(rules[pattern])
        for path, pattern in rule_of.items()
    }


def _check_axes(pattern, axes, variable, sizes):
    shape = tuple(variable.shape)
    received = f"Received: {pattern!r}: {axes!r}, {variable.path} of shape {shape}"
    if not isinstance(axes, tuple | list) or len(axes) != len(shape):
        raise ValueError(
            "`rules` must have a tuple with the name of an axis of the mesh, or None, "
            f"for each axis of the variable. {received}"
        )
    names = [name for name in axes if name is not None]
    unknown = [name for name in names if name not in sizes]
    if unknown or len(names) != len(set(names)):
        raise ValueError(
            "`rules` must name axes of the mesh, each at most once; it has "
            f"{', '.join(map(repr, sizes))}. {received}"
        )
    for axis, name in enumerate(axes):
        if name is None or sizes[name] == 1:
            continue
        # Kernels of convolutions: (rows, columns, channels, channels).
        if len(shape) > 3 and axis < len(shape) - 2:
            raise ValueError(
                f"`rules` must not divide axis {axis} of a kernel, along which its "
                "convolution slides: XLA's partitioner computes wrong numbers then. "
                f"Divide one of its last two axes, the channels. {received}"
            )
        if shape[axis] % sizes[name]:
            raise ValueError(
                f"`rules` must divide axes without a rest: {shape[axis]} is not a "
                f"multiple of {sizes[name]}, the size of the mesh's axis {name!r}. "
                f"{received}"
            )


def _divide(model, size, exempt) -> tuple[dict[str, tuple[int | None, int]], list[str]]:
    """The weights to divide, and the weights that cannot be divided.

    Args:
        model: The model.
        size: Number of devices that share the weights.
        exempt: Paths of variables that rules say everything of.

    Returns:
        Path to the axis that is divided and the number of axes, and descriptions of
        what is whole. The parts of a fused kernel have paths of their own.
    """
    divided: dict[str, tuple[int | None, int]] = {}
    whole, failed, needed = [], [], []
    for layer, groups in find_groups(model):
        own = {
            name: weight
            for name, weight in weights_by_name(layer).items()
            if weight.path not in exempt
        }
        for group in groups:
            weights = [own[name] for name in group.ways[0] if name in own]
            if not weights:
                continue
            if group.argument:
                needed.append((group, own))
            way = _way(group, own, size)
            if way is not None:
                for name in way.keys() & own.keys():
                    divided[own[name].path] = way[name], len(own[name].shape)
                if is_fused(layer) and "query_key_value/kernel" in own:
                    path = own["query_key_value/kernel"].path
                    divided |= _parts(path, key_value_heads(layer), size)
            elif group.argument:
                failed.append((layer, group, weights[0]))
            else:
                whole += [
                    f"{weight.path} {tuple(weight.shape)}"
                    for weight in weights
                    if len(weight.shape) > 1
                ]
    if failed:
        _raise_undivided(failed, size, needed, model)
    return divided, whole


def _way(group: Group, own, size) -> dict[str, int] | None:
    """The first way in which every device gets as much as every other."""
    if any(units % size for units in group.units):
        return None
    for way in group.ways:
        if all(own[name].shape[way[name]] % size == 0 for name in way if name in own):
            return way
    return None


def _parts(path, groups, size) -> dict[str, tuple[int | None, int]]:
    """The columns of a fused kernel that each device computes with: its heads."""
    # Keys and values that several devices' queries share are whole.
    keys = 1 if groups % size == 0 else None
    columns = {"query": 1, "key": keys, "value": keys}
    return {f"{path}/{part}": (axis, 2) for part, axis in columns.items()}


def _raise_undivided(failed, size, needed, model):
    layer, group, weight = failed[0]
    possible = [
        str(count)
        for count in range(2, size)
        if all(_way(each, own, count) is not None for each, own in needed)
    ]
    heads = f" for {group.units[0]} heads" if group.units else ""
    choose = ""
    if possible:
        choose = f"Choose a mesh whose axis has the size {' or '.join(possible)}, or k"
    paths = {each.path: None for each, *_ in failed}
    others = {found.layer.path or "" for found in find_groups(model)}
    names = _patterns(dict.fromkeys(paths, (None,)), others)
    rules = ", ".join(f"{name + '/.*'!r}: None" for name in names)
    raise ValueError(
        f"`{group.argument}` of {layer.path} must be a multiple of {size}, the size of "
        f"the mesh's axis that divides weights: {weight.path} has the shape "
        f"{tuple(weight.shape)}{heads}. {choose or 'K'}eep the weights that cannot be "
        f"divided whole on each device with rules={{{rules}}}. "
        f"Received: an axis of size {size}"
    )


def _patterns(axes: Mapping[str, Axes], paths: Iterable[str]) -> dict[str, Axes]:
    """Patterns for layouts by path: one for paths that differ only in numbers.

    Keras compares a path with all patterns, so few of them are faster than many.
    """
    alike: dict[str, list[str]] = {}
    for path in sorted(paths):
        alike.setdefault(re.sub(r"\d+", "0", path), []).append(path)
    patterns = {}
    for group in alike.values():
        given = {axes.get(path) for path in group}
        if len(given) == 1:
            pattern = re.sub(r"\d+", lambda _: r"\d+", re.escape(group[0]))
            patterns[pattern] = given.pop()
        else:
            patterns |= {re.escape(path): axes.get(path) for path in group}
    return {pattern: given for pattern, given in patterns.items() if given is not None}
