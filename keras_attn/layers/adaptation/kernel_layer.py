"""Layers with one kernel, which may have LoRA weights or be quantized."""

import math
from collections.abc import Mapping
from typing import Any

import keras

from keras_attn.checks.arguments import check_positive
from keras_attn.layers.adaptation.kept import (
    KeptWeights,
    describe_kept,
    restore_kept,
)
from keras_attn.layers.adaptation.low_rank import (
    Columns,
    LowRankKernel,
    LowRankUpdate,
    get_base,
)
from keras_attn.layers.adaptation.quantized import QuantizedKernel
from keras_attn.layers.adaptation.tracking import (
    fix_layers_inside,
    named,
    set_untracked,
    unlocked,
)

# The entry of a build config.
_KEY = "kernels"
# How often what any kernel consists of has changed in this process.
_num_changes = 0


class RestoresAdapters(keras.layers.Layer):
    """A layer that is loaded with what adapters had of it, and of layers inside it."""

    def get_build_config(self):
        """The shapes of the inputs, and which weights are not plain variables."""
        config = super().get_build_config()
        kernels = _describe_kernels(self) if self.built else None
        return {**(config or {}), _KEY: kernels} if kernels else config

    def build_from_config(self, config):
        """Builds the layer, then its weights as they were."""
        super().build_from_config(config)
        fix_layers_inside(self)
        if config and _KEY in config:
            _restore_kernels(self, config[_KEY])


