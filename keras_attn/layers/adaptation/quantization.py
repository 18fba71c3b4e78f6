"""Quantized weights in whole models."""

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from keras_attn.checks.arguments import check_choice
from keras_attn.layers.adaptation.kept import is_kept
from keras_attn.layers.adaptation.kernel_layer import kernel_layers, kernels_changed
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.layers.adaptation.paths import (
    get_path,
    grouped,
    not_adaptable,
    report_lines,
)
from keras_attn.layers.adaptation.quantized import MODES, QuantizedKernel, count_bytes
from keras_attn.layers.adaptation.switching import as_tuple

Filters = str | Sequence[str] | Callable[[keras.layers.Layer], bool] | None

# Rows with one scale in int4, as in Keras.
_BLOCK_SIZE = 128


class QuantizationReport(NamedTuple):
    """The result of `quantize`.

    Attributes:
        mode: "int8" or "int4".
        block_size: Rows with one scale in int4; None = all rows of a column.
        quantized: Path of each kernel that is quantized now.
        passed_over: Path of each other kernel, or of a layer that has no kernel which
            may be quantized, and why.
        bytes_before: Bytes of all weights before.
        bytes_after: Bytes of all weights now.
    """

    mode: str
    block_size: int | None
    quantized: tuple[str, ...]
    passed_over: dict[str, str]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        share = self.bytes_after / max(1, self.bytes_before)
        kind = self.mode
        if self.block_size is not None:
            kind += f" in blocks of {self.block_size}"
        lines = [
            f"{self.bytes_after:,} bytes of weights, {share:.1%} of "
            f"{self.bytes_before:,}: {kind}: {grouped(self.quantized)}"
        ]
        return "\n".join(lines + report_lines(self.passed_over))


class Quantizable(keras.layers.Layer):
    """A layer whose `quantize` quantizes its kernels and those of layers inside it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Keras' wrapper of the method drops what it returns.
        self.__dict__.pop("quantize", None)

    def quantize(
        self,
        mode: str | None = None,
        config: keras.quantizers.QuantizationConfig | None = None,
        filters: Filters = None,
        *,
        block_size: int | None = None,
        type_check: bool = True,
    ) -> QuantizationReport:
        """Quantizes the kernels of this layer, and of layers inside it.

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
        return quantize(self, mode, config, filters, block_size=block_size)


def quantize(
    model: keras.layers.Layer,
    mode: str | None = None,
    config: keras.quantizers.QuantizationConfig | None = None,
    filters: Filters = None,
    *,
    block_size: int | None = None,
) -> QuantizationReport:
    """Quantizes the kernels of a model to integers of 8 or 4 bits with scales.

    `model.quantize` of the models of this library and `layer.quantize` of its layers
    call it; for a plain `keras.Model` with such layers inside call it yourself, since
    Keras' own `quantize` skips them. It reaches the kernels of attention, dense and
    convolutional layers and embeddings. Kernels are rounded to the nearest of 255
    (int8) or 15 (int4) multiples of a scale, symmetrical about zero; activations are
    not quantized. Biases, norms and what the report names stay as they are and may
    train; quantized weights don't. LoRA weights stay, and may be added afterwards
    (QLoRA).

    Files of a model keep integers and scales, and nothing is quantized again when it is
    loaded; `models.save_checkpoint` writes the numbers that they stand for.

    Args:
        model: The model or layer, which is built. It must be compiled afterwards.
        mode: "int8", with a scale for each column of a kernel, or "int4", with a scale
            for each block of rows of each column.
        config: `keras.quantizers.Int8QuantizationConfig` or `Int4QuantizationConfig`
            instead of `mode`, without quantizers of its own.
        filters: Which layers: a regular expression or several, of which one is found in
            the path or the name of a layer, or a function of the layer. None = all.
        block_size: Rows of a block in int4, an even number, such as 32 or 128. Default:
            as in `config`, or 128.

    Returns:
        The kernels that are quantized, those that are not and why, and the bytes of the
        weights before and now; `print` it.

    Raises:
        ValueError: If an argument is wrong or contradicts another, the model is not
            built, or it has no kernel to quantize.

    Example:
        ```python
        from keras_attn import models

        model = models.build_gpt(
            num_layers=2, hidden_dim=64, num_heads=4, vocabulary_size=1000
        )
        print(model.quantize("int4", block_size=32))
        ```

    Reference:
        Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", section 2
        (arXiv:2305.14314), for blocks with a scale each and LoRA weights of a quantized
        base; its 4-bit numbers are not integers.
    """
    mode, block_size = _resolved(mode, config, block_size)
    selects = _selector(filters)
    if not model.built:
        raise ValueError(f"Build {model.name!r} before `quantize`.")
    before = _bytes(model)
    # After `enable_lora`, only kernels that are fixed: rounding would end training.
    has_updates = any(isinstance(x, LowRankUpdate) for x in model._flatten_layers())
    quantized, passed_over = [], {}
    for layer in kernel_layers(model):
        path = get_path(layer)
        reason = None if selects(layer) else "`filters` leave it out"
        reason = reason or _obstacle(layer, mode, block_size, has_updates)
        if reason:
            passed_over[path] = reason
        else:
            layer.quantize_kernel(mode, block_size)
            quantized.append(path)
    passed_over |= not_adaptable(model)
    if not quantized:
        raise ValueError(
            f"{model.name!r} has no kernel to quantize. "
            + ("; ".join(report_lines(passed_over)) or "It has no kernel at all")
        )
    if isinstance(model, keras.Model):
        kernels_changed(model)
    return QuantizationReport(
        mode, block_size, tuple(quantized), passed_over, before, _bytes(model)
    )


