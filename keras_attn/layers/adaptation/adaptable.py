"""Layers whose kernels take low-rank updates and integers, and are saved with them."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras

from keras_attn.checks.arguments import check_positive
from keras_attn.layers.adaptation.kept import (
    KeptWeights,
    describe_kept,
    restore_kept,
)
from keras_attn.layers.adaptation.low_rank import Columns, LowRankKernel, LowRankUpdate
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.layers.adaptation.tracking import (
    fix_layers_inside,
    named,
    set_untracked,
    unlocked,
)

if TYPE_CHECKING:
    from keras_attn.layers.adaptation.quantization import Filters, QuantizationReport

# The entry of a build config.
_KEY = "kernels"
# How often what any kernel consists of has changed in this process.
_num_changes = 0


class RestoresAdapters(keras.layers.Layer):
    """A layer that is loaded with what adapters had of it, and of layers inside it."""

    def get_build_config(self):
        """The shapes of the inputs, and which weights are no plain variables."""
        config = super().get_build_config()
        kernels = _describe_kernels(self) if self.built else None
        return {**(config or {}), _KEY: kernels} if kernels else config

    def build_from_config(self, config):
        """Builds the layer, then its weights as they were."""
        super().build_from_config(config)
        fix_layers_inside(self)
        if config and _KEY in config:
            _restore_kernels(self, config[_KEY])


class RestoresKernels(RestoresAdapters):
    """A layer that is loaded with the kernels that it, and layers inside it, had."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Keras' wrapper of the method drops what it returns.
        self.__dict__.pop("quantize", None)

    def quantize(
        self,
        mode: str | None = None,
        config: keras.quantizers.QuantizationConfig | None = None,
        filters: "Filters" = None,
        *,
        block_size: int | None = None,
        type_check: bool = True,
    ) -> "QuantizationReport":
        """Replaces the kernels of this layer, and of layers inside it, by integers.

        Args:
            mode: As for `training.quantize`.
            config: As for `training.quantize`.
            filters: As for `training.quantize`.
            block_size: As for `training.quantize`.
            type_check: Without effect; Keras' models pass it.

        Returns:
            What was reached, what not, and the bytes of the weights.

        Raises:
            ValueError: As for `training.quantize`.
        """
        from keras_attn.layers.adaptation.quantization import quantize

        return quantize(self, mode, config, filters, block_size=block_size)


class Adaptable(RestoresKernels):
    """A layer with kernels that may have low-rank updates or be integers.

    It computes with its kernels by the functions of `ops.kernels`.

    Attributes:
        kernel_names: The attributes of the kernels; a layer need not have all of them.
        kernels_version: Grows whenever a kernel consists of something else than before;
            what was compiled with the layer is then out of date.
    """

    kernel_names: tuple[str, ...] = ("kernel",)
    kernels_version = 0

    def kernel_parts(self) -> Mapping[str, Mapping[str, Columns]]:
        """Attribute of each kernel to its parts: name to columns.

        A part is a target of LoRA by its path, `<path of the layer>/<name>`. The path
        of a part without a name is the layer's. Needs a layer that is built.
        """
        parts = {}
        for attribute in self.kernel_names:
            kernel = getattr(self, attribute, None)
            if kernel is not None:
                # Keras' layers have one kernel, in a private attribute.
                name = attribute.removesuffix("kernel").rstrip("_")
                name = "" if attribute.startswith("_") else name
                parts[attribute] = {name: (0, kernel.shape[-1])}
        return parts

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer=None,
        b_initializer="zeros",
    ) -> None:
        """Gives each kernel a low-rank update, as `enable_lora` of Keras' layers does.

        Then the kernels are fixed, the updates and the biases train. For a whole model
        use `training.enable_lora`.

        Args:
            rank: r.
            lora_alpha: α of the scale α/r. Default: r.
            a_initializer: Initializer of A. Default: Kaiming's uniform numbers with
                a = √5.
            b_initializer: Initializer of B.

        Raises:
            ValueError: If the layer is not built or has an update already, or `rank`
                is not a positive integer or is above a side of a kernel.
        """
        check_positive("rank", rank)
        if not self.built:
            raise ValueError(f"Build the layer {self.name!r} before `enable_lora`.")
        attributes = list(self.kernel_parts())
        for attribute in attributes:
            check_update(self, attribute, "default", rank)
        for attribute in attributes:
            update = LowRankUpdate(
                rank,
                (rank if lora_alpha is None else lora_alpha) / rank,
                a_initializer=a_initializer,
                b_initializer=b_initializer,
                dtype=self.dtype_policy,
                name="default",
            )
            add_update(self, attribute, update)


