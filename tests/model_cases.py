"""Every model of the registry and every head at a tiny size, built once per session.

What each model is tested with stands in `families/<family>.py`, all of which are read;
the sizes, in `model_family.py`.
"""

import functools
import hashlib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from families.rnnsearch import SCORES
from keras import ops
from model_family import (
    HEADS,
    MLP,
    POSITIONS,
    SOURCE_V,
    A,
    B,
    C,
    D,
    E,
    Graph,
    M,
    S,
    T,
    U,
    V,
)

from keras_attn import models
from keras_attn.checks.indices import index_ranges
from keras_attn.layers import HardAttentionRNN
from keras_attn.models import ModelCard
from keras_attn.models.catalog import registry
from keras_attn.models.parts.detection.detector import Detector
from keras_attn.models.parts.dual_encoder import DualEncoder
from keras_attn.models.parts.own_loss import OwnLossModel

# Tests take the sizes from here.
__all__ = ["HEADS", "MLP", "POSITIONS", "SCORES", "SOURCE_V"]
__all__ += ["A", "B", "C", "D", "E", "M", "S", "T", "U", "V"]

TARGETS = [[0, 2], [1, 2]]  # Masked positions: real tokens in every row.
_FAMILIES = [
    importlib.import_module(f"families.{path.stem}")
    for path in sorted((Path(__file__).parent / "families").glob("*.py"))
]
# By the name of the model that is built.
GRAPHS: dict[str, Graph] = {
    graph.name: graph for family in _FAMILIES for graph in family.GRAPHS
}
# The model in `GRAPHS` for every name, whose graphs are equal at a tiny size.
GRAPH_OF = {name: graph.name for graph in GRAPHS.values() for name in graph.parameters}
# The first graph of each family.
ONE_OF_EACH = {
    models.describe(graph).family: graph for graph in [*GRAPHS][::-1]
}.values()
TINY = {name: GRAPHS[graph].tiny for name, graph in GRAPH_OF.items()}


@dataclass(frozen=True)
class Case:
    """A model under test.

    Attributes:
        name: Registry name of the model, or of the encoder under the head.
        options: Arguments of the model's builder besides the tiny sizes.
        head: Builder of the head; None for the model itself.
        head_options: Arguments of `head`.
    """

    name: str
    options: dict = field(default_factory=dict)
    head: Callable[..., Any] | None = None
    head_options: dict = field(default_factory=dict)

    @property
    def card(self) -> ModelCard:
        """The card of the model, or of the encoder under the head."""
        return models.describe(self.name)

    @property
    def has_pair(self) -> bool:
        """Whether the model decodes, by the class that its builder returns."""
        builder = registry.entry(self.name).builder
        returned = inspect.signature(builder).return_annotation
        if isinstance(returned, str):
            returned = vars(sys.modules[builder.__module__])[returned]
        return self.head is None and hasattr(returned, "incremental")


def _cases_of(graph):
    """The cases of a graph: itself, variations by builder options, and the heads."""
    yield graph.name, Case(graph.name)
    # On JAX, where a case takes seconds, each model and head without variations.
    options = {} if keras.config.backend() == "jax" else graph.options
    for option, arguments in options.items():
        yield f"{graph.name}-{option}", Case(graph.name, arguments)
    for head, arguments in graph.heads.items():
        build_head = getattr(models, f"build_{head.partition('-')[0]}")
        yield head, Case(graph.name, head=build_head, head_options=arguments)


# Everything under test.
CASES = dict(case for graph in GRAPHS.values() for case in _cases_of(graph))
SEQ2SEQ = [case for case, made in CASES.items() if made.card.family == "seq2seq"]
# Cases by the kind of their inputs.
TEXT = [case for case, made in CASES.items() if "padding_mask" in made.card.inputs]
IMAGES = [case for case in CASES if case not in TEXT]
# Models of pixels and of boxes, and all other models of images.
_DENSE = ("semantic segmentation", "object detection")
DENSE = [case for case in IMAGES if CASES[case].card.task in _DENSE]
WHOLE_IMAGES = [case for case in IMAGES if case not in DENSE]
# Models that continue a prompt.
DECODERS = [case for case, made in CASES.items() if made.has_pair]
# A text encoder, an encoder with a decoder, images, their boxes, and pairs of both.
KINDS_OF_MODELS = (
    "bert_base",
    "rnnsearch_50",
    "swin_tiny",
    "faster_rcnn_resnet50",
    "clip_vit_base_patch32",
)
# One of each kind of recurrent decoder.
KINDS = ("seq2seq_sutskever", "seq2seq_context", "rnnsearch_50")


