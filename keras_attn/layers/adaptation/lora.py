"""LoRA on whole models: chosen kernels get LoRA weights, everything else is fixed.

From the call of `enable_lora` to the product:

1. `find_parts` finds the kernels W, (D, E), that `targets` name: the attribute `kernel`
   of the layers that are a `KernelLayer` (`Projection`, `Dense`, `Conv2D`, `Embedding`,
   …), or the columns of one part of it, such as "query" of "query_key_value".
2. `add_updates` makes A, (D, r), random, and B, (r, columns of the part), zeros.
   `KernelLayer.add_update` fixes W and sets `layer.kernel` to a `LowRankKernel` that
   holds W, A and B of each part.
3. `train_only_updates` fixes all weights but A, B and `also_train`.
4. A call of the layer is as before: `ops.weight_products.project(x, kernel, bias)` is
   `product(x, kernel) + bias`. `product` is `ops.matmul` for a variable, and here
   `LowRankKernel.product(x)`: y = x W, then y[columns of a part] += s (drop(x) A) B for
   each of its parts (`low_rank.py`).

The rest of this folder restores, switches, merges and saves LoRA weights, and quantizes
kernels.
"""

import math
import re
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import keras

from keras_attn.checks.arguments import check_fraction, check_positive
from keras_attn.checks.indices import known_values
from keras_attn.layers.adaptation.kept import (
    forget_kept,
    keep,
    kept_in,
    own_weights,
)
from keras_attn.layers.adaptation.kernel_layer import (
    KernelLayer,
    kernel_layers,
    kernels_changed,
)
from keras_attn.layers.adaptation.low_rank import Columns, LowRankUpdate
from keras_attn.layers.adaptation.paths import (
    check_adapter_name,
    get_path,
    grouped,
    not_adaptable,
    report_lines,
)
from keras_attn.layers.adaptation.quantization import dequantize
from keras_attn.layers.adaptation.switching import as_tuple, switch, updates_in


class LoRAReport(NamedTuple):
    """The result of `enable_lora`.

    Attributes:
        adapted: Path of each part that has LoRA weights now.
        also_trained: Path of each layer that trains as a whole.
        passed_over: Path of each layer with a kernel that can't have LoRA weights, and
            why.
        num_trained: Number of trainable parameters.
        num_fixed: Number of all other parameters.
    """

    adapted: tuple[str, ...]
    also_trained: tuple[str, ...]
    passed_over: dict[str, str]
    num_trained: int
    num_fixed: int

    def __str__(self) -> str:
        total = self.num_trained + self.num_fixed
        share = f"{100 * self.num_trained / max(1, total):.1f} %"
        lines = [
            f"trainable parameters: {self.num_trained:,} of {total:,} ({share})",
            f"LoRA weights: {grouped(self.adapted)}",
        ]
        if self.also_trained:
            lines.append(f"trained as a whole: {grouped(self.also_trained)}")
        return "\n".join(lines + report_lines(self.passed_over))


class KernelPart(NamedTuple):
    """Columns of a kernel, or all of them.

    Attributes:
        path: Path that targets are compared with.
        layer: The layer with the kernel.
        columns: First column, and the one after the last.
        is_whole: Whether this is a kernel of which other entries are parts.
    """

    path: str
    layer: KernelLayer
    columns: Columns
    is_whole: bool = False

    @property
    def largest_rank(self) -> int:
        """The smaller side of the kernel of the part."""
        start, stop = self.columns
        return min(math.prod(self.layer.adapted_kernel.shape[:-1]), stop - start)