def adaptable_layers(layer: keras.layers.Layer) -> list[Adaptable]:
    """The layer or model itself and all layers inside it that are `Adaptable`."""
    return [each for each in layer._flatten_layers() if isinstance(each, Adaptable)]


def kernels_changed(model: keras.Model) -> None:
    """Makes a model forget what was compiled with the kernels that it had before.

    It must be compiled again before it is fitted: an optimizer keeps the variables that
    it was built for. Models of ours that share the layers see the change themselves
    (`models.parts.functional`).
    """
    model.compiled = False
    forget_functions(model)


def forget_functions(model: keras.Model) -> None:
    """Makes a model trace its functions again when they are next used."""
    model.train_function = model.test_function = model.predict_function = None


def kernels_version(model: keras.layers.Layer) -> int:
    """The largest `kernels_version` of the layers of a model."""
    return max((each.kernels_version for each in adaptable_layers(model)), default=0)


def copy_kernels(layer: keras.layers.Layer, other: keras.layers.Layer) -> None:
    """Makes the kernels of a new layer consist of what those of a layer do.

    Values are not copied.

    Args:
        layer: The layer.
        other: One with the same configuration, which is built and has plain kernels.
    """
    fix_layers_inside(other)
    description = _describe_kernels(layer)
    if description:
        _restore_kernels(other, description)


def last_change() -> int:
    """The largest `kernels_version` of any layer in this process."""
    return _num_changes


def _has_changed(layer):
    global _num_changes
    _num_changes += 1
    layer.__dict__["kernels_version"] = _num_changes


def check_update(
    layer: Adaptable, attribute: str, name: str, rank: int | None = None
) -> None:
    """Raises unless a kernel can have a new update.

    Args:
        layer: The layer, which is built.
        attribute: Name of the kernel's attribute.
        name: Name of the update.
        rank: Its rank. None = any: one from a file may be above a side of the kernel.

    Raises:
        ValueError: If the kernel has an update of this name, or the rank is above a
            side of the kernel.
    """
    kernel = getattr(layer, attribute)
    where = f"{tuple(kernel.shape)} in {layer.path or layer.name!r}"
    # A convolution is a product with all inputs under its window.
    sides = math.prod(kernel.shape[:-1]), kernel.shape[-1]
    if rank is not None and check_positive("rank", rank) > min(sides):
        raise ValueError(
            "`rank` must be at most the smaller side of the kernel. Received: "
            f"rank={rank}, and a kernel of shape {where}"
        )
    if isinstance(kernel, LowRankKernel) and name in kernel.updates:
        raise ValueError(
            "`name` must be new: use another, or merge the updates first. Received: "
            f"name={name!r}, which the kernel of shape {where} has already"
        )