def first_of_families(graphs):
    """Graphs as parameters of tests: the others only in `make test-variations`."""
    return [
        graph
        if graph in ONE_OF_EACH
        else pytest.param(graph, marks=pytest.mark.variation)
        for graph in graphs
    ]


def build(case, name=None, **overrides):
    """A new model of a case, initialized as usual."""
    made = CASES[case]
    named = {} if name is None else {"name": name}
    sizes = {**TINY[made.name], **made.options, **overrides}
    if made.head is None:
        return models.create(made.name, **sizes, **named)
    encoder = models.create(made.name, **sizes)
    return made.head(encoder, **made.head_options, **named)


def create(case, **overrides):
    """A new model of a case with larger random weights.

    Initial biases are zero and Glorot kernels are small; in tests of numbers both must
    have an effect.
    """
    return randomize(build(case, **overrides))


@functools.cache
def _built(case):
    """The model of a case, and its initial weights at seed 1."""
    # Not in the precision of the test that happens to need it first.
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        model, weights = seeded(case, 1)
    finally:
        keras.config.set_dtype_policy(policy)
    return randomize(model), weights


def seeded(case, seed, **options):
    """A new model of a case built with a seed, and its initial weights by path."""
    keras.utils.set_random_seed(seed)
    model = build(case, **options)
    return model, {weight.path: numpy(weight) for weight in model.weights}


def tiny(case):
    """The model of a case, built once: tests must not train or change it."""
    return _built(case)[0]


def initial_weights(case):
    """The initial weights of `tiny(case)` at seed 1, by path."""
    return _built(case)[1]


def digest(weights):
    """A checksum of arrays by name."""
    checksum = hashlib.sha256()
    for name, values in weights.items():
        checksum.update(name.encode() + values.tobytes())
    return checksum.hexdigest()


# Otherwise boxes would be outside of the image, and probabilities 0 or 1.
_SMALL_LAYERS = ("region_proposal", "box_deltas", "class_logits")
_SMALL_LAYERS += ("attention_embedding", "evidence_embedding")


def randomize(model, seed=0, scale=0.6):
    """Resamples every weight of a model from N(0, scale²); variances are positive.

    Kernels of convolutions, and of maps that are flattened, are smaller: their sums are
    long, and softmax would be one-hot.
    """
    rng = np.random.default_rng(seed)
    weights = []
    for weight in model.weights:
        value = rng.normal(0, scale, weight.shape)
        if np.prod(weight.shape[:-1]) > 300 or len(weight.shape) == 4:
            value *= 2 / np.sqrt(np.prod(weight.shape[:-1]))
        if any(layer in weight.path for layer in _SMALL_LAYERS):
            value *= 0.1
        if weight.name == "moving_variance":
            value = np.abs(value) + 0.1
        weights.append(value.astype("float32"))
    model.set_weights(weights)
    return model


def varied(case, **overrides):
    """A decoder that does not repeat one token, and depends on positions."""
    model = randomize(create(case, **overrides), seed=1, scale=0.1)
    for weight in model.weights:
        if weight.path.endswith("gamma"):
            weight.assign(1.0 + 3 * weight.value)
        elif "position_embedding" in weight.path:
            weight.assign(3 * weight.value)
    return model


def layer_names(model):
    """The names of a model's layers, without those of its inputs."""
    return {
        layer.name
        for layer in model.layers
        if not isinstance(layer, keras.layers.InputLayer)
    }


def dropout_rates(model):
    """The rate of every layer of Keras' `Dropout`, by its name."""
    return {
        layer.name: layer.rate
        for layer in model.layers
        if isinstance(layer, keras.layers.Dropout)
    }