def enable_lora(
    model: keras.Model,
    rank: int = 8,
    *,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: str | Sequence[str] = ("query", "value"),
    also_train: str | Sequence[str] = (),
    rslora: bool = False,
    name: str = "default",
    seed: int | None = None,
) -> LoRAReport:
    """Gives kernels of a model LoRA weights; only these train from now on.

    A kernel W becomes `W + s A B`, with A of `rank` columns and B, which starts at
    zero, of `rank` rows. `x W + s (x A) B` is computed without the sum, so that no
    gradient of W is needed. Then compile the model, and `fit`. The LoRA weights are
    saved with the model apart from W, in a `.keras` file and in the files of weights.

    A second call with another `name` adds a second adapter, on the same or on other
    kernels. Then that one trains; `set_adapters` switches.

    Args:
        model: The model, which is built. It must be compiled afterwards.
        rank: r, at most the smaller side of each kernel.
        alpha: α of the scale s = α/r. Default: r, as in Keras.
        dropout: Probability in [0, 1) of dropping an input of A in training.
        targets: Which kernels: names or ends of paths, such as "query", "value",
            "output", "feed_forward/expand" or "block_0/attention/query", and regular
            expressions for a whole path; "query_key_value" is one pair A, B for all
            three parts, as in PEFT's for GPT-2. "all" is every part of every kernel.
        also_train: Names of layers that train as a whole, such as "classifier", a head
            that is new; `set_adapters` and `adapters_off` bring the base's back (of
            Keras' own layers, not after a file was loaded). Their quantized weights
            become floats again. The scale of a norm, or a kernel, that is 0 everywhere
            trains, too, as the last norm of a new ResNet's blocks: fixed, it would stop
            all gradients.
        rslora: Whether s is α/√r.
        name: Name of the adapter.
        seed: Seed of A and of the dropout. None = from `keras.utils.set_random_seed`.

    Returns:
        The kernels with LoRA weights, those without, and the number of trainable
        parameters; `print` it.

    Raises:
        ValueError: If an argument is out of range, a target matches nothing or a layer
            that can't have LoRA weights, or a kernel has an adapter of this name
            already.

    Example:
        ```python
        import keras
        from keras_attn import models, training

        classifier = models.build_vit(
            num_layers=2, hidden_dim=64, num_heads=4, mlp_dim=128, num_classes=10
        )
        print(training.enable_lora(classifier, rank=8, also_train="classifier"))
        classifier.compile("adamw", keras.losses.SparseCategoricalCrossentropy(True))
        ```

    Reference:
        Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models"
        (arXiv:2106.09685); `rslora`: Kalajdzievski 2023 (arXiv:2312.03732).
    """
    check_positive("rank", rank)
    check_fraction("dropout", dropout)
    check_adapter_name(name)
    alpha = rank if alpha is None else alpha
    if not alpha > 0:
        raise ValueError(f"`alpha` must be above 0. Received: alpha={alpha}")
    whole = _layers_named(model, also_train)
    inside = {each for layer in whole for each in layer._flatten_layers()}
    passed_over = without_updates(model)
    found = find_parts(model, targets, passed_over)
    found = [part for part in found if part.layer not in inside]
    if targets == "all":
        for part in [each for each in found if each.largest_rank < rank]:
            passed_over[part.path] = f"a side of its kernel is less than rank {rank}"
            found.remove(part)
    if not found:
        raise ValueError(
            "The model has no kernel that can have LoRA weights of this rank. "
            f"Received: rank={rank}, and a model with {grouped(passed_over)}"
        )
    for part in found:
        part.layer.check_update(name, rank)
    add_updates(
        found,
        name,
        rank=rank,
        scale=alpha / (math.sqrt(rank) if rslora else rank),
        dropout=dropout,
        seed=seed,
    )
    for layer in whole:
        dequantize(layer)
        # Anew, or its weights would stay fixed, which an earlier call may have fixed.
        layer.trainable = False
        layer.trainable = True
    kept = [(x, own_weights(x)) for layer in whole for x in layer._flatten_layers()]
    switch(model, ())
    stuck = _zero_factors(model, inside)
    report = train_only_updates(model, name, kept + stuck)
    return report._replace(
        # In the order of the targets.
        adapted=tuple(part.path for part in found),
        also_trained=tuple(map(get_path, whole))
        + tuple(f"{get_path(layer)}/{x.name}" for layer, own in stuck for x in own),
        passed_over=passed_over if targets == "all" else {},
    )