class KernelLayer(RestoresAdapters):
    """A layer with one kernel, which may have LoRA weights or be quantized.

    The kernel is one of three objects, and the functions of `ops.weight_products`
    compute with each: a variable, a `QuantizedKernel`, or a `LowRankKernel`, which
    holds one of the other two. A layer with several products consists of several such
    layers.

    Attributes:
        kernel_name: The attribute of the kernel.
        kernels_version: Grows whenever the kernel consists of something else than
            before; what was compiled with the layer is then out of date.
    """

    kernel_name = "kernel"
    kernels_version = 0

    @property
    def adapted_kernel(self) -> Any:
        """The kernel; None before the layer is built."""
        return getattr(self, self.kernel_name, None) if self.built else None

    @property
    def updates(self) -> Mapping[str, LowRankUpdate]:
        """The kernel's LoRA weights by name of their adapter."""
        return getattr(self.adapted_kernel, "updates", {})

    @property
    def base_kernel(self) -> Any:
        """The kernel without its LoRA weights."""
        return get_base(self.adapted_kernel)

    def kernel_parts(self) -> Mapping[str, Columns]:
        """Name to columns of each part of the kernel; the name of the only one is "".

        A part is a target of LoRA: the only one by the path of the layer, each of
        several by its name in place of the layer's.
        """
        return {"": (0, self.adapted_kernel.shape[-1])}

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer=None,
        b_initializer="zeros",
    ) -> None:
        """Gives the kernel LoRA weights, as `enable_lora` of Keras' layers does.

        Then the kernel is fixed, the LoRA weights and the bias train. For a whole model
        use `training.enable_lora`.

        Args:
            rank: r.
            lora_alpha: α of the scale α/r. Default: r.
            a_initializer: Initializer of A. Default: Kaiming's uniform numbers with
                a = √5.
            b_initializer: Initializer of B.

        Raises:
            ValueError: If the layer is not built or has LoRA weights already, or `rank`
                is not a positive integer or is above a side of the kernel.
        """
        check_positive("rank", rank)
        if not self.built:
            raise ValueError(f"Build the layer {self.name!r} before `enable_lora`.")
        self.check_update("default", rank)
        update = LowRankUpdate(
            rank,
            (rank if lora_alpha is None else lora_alpha) / rank,
            a_initializer=a_initializer,
            b_initializer=b_initializer,
            dtype=self.dtype_policy,
            name="default",
        )
        self.add_update(update)

    def check_update(self, name: str, rank: int | None = None) -> None:
        """Raises if the kernel can't have new LoRA weights.

        Args:
            name: Name of the adapter.
            rank: Its rank. None = any: one from a file may be above a side of the
                kernel.

        Raises:
            ValueError: If the kernel has LoRA weights of this name, or the rank is
                above a side of the kernel.
        """
        kernel = self.adapted_kernel
        where = f"{tuple(kernel.shape)} in {self.path or self.name!r}"
        # A convolution is a product with all inputs under its window.
        sides = math.prod(kernel.shape[:-1]), kernel.shape[-1]
        if rank is not None and check_positive("rank", rank) > min(sides):
            raise ValueError(
                "`rank` must be at most the smaller side of the kernel. Received: "
                f"rank={rank}, and a kernel of shape {where}"
            )
        if name in self.updates:
            raise ValueError(
                "`name` must be new: use another, or merge the adapters first. "
                f"Received: name={name!r}, which the kernel of shape {where} has "
                "already"
            )

    def add_update(self, update: LowRankUpdate) -> None:
        """Adds LoRA weights to the kernel, which is fixed from now on.

        Args:
            update: The LoRA weights.

        Raises:
            ValueError: If the kernel has LoRA weights of this name.
        """
        self.check_update(update.name)
        kernel = self.adapted_kernel
        if not isinstance(kernel, LowRankKernel):
            if isinstance(kernel, keras.Variable):
                kernel.trainable = False
            kernel = LowRankKernel(kernel, dtype=self.dtype_policy, name="low_rank")
            self._replace_kernel(kernel)
        with named(self, self.kernel_name.strip("_")):
            kernel.add(update)
        self._kernel_has_changed()

    def quantize_kernel(
        self, mode: str, block_size: int | None = None, *, with_value: bool = True
    ) -> bool:
        """Quantizes the kernel; its LoRA weights stay.

        Args:
            mode: "int8" or "int4".
            block_size: As for `QuantizedKernel`.
            with_value: Whether to quantize the kernel's numbers; if not, the integers
                are zeros, which a file replaces.

        Returns:
            Whether the kernel was a variable, and not quantized already.
        """
        kernel = self.base_kernel
        if isinstance(kernel, QuantizedKernel):
            return False
        with named(self, self.kernel_name.strip("_")):
            quantized = QuantizedKernel(
                kernel.shape,
                mode,
                block_size,
                dtype=self.dtype_policy,
                name="quantized",
            )
        if with_value:
            quantized.assign(keras.ops.convert_to_numpy(kernel))
        # Weights are saved by number, so a kernel that returns needs its place.
        order = self.__dict__.setdefault("_weights_before_integers", {})
        for weight in self._trainable_variables:
            order.setdefault(weight.name, len(order))
        set_untracked(quantized, "regularizer", kernel.regularizer)
        set_untracked(quantized, "constraint", kernel.constraint)
        self.use_integers(quantized)
        return True

    def dequantize_kernel(self, dtype: str | None = None) -> QuantizedKernel | None:
        """Replaces a quantized kernel by a variable with its values; LoRA weights stay.

        Args:
            dtype: Of the variable. None = as the layer's other weights.

        Returns:
            The quantized kernel; None if there was none.
        """
        quantized = self.base_kernel
        if not isinstance(quantized, QuantizedKernel):
            return None
        with unlocked(self):
            kernel = self.add_weight(
                name=self.kernel_name.strip("_"),
                shape=quantized.shape,
                initializer="zeros",
                dtype=dtype,
                regularizer=quantized.regularizer,
                constraint=quantized.constraint,
            )
        kernel.assign(quantized.value_as_tensor())
        order = self.__dict__["_weights_before_integers"]
        self._trainable_variables.sort(key=lambda weight: order[weight.name])
        if isinstance(self.adapted_kernel, LowRankKernel):
            kernel.trainable = False
        self._replace_base(kernel)
        return quantized

    def use_integers(self, quantized: QuantizedKernel) -> None:
        """Replaces the variable of the kernel by a quantized one; LoRA weights stay.

        Args:
            quantized: The quantized kernel.
        """
        self._untrack_variable(self.base_kernel)
        self._replace_base(quantized)

    def merge_kernel(self) -> None:
        """Replaces the kernel by one variable with its value."""
        kernel = self.adapted_kernel
        if isinstance(kernel, keras.Variable):
            return
        value = keras.ops.convert_to_numpy(kernel.value_as_tensor())
        self.dequantize_kernel()
        base = self.base_kernel
        base.assign(value)
        self._replace_kernel(base)
        base.trainable = True
        self._kernel_has_changed()

    def _replace_base(self, base):
        kernel = self.adapted_kernel
        if isinstance(kernel, LowRankKernel):
            kernel.replace_base(base)
        else:
            self._replace_kernel(base)
        self._kernel_has_changed()

    def _replace_kernel(self, kernel):
        """Sets the attribute, which Keras tracks, of a layer that is built."""
        before = getattr(self, self.kernel_name)
        with unlocked(self):
            if isinstance(before, keras.layers.Layer):
                self._tracker.untrack(before)
            self.__dict__.pop(self.kernel_name, None)
            setattr(self, self.kernel_name, kernel)
        # Always in the same order: files number the weights.
        self._layers.sort(key=lambda layer: isinstance(layer, KeptWeights))

    def _kernel_has_changed(self):
        global _num_changes
        _num_changes += 1
        self.__dict__["kernels_version"] = _num_changes


