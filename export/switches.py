"""Verifies models with max unpooling, given the locations that the artefact chose.

The runtime determines which of two maxima that are equal up to rounding is chosen, and
so where unpooling puts a value: a single such choice may change many pixels by any
amount. Given the same choices, rounding has its usual effect. So an instrumented copy,
which also outputs these locations, is written in the same format.

1. This *probe* must return what the artefact returns, on the same inputs.
2. Each location that it chose must hold a maximum, up to the tolerance, in Keras.
3. Its outputs must equal Keras' outputs with these locations.
"""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from keras_attn.export.attempts import trace
from keras_attn.export.errors import ExportError
from keras_attn.export.plan import Plan
from keras_attn.export.runner import Runner, load_runner
from keras_attn.export.shapes import Specs
from keras_attn.export.signatures import Signature, TracedModel
from keras_attn.layers.convolution.switches import Switches, watched_switches
from keras_attn.ops.pooling import max_unpool

_OUTPUT = "switches_of_pooling_"
Outputs = dict[str, np.ndarray]


def about_choices(layers: Iterable[keras.layers.Layer]) -> list[str]:
    """The report's notes on layers with max unpooling."""
    if not _is_discontinuous(layers):
        return []
    return [
        "single values may differ: if two maxima are equal up to rounding, the "
        "artefact may choose a different one from Keras; for the comparison, Keras "
        "uses the artefact's choices"
    ]


def _is_discontinuous(layers: Iterable[keras.layers.Layer]) -> bool:
    """Whether rounding may change an output by any amount, as in max unpooling.

    Layers declare this with an attribute of the same name.
    """
    return any(getattr(layer, "is_discontinuous", False) for layer in layers)


class _WithSwitches(Signature):
    """A signature that also returns the indices of each max pooling."""

    def __call__(self, tensors: Mapping) -> dict:
        with watched_switches() as calls:
            outputs = super().__call__(tensors)
        indices = {f"{_OUTPUT}{n}": each.indices for n, each in enumerate(calls)}
        return {**outputs, **indices}


class Probe:
    """The instrumented copy of the artefact, whose choices are known.

    Args:
        load: Writes and loads it; called once, when it is needed.
        tolerance: How far below the maximum a chosen value may be, and how far the
            outputs of copy and artefact may be apart: absolute below 1, relative above.
    """

    def __init__(self, load: Callable[[], Runner], tolerance: float):
        self._load = functools.cache(load)
        self._tolerance = tolerance

    def reference(
        self, signature: Signature, inputs: Mapping[str, np.ndarray], found: Outputs
    ) -> Outputs:
        """Keras' outputs given the artefact's choices.

        Args:
            signature: The signature in Keras.
            inputs: Its inputs.
            found: What the artefact returned for them.

        Returns:
            Arrays by output name.

        Raises:
            ExportError: If the copy and the artefact return different values, or the
                artefact chose a location that does not hold a maximum.
        """
        probed = self._load()(inputs, signature.name)
        for name, value in found.items():
            near = np.isclose(
                value, probed[name], self._tolerance, self._tolerance, equal_nan=True
            )
            if not near.all():
                raise ExportError(
                    f"output `{name}` of `{signature.name}` differs by "
                    f"{np.abs(value - probed[name]).max():.3g} from the same model "
                    "exported with the locations of its max poolings, so these "
                    "locations cannot be verified"
                )
        count = sum(name.startswith(_OUTPUT) for name in probed)
        given = [tf.constant(probed[f"{_OUTPUT}{n}"]) for n in range(count)]
        with watched_switches(given) as calls:
            outputs = signature.reference(inputs)
        for call in calls:
            shortfall = _shortfall(call)
            if not shortfall <= self._tolerance:
                raise ExportError(
                    f"`{call.layer.name}` chooses a location whose value is "
                    f"{shortfall:.3g} below the maximum (relative above 1), which is "
                    f"more than `tolerance`={self._tolerance:g}"
                )
        return outputs


@contextlib.contextmanager
def probing(plan: Plan, specs: dict[str, Specs]) -> Iterator[Probe | None]:
    """A probe where one can help: in float32, for a model with max unpooling.

    Args:
        plan: What was exported.
        specs: The inputs of the artefact, by signature and name.

    Yields:
        The probe, whose file is removed at the end; or None.
    """
    if plan.quantization is not None or not _is_discontinuous(plan.layers):
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:

        def load() -> Runner:
            wider: list[Signature] = [
                _WithSwitches(**vars(signature)) for signature in plan.signatures
            ]
            functions = {each.name: trace(each, specs[each.name]) for each in wider}
            path = Path(folder, f"probe{plan.format.suffix}")
            plan.format.writer.write(TracedModel(wider, functions, specs), path)
            return load_runner(path)

        yield Probe(load, plan.tolerance)


def _shortfall(call: Switches) -> float:
    """The distance of the chosen values below the maxima, absolute below 1.

    Infinity if an index is not a location of its window.
    """
    size = call.inputs.shape[1:3]
    options = call.layer.pool_size, call.layer.padding
    is_chosen = max_unpool(tf.ones_like(call.maxima), call.indices, size, *options)
    if int(tf.math.count_nonzero(is_chosen)) != int(tf.size(call.maxima)):
        return float("inf")
    maxima = max_unpool(call.maxima, call.indices, size, *options)
    below = is_chosen * tf.abs(maxima - call.inputs)
    return float(tf.reduce_max(below / tf.maximum(tf.abs(maxima), 1.0)))