def make_inputs(batch=B, source=S, target=T, seed=1, padded=True):
    """Inputs of an encoder-decoder; all rows but the first end in padding."""
    rng = np.random.default_rng(seed)
    lengths = np.full(batch, source)
    if padded:
        lengths[1:] = source - 2
    mask = np.arange(source) < lengths[:, None]
    token_ids = rng.integers(1, V, (batch, source)).astype("int32")
    return {
        "token_ids": np.where(mask, token_ids, 0).astype("int32"),
        "padding_mask": mask,
        "decoder_token_ids": rng.integers(1, V, (batch, target)).astype("int32"),
    }


def image_shape(shape):
    """The shape with odd sizes in place of None, which patches do not divide."""
    if len(shape) == 4:  # Frames.
        return [T, *shape[1:]]
    return [size or (19, 27)[axis] for axis, size in enumerate(shape)]


# Besides those that are called `decoder_`: inputs with one entry for each target token.
_PER_STEP = ("world_state",)


def inputs_for(model, batch=B, length=S, target=T, seed=1, padded=True) -> dict:
    """Inputs of any model, by name; all rows but the first end in padding.

    Shapes and types are those of the model's inputs, and indices lie in the ranges of
    its tables. Floats are normally distributed.
    """
    rng = np.random.default_rng(seed)
    sizes = {tensor.name: tensor.shape[1:] for tensor in model.inputs}
    known = {}
    if sizes.keys() & {"token_ids", "padding_mask", "decoder_token_ids"}:
        known = _text_inputs(rng, batch, length, target, seed, padded)
        known |= {
            name: np.pad(known[name], [(0, 0), (0, size[0] - length)])
            for name, size in sizes.items()
            # A text of fixed length.
            if name in ("token_ids", "padding_mask") and size[:1] != (None,)
        }
    if "widths" in sizes:  # Columns before the padding.
        columns = image_shape(sizes["images"])[1]
        widths = [columns, *(batch - 1) * [columns // 2]]
        known["widths"] = np.array(widths, "int32")
    ranges = index_ranges(model)
    inputs = {}
    for tensor in model.inputs:
        name = tensor.name
        low, high = ranges.get(name, (0, None))
        if name.startswith("memory_"):
            inputs[name] = known["memory"]
        elif name not in known:
            steps = name.startswith("decoder_") or name in _PER_STEP
            shape = (batch, *_shape(sizes[name], target if steps else length))
            inputs[name] = _drawn(rng, tensor.dtype, shape, low, high or V)
            if name == "region_boxes":
                corners = rng.uniform(0, 0.5, (*shape[:2], 2))
                sides = rng.uniform(0.1, 0.5, corners.shape)
                boxes = np.concatenate([corners, corners + sides], -1)
                inputs[name] = boxes.astype("float32")
            if hasattr(model, "pixel_range"):
                least, most = model.pixel_range
                inputs[name] = rng.uniform(least, most, shape).astype("float32")
        elif high is not None and known[name].max() >= high:
            # A smaller vocabulary than that of most models.
            inputs[name] = known[name] % high
        else:
            inputs[name] = known[name]
    return inputs


def _shape(sizes, length):
    """Sizes after the batch, without unknown ones: a length, or pixels."""
    if len(sizes) > 2:
        return image_shape(sizes)
    return [size or length for size in sizes]


def _drawn(rng, dtype, shape, low, high):
    if dtype == "bool":
        return np.ones(shape, bool)
    if dtype == "int32":
        return rng.integers(low, high, shape).astype("int32")
    return rng.normal(size=shape).astype(dtype)


def _text_inputs(rng, batch, length, target, seed, padded):
    """What models of text take, by name."""
    positions = np.tile(np.arange(length, dtype="int32"), (batch, 1))
    targets = np.resize(np.array(TARGETS, "int32"), (batch, 2))
    order = (2 * positions + 3) % length  # An order of prediction: 3 0 2 4 1.
    inputs = make_inputs(batch, length, target, seed, padded)
    return {
        **inputs,
        "region_padding_mask": inputs["padding_mask"].copy(),
        "decoder_padding_mask": np.ones((batch, target), bool),
        "segment_ids": rng.integers(0, 2, (batch, length)).astype("int32"),
        "language_ids": rng.integers(0, 2, (batch, length)).astype("int32"),
        "position_ids": positions,
        "masked_positions": targets,
        "permutation_mask": order[:, :, None] > order[:, None],
        "target_mapping": np.eye(length, dtype="float32")[targets],
        "memory": rng.normal(size=(batch, 4, D)).astype("float32"),
    }


def learns_from_words(model):
    """Whether a model's own loss needs words as labels: hard attention."""
    return any(isinstance(layer, HardAttentionRNN) for layer in model.layers)


def is_detector(model):
    """Whether a model learns from boxes, by losses of its own."""
    return isinstance(model, Detector)


def unpools(model):
    """Whether rounding decides between two maxima that are nearly equal.

    Unpooling puts the value at the place of one of them.
    """
    return any(getattr(layer, "is_discontinuous", False) for layer in model.layers)


def has_own_loss(model):
    """Whether a model is compiled without a loss: detectors, and models of pairs."""
    return isinstance(model, OwnLossModel)


def truth_for(model, batch=B) -> Any:
    """What a model with its own loss learns from, besides its inputs: objects, or None.

    Some rows have fewer objects, the second row has none.
    """
    if isinstance(model, DualEncoder):
        return None
    rng = np.random.default_rng(5)
    height, width = model.input.shape[1:3]
    corners = rng.uniform(0, 0.5, (batch, 3, 2)) * [width, height]
    sizes = rng.uniform(0.2, 0.5, (batch, 3, 2)) * [width, height]
    classes = rng.integers(0, M, (batch, 3)).astype("int32")
    classes[0, 2] = -1
    classes[1] = -1
    truth = {
        "boxes": np.concatenate([corners, corners + sizes], axis=-1).astype("float32"),
        "classes": classes,
    }
    if model.has_masks:
        masks = rng.random((batch, 3, height, width)) < 0.5
        truth["masks"] = masks.astype("int32")
    return truth


def numpy(tensor) -> Any:
    """A tensor of any backend, or a dictionary of tensors, as NumPy arrays."""
    if isinstance(tensor, dict):
        return {name: numpy(value) for name, value in tensor.items()}
    return np.asarray(ops.convert_to_numpy(tensor))


def given(model, inputs):
    """Inputs as the model takes them: a dictionary, or a single array."""
    if isinstance(model.input, dict):
        return inputs
    (single,) = inputs.values()
    return single


def named(outputs) -> dict[str, Any]:
    """The outputs of a model by name; a single output is called `logits`."""
    return outputs if isinstance(outputs, dict) else {"logits": outputs}


def eager_outputs_of(model, inputs, **call) -> dict[str, Any]:
    """The outputs of an eager call, `named`."""
    return named(numpy(model(given(model, inputs), **call)))


def outputs_of(model, inputs, **call) -> dict[str, Any]:
    """The outputs, `named`.

    Eager on TensorFlow. JAX compiles each operation of an eager call by itself, which
    takes several times as long as the call compiled as a whole.
    """
    if keras.backend.backend() != "jax":
        return eager_outputs_of(model, inputs, **call)
    outputs = _compiled_on_jax(model, *call.items())(
        [variable.value for variable in model.trainable_variables],
        [variable.value for variable in model.non_trainable_variables],
        given(model, inputs),
    )
    return named(numpy(outputs))


@functools.cache
def expected_outputs(case):
    """The outputs of `tiny(case)` for `inputs_for` it, computed once: do not change."""
    model = tiny(case)
    return outputs_of(model, inputs_for(model))


# A test calls one or two models; an entry keeps its model.
@functools.lru_cache(maxsize=2)
def _compiled_on_jax(model, *call):
    import jax

    def outputs(trainable, fixed, inputs):
        return model.stateless_call(trainable, fixed, inputs, **dict(call))[0]

    return jax.jit(outputs)


def logits_of(model, inputs) -> Any:
    """The logits of an eager call, (B, T, V)."""
    return outputs_of(model, inputs, training=False)["logits"]


def full_passes(model, inputs, count):
    """Greedy decoding without states: the whole prefix at every step."""
    tokens = inputs["decoder_token_ids"]
    for _ in range(count):
        logits = logits_of(model, {**inputs, "decoder_token_ids": tokens})
        best = logits[:, -1:].argmax(-1).astype("int32")
        tokens = np.concatenate([tokens, best], axis=1)
    return tokens[:, -count:]