def kernel_layers(layer: keras.layers.Layer) -> list[KernelLayer]:
    """The layer or model itself and all layers inside it with a kernel, if built."""
    return [
        each
        for each in layer._flatten_layers()
        if isinstance(each, KernelLayer) and each.adapted_kernel is not None
    ]


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
    return max((each.kernels_version for each in kernel_layers(model)), default=0)


def copy_kernels(layer: keras.layers.Layer, other: keras.layers.Layer) -> None:
    """Gives a copied layer the same LoRA weights and quantization.

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


def _describe_kernels(layer) -> dict[str, Any] | None:
    """The description for `_restore_kernels`; None if all kernels are variables."""
    layers = {}
    for index, each in enumerate(kernel_layers(layer)):
        if not isinstance(each.adapted_kernel, keras.Variable):
            layers[str(index)] = _describe_kernel(each)
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


def _describe_kernel(layer):
    base, quantized = layer.base_kernel, None
    if isinstance(base, QuantizedKernel):
        quantized = {"mode": base.mode, "block_size": base.block_size}
    updates = {
        name: {
            "rank": list(update.ranks),
            "scale": list(update.scales),
            "columns": [list(columns) for columns in update.columns],
            "dropout": update.dropout,
            "seed": update.seed,
        }
        for name, update in layer.updates.items()
    }
    return {"quantized": quantized, "updates": updates}


def _restore_kernels(layer, description):
    layers = kernel_layers(layer)
    for index, kernel in description["layers"].items():
        each = layers[int(index)]
        if kernel["quantized"]:
            each.quantize_kernel(**kernel["quantized"], with_value=False)
        for name, options in kernel["updates"].items():
            if name in each.updates:  # By `lora_rank`, an argument of Keras' layers.
                each.updates[name].scales = tuple(options["scale"])
                continue
            columns = tuple(map(tuple, options["columns"]))
            update = LowRankUpdate(
                **{**options, "columns": columns}, dtype=each.dtype_policy, name=name
            )
            each.add_update(update)
    restore_kept(layer, description.get("kept", {}))
    inside = list(layer._flatten_layers())
    for index in description["not_trainable"]:
        inside[index].trainable = False
    fixed = set(description["fixed"])
    for index, variable in enumerate(layer.weights):
        # Weights of a layer that is not trainable may train: what an adapter keeps.
        variable.trainable = index not in fixed