def _layers_named(model, names):
    """The layers of a model, or of a model that is one of its layers, by name."""
    layers = {}
    for each in model._flatten_layers():
        if isinstance(each, keras.Model):
            layers.update({layer.name: layer for layer in each.layers})
    for name in as_tuple(names):
        if name not in layers:
            raise ValueError(
                "`also_train` must be names of layers of the model: "
                f"{', '.join(layers)}. Received: {name!r}"
            )
    return [layers[name] for name in as_tuple(names)]


def without_updates(model: keras.Model) -> dict[str, str]:
    """Path of each layer with a kernel that can't have LoRA weights, and why."""
    reasons = not_adaptable(model)
    for layer in kernel_layers(model):
        if getattr(layer, "groups", 1) > 1:
            reason = "groups of channels have kernels of their own"
        elif getattr(layer, "data_format", None) == "channels_first":
            reason = "LoRA weights need channels in the last axis"
        else:
            continue
        reasons[get_path(layer)] = reason
    return reasons


def find_parts(
    model: keras.Model, targets: str | Sequence[str], passed_over: dict[str, str]
) -> list[KernelPart]:
    """The parts of kernels that targets name.

    Args:
        model: The model.
        targets: As for `enable_lora`.
        passed_over: From `without_updates`.

    Raises:
        ValueError: If a target names nothing, or a layer that can't have LoRA weights.
    """
    parts = [part for part in kernel_parts(model) if part.path not in passed_over]
    if targets == "all":
        return [part for part in parts if not part.is_whole]
    found = {}
    for target in as_tuple(targets):
        matches = [part for part in parts if _matches(target, part.path)]
        if not matches:
            for path, reason in passed_over.items():
                if _matches(target, path):
                    raise ValueError(
                        f"`targets` must not name {path!r}: {reason}. Received: "
                        f"targets={targets!r}"
                    )
            names = sorted({part.path.rsplit("/", 1)[-1] for part in parts})
            raise ValueError(
                "Each of `targets` must be the name or the end of the path of a kernel "
                f"or of a part of one; this model has {', '.join(names)}. Received: "
                f"targets={targets!r}, and {target!r} matches none"
            )
        found.update({part.path: part for part in matches})
    return list(found.values())


def _matches(target: str, path: str) -> bool:
    if path == target or path.endswith(f"/{target}"):
        return True
    try:
        return re.fullmatch(target, path) is not None
    except re.error as error:
        raise ValueError(
            "`targets` must be names, ends of paths or regular expressions. Received: "
            f"{target!r} ({error})"
        ) from None


def kernel_parts(model: keras.Model) -> list[KernelPart]:
    """Every part of every kernel, and each kernel that consists of several parts."""
    found = []
    for layer in kernel_layers(model):
        parts = layer.kernel_parts()
        if len(parts) == 1:
            found += [KernelPart(layer.path, layer, x) for x in parts.values()]
            continue
        width = layer.adapted_kernel.shape[-1]
        found.append(KernelPart(layer.path, layer, (0, width), is_whole=True))
        for name, columns in parts.items():
            path = "/".join([*layer.path.split("/")[:-1], name])
            found.append(KernelPart(path, layer, columns))
    return found


def add_updates(
    parts: Sequence[KernelPart], name: str, *, seed: int | None = None, **options
) -> None:
    """Gives each kernel LoRA weights, with an A and a B for each of the parts.

    Args:
        parts: The parts.
        name: Name of the adapter.
        seed: Each kernel gets a seed of its own, from this one and its path.
        **options: `rank`, `scale` and `dropout`, as for `LowRankUpdate`.
    """
    columns: dict[KernelLayer, list[Columns]] = {}
    for part in parts:
        columns.setdefault(part.layer, []).append(part.columns)
    for layer, parts_of_kernel in columns.items():
        own = None if seed is None else (seed + zlib.crc32(layer.path.encode())) % 2**31
        update = LowRankUpdate(
            columns=tuple(parts_of_kernel),
            seed=own,
            dtype=layer.dtype_policy,
            name=name,
            **options,
        )
        # Fixes W; `layer.kernel` is a `LowRankKernel` of W and its updates from now on.
        layer.add_update(update)