def dequantize(model: keras.layers.Layer) -> tuple[str, ...]:
    """Replaces quantized weights by variables with their values.

    What rounding has lost does not return. LoRA weights stay; a kernel without them may
    train again.

    Args:
        model: The model or layer. Compile it before the next `fit`.

    Returns:
        Path of each kernel that was quantized.
    """
    paths = [
        get_path(layer)
        for layer in kernel_layers(model)
        if layer.dequantize_kernel() is not None
    ]
    if paths and isinstance(model, keras.Model):
        kernels_changed(model)
    return tuple(paths)


@contextlib.contextmanager
def as_variables(
    models: Iterable[keras.layers.Layer],
) -> Iterator[list[tuple[keras.Variable, QuantizedKernel]]]:
    """Within this block quantized weights are float32 variables with their values.

    Args:
        models: Models, which may share layers.

    Yields:
        Each of these variables, and its quantized kernel.
    """
    layers = {id(x): x for model in models for x in kernel_layers(model)}
    replaced = []
    try:
        for layer in layers.values():
            quantized = layer.dequantize_kernel("float32")
            if quantized is not None:
                replaced.append((layer, quantized))
        yield [(layer.base_kernel, quantized) for layer, quantized in replaced]
    finally:
        for layer, quantized in replaced:
            layer.use_integers(quantized)


def _resolved(mode: Any, config: Any, block_size) -> tuple[str, int | None]:
    """Mode and block size from the arguments of `quantize`."""
    if isinstance(config, str):
        # Keras takes a mode there, too.
        mode, config = config, None
    if config is not None:
        check_choice("config.mode", getattr(config, "mode", config), MODES)
        if mode not in (None, config.mode):
            raise ValueError(
                f"`mode` must be as in `config`. Received: mode={mode!r}, "
                f"config.mode={config.mode!r}"
            )
        if config.weight_quantizer is not None:
            raise ValueError(
                "`config` must have no `weight_quantizer`: kernels are rounded by "
                f"their largest absolute values. Received: {config.weight_quantizer}"
            )
        mode = config.mode
    check_choice("mode", mode, MODES)
    if mode == "int4" and block_size is None:
        block_size = getattr(config, "block_size", _BLOCK_SIZE)
        block_size = None if block_size == -1 else block_size
    # Checks the block size.
    QuantizedKernel((2, 1), mode, block_size)
    return mode, block_size


def _selector(filters) -> Callable[[keras.layers.Layer], Any]:
    if callable(filters):
        return filters
    patterns = as_tuple("" if filters is None else filters)
    try:
        compiled = [re.compile(pattern) for pattern in patterns]
    except (re.error, TypeError) as error:
        raise ValueError(
            "`filters` must be regular expressions or a function. Received: "
            f"filters={filters!r} ({error})"
        ) from None
    return lambda layer: any(
        pattern.search(name)
        for pattern in compiled
        for name in (get_path(layer), layer.name)
    )


def _obstacle(layer, mode, block_size, has_updates) -> str | None:
    """Why a kernel can't be quantized."""
    kernel = layer.base_kernel
    if isinstance(kernel, QuantizedKernel):
        return f"it is {kernel.mode} already"
    if count_bytes(kernel.shape, mode, block_size) >= _size(kernel):
        return f"{mode} would take no fewer bytes"
    if has_updates and kernel.trainable:
        return "it trains beside the LoRA weights"
    if is_kept(layer, kernel):
        return "an adapter has it as a whole"
    return None


def _bytes(model) -> int:
    return sum(_size(weight) for weight in model.weights)


def _size(variable) -> int:
    kind = keras.backend.standardize_dtype(variable.dtype)
    bits = re.search(r"\d+", kind)
    return math.prod(variable.shape) * (int(bits.group()) // 8 if bits else 1)