def add_update(layer: Adaptable, attribute: str, update: LowRankUpdate) -> None:
    """Adds a low-rank update to a kernel, which is fixed from now on.

    Args:
        layer: The layer, which is built.
        attribute: Name of the kernel's attribute.
        update: The update.

    Raises:
        ValueError: If the kernel has an update of this name.
    """
    check_update(layer, attribute, update.name)
    kernel = getattr(layer, attribute)
    if not isinstance(kernel, LowRankKernel):
        if isinstance(kernel, keras.Variable):
            kernel.trainable = False
        low_rank = LowRankKernel(kernel, dtype=layer.dtype_policy, name="low_rank")
        _replace(layer, attribute, low_rank)
        kernel = low_rank
    with named(layer, attribute.strip("_")):
        kernel.add(update)
    _has_changed(layer)


def quantize_kernel(
    layer: Adaptable,
    attribute: str,
    mode: str,
    block_size: int | None = None,
    *,
    with_value: bool = True,
) -> bool:
    """Replaces a kernel by integers; its low-rank updates stay.

    Args:
        layer: The layer, which is built.
        attribute: Name of the kernel's attribute.
        mode: "int8" or "int4".
        block_size: As for `QuantizedKernel`.
        with_value: Whether to quantize the kernel's numbers; if not, the integers are
            zeros, which a file replaces.

    Returns:
        Whether the kernel was a variable, and not integers already.
    """
    _, _, kernel = _base_of(layer, attribute)
    if isinstance(kernel, QuantizedKernel):
        return False
    with named(layer, attribute.strip("_")):
        quantized = QuantizedKernel(
            kernel.shape, mode, block_size, dtype=layer.dtype_policy, name="quantized"
        )
    if with_value:
        quantized.assign(keras.ops.convert_to_numpy(kernel))
    # Weights are saved by number, so a kernel that returns needs its place.
    order = layer.__dict__.setdefault("_weights_before_integers", {})
    for weight in layer._trainable_variables:
        order.setdefault(weight.name, len(order))
    set_untracked(quantized, "regularizer", kernel.regularizer)
    set_untracked(quantized, "constraint", kernel.constraint)
    replace_base(layer, attribute, quantized)
    return True


def dequantize_kernel(
    layer: Adaptable, attribute: str, dtype: str | None = None
) -> QuantizedKernel | None:
    """Replaces integers by a variable with their numbers; low-rank updates stay.

    Args:
        layer: The layer.
        attribute: Name of the kernel's attribute.
        dtype: Of the variable. None = that of the layer's other weights.

    Returns:
        The integers; None if the kernel has none.
    """
    holder, name, quantized = _base_of(layer, attribute)
    if not isinstance(quantized, QuantizedKernel):
        return None
    with unlocked(layer):
        kernel = layer.add_weight(
            name=attribute.strip("_"),
            shape=quantized.shape,
            initializer="zeros",
            dtype=dtype,
            regularizer=quantized.regularizer,
            constraint=quantized.constraint,
        )
    kernel.assign(quantized.value_as_tensor())
    order = layer.__dict__["_weights_before_integers"]
    layer._trainable_variables.sort(key=lambda weight: order[weight.name])
    if holder is not layer:
        kernel.trainable = False
    _replace(holder, name, kernel)
    _has_changed(layer)
    return quantized


def replace_base(layer: Adaptable, attribute: str, quantized: QuantizedKernel) -> None:
    """Replaces the variable of a kernel by integers; low-rank updates stay."""
    holder, name, kernel = _base_of(layer, attribute)
    layer._untrack_variable(kernel)
    _replace(holder, name, quantized)
    _has_changed(layer)


def restore_kernel(layer: Adaptable, attribute: str) -> None:
    """Replaces whatever a kernel consists of by one variable, with its value.

    Args:
        layer: The layer.
        attribute: Name of the kernel's attribute.
    """
    kernel = getattr(layer, attribute)
    if isinstance(kernel, keras.Variable):
        return
    value = keras.ops.convert_to_numpy(kernel.value_as_tensor())
    dequantize_kernel(layer, attribute)
    _, _, base = _base_of(layer, attribute)
    base.assign(value)
    _replace(layer, attribute, base)
    base.trainable = True
    _has_changed(layer)


