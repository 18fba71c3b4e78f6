"""Quantized weights (`model.quantize`) in an export."""

import contextlib
from collections.abc import Iterator

import keras

from keras_attn.export.formats import Format
from keras_attn.export.portable_layers import unique_layers
from keras_attn.layers.adaptation.quantization import as_variables
from keras_attn.layers.adaptation.quantized import QuantizedKernel


def about_integers(
    layers: list[keras.layers.Layer], format: Format, quantization: str | None
) -> list[str]:
    """The report's notes on quantized weights; `onnx_integers` adds details.

    Raises:
        ValueError: If ONNX would quantize activations of a model whose weights are
            floats.
    """
    modes = [layer.mode for layer in layers if isinstance(layer, QuantizedKernel)]
    if not modes:
        if quantization is None or format.name != "onnx":
            return []
        raise ValueError(
            "`quantization` is for quantized weights in ONNX, and this model has "
            'none; make them first, by `training.quantize(model, "int8")`. '
            f"Received: quantization={quantization!r}"
        )
    kinds = " and ".join(f"{modes.count(mode)} of {mode}" for mode in sorted({*modes}))
    if format.takes_integers:
        return [f"quantized weights, {kinds}: written as they are in Keras"]
    if format.name == "onnx":
        advice = '; `quantization="int8_dynamic"` also multiplies in integers'
        return [
            f"quantized weights, {kinds}: written as integers, see below"
            + (advice if quantization is None else "")
        ]
    if quantization is None:
        return [
            f"quantized weights, {kinds}: written as the float32 numbers that they "
            'stand for; `quantization="int8_dynamic"` stores 8 bits'
        ]
    return [
        f"quantized weights, {kinds}: their numbers are rounded again by "
        f"{quantization} quantization"
    ]


def has_integers(models: list[keras.Model]) -> bool:
    """Whether a layer of the models has quantized weights."""
    return any(isinstance(layer, QuantizedKernel) for layer in unique_layers(models))


@contextlib.contextmanager
def integers_for(format: Format, models: list) -> Iterator[dict[int, QuantizedKernel]]:
    """Within this block the models have weights that the format can write.

    Yields:
        See `TracedModel.integers`.
    """
    if format.takes_integers:
        yield {}
        return
    with as_variables(models) as pairs:
        yield {id(variable): kernel for variable, kernel in pairs}