def _zero_factors(model, inside):
    """Layers, and their norms' scales and kernels that are 0 and have no LoRA weights.

    Fixed, they would let no gradient through to the LoRA weights before them.

    Args:
        model: The model, with its LoRA weights, which are off.
        inside: Layers that train anyway.
    """
    updated = {id(x.base_kernel) for x in kernel_layers(model) if x.updates}
    found = []
    for layer in model._flatten_layers():
        own = [
            x
            for x in own_weights(layer)
            if (x.name == "gamma" or x.name.endswith("kernel"))
            and id(x) not in updated
            and _is_zero(x)
        ]
        if own and layer not in inside:
            found.append((layer, own))
    return found


def _is_zero(variable):
    """Whether all numbers are 0; False in a plan, where weights have no values."""
    value = keras.ops.convert_to_tensor(variable)
    # Few have a first number of 0; the others are read no further.
    for part in (keras.ops.reshape(value, (-1,))[:1], value):
        found = known_values(keras.ops.any(part))
        if found is None or found:
            return False
    return True


def train_only_updates(
    model: keras.Model,
    name: str,
    whole: Sequence[tuple[keras.layers.Layer, Sequence[keras.Variable]]],
) -> LoRAReport:
    """Fixes everything but what an adapter has, which is switched on.

    Args:
        model: The model.
        name: Name of the adapter, whose LoRA weights the model has.
        whole: Layers, and weights of their own that the adapter has as a whole.

    Returns:
        As from `enable_lora`, without `passed_over`.
    """
    # From the values of the base, whichever adapter is on.
    switch(model, ())
    for layer, weights in whole:
        if weights:
            keep(layer, name, weights)
    _fix_all_but_updates(model)
    switch(model, (name,))
    kernels_changed(model)
    updated = [x for x in kernel_parts(model) if name in x.layer.updates]
    trained = sum(math.prod(x.shape) for x in model.trainable_variables)
    copies = sum(kept.weights.count_params() for kept in kept_in(model))
    return LoRAReport(
        tuple(x.path for x in updated if x.columns in x.layer.updates[name].columns),
        tuple(get_path(layer) for layer, weights in whole if weights),
        {},
        trained,
        model.count_params() - copies - trained,
    )


def _fix_all_but_updates(model):
    """Fixes all but LoRA weights and the whole layers of adapters that are on."""
    for layer in model.layers:
        updates = updates_in(layer)
        if isinstance(layer, keras.Model):
            _fix_all_but_updates(layer)
        elif updates or kept_in(layer):
            mine = {id(weight) for update in updates for weight in update.weights}
            for each in layer._flatten_layers():
                # Its moving statistics would change in training.
                if isinstance(each, keras.layers.BatchNormalization):
                    each.trainable = False
            for weight in layer.weights:
                if id(weight) not in mine:
                    weight.trainable = False
        else:
            layer.trainable = False


def merge_lora(model: keras.Model) -> None:
    """Adds the LoRA weights that are on to their kernels, and removes all.

    Layers that train as a whole keep the values that are in use. The model then is as
    before `enable_lora`: same layers, files and speed, and all of it trains. Quantized
    kernels with LoRA weights become float kernels.

    Args:
        model: A model after `enable_lora`. Compile it before the next `fit`.
    """
    forget_kept(model)
    for layer in kernel_layers(model):
        if layer.updates:
            layer.merge_kernel()
    for layer in model._flatten_layers():
        # Keras ignores a value that the layer has already, even if layers inside
        # differ.
        layer.trainable = False
        layer.trainable = True
    kernels_changed(model)