def _base_of(layer, attribute):
    """What holds the kernel without its updates, its attribute there, and it."""
    kernel = getattr(layer, attribute)
    if isinstance(kernel, LowRankKernel):
        return kernel, "base", kernel.base
    return layer, attribute, kernel


def _replace(holder, attribute, kernel):
    """Sets an attribute that Keras tracks, in a layer that is built."""
    before = getattr(holder, attribute)
    with unlocked(holder):
        if isinstance(before, keras.layers.Layer):
            holder._tracker.untrack(before)
        holder.__dict__.pop(attribute, None)
        if isinstance(holder, LowRankKernel) and isinstance(kernel, keras.Variable):
            set_untracked(holder, attribute, kernel)
        else:
            setattr(holder, attribute, kernel)
    # In one order, whatever was replaced first: files number the weights.
    if isinstance(holder, LowRankKernel):
        order = {id(holder.base): -1}
    else:
        kernels = [getattr(holder, each) for each in holder.kernel_parts()]
        order = {id(each): number for number, each in enumerate(kernels, 1)}
    last = len(order) + 1
    holder._layers.sort(
        key=lambda x: last if isinstance(x, KeptWeights) else order.get(id(x), 0)
    )


def _describe_kernels(layer) -> dict[str, Any] | None:
    """What `_restore_kernels` needs, for JSON; None if all kernels are variables."""
    layers = {}
    for index, each in enumerate(adaptable_layers(layer)):
        # In the order in which they were made, which that of the weights follows.
        names = {id(getattr(each, name)): name for name in each.kernel_parts()}
        kernels = {
            names[id(inside)]: _describe_kernel(inside)
            for inside in each._layers
            if id(inside) in names
        }
        if kernels:
            layers[str(index)] = kernels
    kept = describe_kept(layer)
    if not layers and not kept:
        return None
    return {
        "layers": layers,
        "kept": kept,
        # By number among all weights, and among all layers inside.
        "fixed": [i for i, x in enumerate(layer.weights) if not x.trainable],
        "not_trainable": [
            i for i, x in enumerate(layer._flatten_layers()) if not x.trainable
        ],
    }


def _describe_kernel(kernel):
    updates = {}
    if isinstance(kernel, LowRankKernel):
        for name, update in kernel.updates.items():
            updates[name] = {
                "rank": list(update.ranks),
                "scale": list(update.scales),
                "columns": [list(columns) for columns in update.columns],
                "dropout": update.dropout,
                "seed": update.seed,
            }
        kernel = kernel.base
    quantized = None
    if isinstance(kernel, QuantizedKernel):
        quantized = {"mode": kernel.mode, "block_size": kernel.block_size}
    return {"quantized": quantized, "updates": updates}


def _restore_kernels(layer, description):
    layers = adaptable_layers(layer)
    for index, kernels in description["layers"].items():
        each = layers[int(index)]
        for attribute, kernel in kernels.items():
            if kernel["quantized"]:
                quantize_kernel(
                    each, attribute, **kernel["quantized"], with_value=False
                )
            for name, options in kernel["updates"].items():
                made = getattr(getattr(each, attribute), "updates", {})
                if name in made:  # By `lora_rank`, an argument of Keras' layers.
                    made[name].scales = tuple(options["scale"])
                    continue
                columns = tuple(tuple(pair) for pair in options["columns"])
                update = LowRankUpdate(
                    **{**options, "columns": columns},
                    dtype=each.dtype_policy,
                    name=name,
                )
                add_update(each, attribute, update)
    restore_kept(layer, description.get("kept", {}))
    inside = list(layer._flatten_layers())
    for index in description["not_trainable"]:
        inside[index].trainable = False
    fixed = set(description["fixed"])
    for index, variable in enumerate(layer.weights):
        # Weights of a layer that is not trainable may train: what an adapter keeps.
        variable.trainable = index not in fixed
