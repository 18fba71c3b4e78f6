"""The contract of every builder: an error names an argument that its caller has."""

import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import pytest
from model_cases import GRAPHS, TINY, first_of_families, tiny
from model_contract import few_of

from keras_attn import models
from keras_attn.checks.argument_types import (
    Activation,
    AtLeast,
    Epsilon,
    Index,
    MayBeEmpty,
    Probability,
)
from keras_attn.models.catalog import registry
from keras_attn.models.catalog.arguments import checked_arguments

BUILDERS = {
    name: getattr(models, name) for name in models.__all__ if name.startswith("build_")
}
# Arguments whose numbers may be 0, and lists that may have no element.
FROM_ZERO = {"num_frozen", "num_pyramid_layers", "attention_stage", "end_token_id"}
FROM_ZERO |= {"skips", "dilated_stages", "text_co_layers", "region_co_layers"}
MAY_BE_EMPTY = {"fully_connected_dims", "stem_dims", "decoder_dims"}
MAY_BE_EMPTY |= {"skips", "dilated_stages"}
# Text, or a number of any sign.
NOT_CHECKED = {"seed", "name"}


def wrong_values(name, annotation):
    """Values that no model can be built with.

    Which ones follows from the type and the name of an argument, not from the range in
    its annotation, which is tested here too.
    """
    annotation = without_ranges(annotation)
    kinds = [
        kind
        for kind in typing.get_args(annotation) or (annotation,)
        if kind is not type(None)
    ]
    if typing.get_origin(annotation) is not Sequence and len(kinds) == 1:
        (annotation,) = kinds
    if annotation is int:
        return [-1, 1.5, "x", True, *([] if name in FROM_ZERO else [0])]
    if annotation is float:
        bad = [float("nan"), float("inf"), "x"]
        if name.endswith("epsilon"):
            return [*bad, -1]
        if name.endswith("ratio"):
            return [*bad, 0, -1]
        is_share = name.endswith(("dropout", "stochastic_depth"))
        return [*bad, -0.5, 1.0] if is_share else bad
    if annotation == int | tuple[int, int]:
        return [0, "x", (3, 5, 7), (3, 1.5), (0, 3)]
    if typing.get_origin(annotation) is Sequence:
        (kind,) = typing.get_args(annotation)
        if kind is int:
            zero = [] if name in FROM_ZERO else [[0]]
            empty = [] if name in MAY_BE_EMPTY else [()]
            return [3, "x", [1.5], [-1], *zero, *empty]
        if kind is float:
            return [3, "x", [0.0], [-1.0], ["x"], ()]
    # A boolean, a choice, a model, an activation, a dictionary, a list of names.
    return [0, -1, "x"]


def without_ranges(annotation):
    """The type of an annotation, also inside `| None` and lists."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return without_ranges(inner[0])
    if origin is Sequence:
        return Sequence[without_ranges(inner[0])]
    if origin in (typing.Union, types.UnionType):
        return typing.Union[tuple(map(without_ranges, inner))]  # noqa: UP007
    return annotation


def arguments_of(builder):
    """Names and annotations of what is checked."""
    for name, parameter in inspect.signature(builder).parameters.items():
        if name not in NOT_CHECKED:
            yield name, wrong_values(name, parameter.annotation)


def encoder_of(name):
    """The first argument of the builder of a head; empty for a different builder.

    By default a head builds an encoder of a published size.
    """
    family = name.split("_")[1]
    first = next(iter(inspect.signature(BUILDERS[name]).parameters))
    if first not in ("encoder", "model"):
        return {}
    return {first: tiny(next(graph for graph in GRAPHS if graph.startswith(family)))}


@pytest.mark.parametrize("name", sorted(BUILDERS))
def test_an_error_names_the_argument_with_a_wrong_value(name):
    builder = BUILDERS[name]
    has_classes = "num_classes" in inspect.signature(builder).parameters
    required = {"num_classes": 3} if has_classes else {}
    required |= encoder_of(name)
    for argument, values in arguments_of(builder):
        for value in values:
            match = f"(?s)`{argument}` .*Received: {argument}="
            with pytest.raises((TypeError, ValueError), match=match):
                builder(**{**required, argument: value})


def test_most_arguments_are_checked():
    checked = {
        argument
        for builder in BUILDERS.values()
        for argument, _ in arguments_of(builder)
    }
    assert {"hidden_dim", "vocabulary_size", "dropout", "num_blocks"} <= checked
    assert {"image_size", "anchor_sizes", "num_proposals"} <= checked
    assert {"activation", "norm_first", "pooling", "encoder", "mlp_ratio"} <= checked
    assert len(checked) > 110


def test_ranges_are_read_from_annotations():
    def build(
        *,
        depth: Annotated[int, AtLeast(2)] | None = 2,
        factor: Annotated[float, AtLeast(1)] = 1.0,
        widths: Annotated[Sequence[Index], MayBeEmpty()] = (),
    ):
        return depth, factor, widths

    checked = functools.partial(checked_arguments, inspect.signature(build))
    given = {"depth": 2, "factor": 1.0, "widths": (0, 1)}
    assert checked(given) == given
    assert checked({"depth": None, "widths": ()}) == {"depth": None, "widths": ()}
    for name, value, message in (
        ("depth", 1, "`depth` must be an integer of at least 2. Received: depth=1"),
        ("factor", 0.5, "`factor` must be at least 1. Received: factor=0.5"),
        ("widths", [-1], "`widths` must be a non-negative integer. Received: widths"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            checked({name: value})


def test_the_message_says_what_an_argument_of_each_type_must_be():
    def build(
        *,
        size: int = 1,
        rate: Probability = 0.1,
        epsilon: Epsilon = 0.0,
        sizes: Sequence[int] = (1,),
        scales: Sequence[float] = (1.0,),
        kind: Literal["add", "multiply"] = "add",
        options: dict[str, int] | None = None,
        flag: bool = False,
        activation: Activation = "relu",
        pair: int | tuple[int, int] = 3,
    ):
        return size, rate, epsilon, sizes, scales, kind, options, flag, activation, pair

    checked = functools.partial(checked_arguments, inspect.signature(build))
    for name, value, expected in (
        ("size", 0, "a positive integer"),
        ("rate", math.nan, "a finite number"),
        ("rate", 1.0, "a probability in [0, 1)"),
        ("epsilon", -1, "not be negative"),
        ("sizes", 3, "a list or tuple of at least one number"),
        ("sizes", (), "a list or tuple of at least one number"),
        ("sizes", (1, 0), "a positive integer"),
        ("scales", (1.0, -1.0), "positive numbers"),
        ("kind", "sum", "one of 'add', 'multiply'"),
        ("options", 3, "a dictionary"),
        ("flag", 1, ""),
        ("activation", "none", "a function, or the name of an activation of Keras, or"),
        ("pair", (3, 5, 7), "a positive integer or a pair of them, (rows, columns)"),
    ):
        message = rf"`{name}` must (be )?{re.escape(expected)}.*Received: {name}="
        with pytest.raises((TypeError, ValueError), match=message):
            checked({name: value})


@pytest.mark.parametrize("case", ["mask_rcnn_resnet50", "caption_show_attend_tell"])
def test_a_seed_may_be_0(case):
    assert models.count_parameters(case, **{**TINY[case], "seed": 0}) > 0


@pytest.mark.parametrize("case", few_of(GRAPHS))
def test_sizes_may_be_integers_of_numpy(case):
    """Such as `len(np.unique(labels))`, or a size out of an array."""
    sizes = {
        name: np.int64(size) if type(size) is int else size
        for name, size in TINY[case].items()
    }
    # Without weights, which the other contracts have.
    assert models.count_parameters(case, **sizes) == models.count_parameters(
        case, **TINY[case]
    )


@pytest.mark.parametrize(
    "case",
    first_of_families(
        case
        for case in sorted(GRAPHS)
        if "activation" in inspect.signature(registry.entry(case).builder).parameters
    ),
)
def test_an_activation_has_the_names_of_the_library_too(case):
    assert models.count_parameters(case, **TINY[case], activation="quick_gelu") > 0


@pytest.mark.parametrize(
    "name, argument",
    [
        *((name, "encoder") for name in BUILDERS if "classifier" in name),
        ("build_caption_vit_transformer", "encoder"),
    ],
)
def test_an_error_names_the_argument_with_an_unknown_variant(name, argument):
    argument = "model" if name.startswith("build_gpt") else argument
    options = {} if "caption" in name else {"num_classes": 3}
    match = f"`{argument}` must be one of .*Received: {argument}='huge'"
    with pytest.raises(ValueError, match=match):
        BUILDERS[name](**{argument: "huge"}, **options)


@pytest.mark.parametrize("name", ["vit", "deit3", "mae"])
def test_patches_fill_the_images(name):
    match = (
        "`image_size` must be a multiple of `patch_size`.* to 48 × 32 pixels.*"
        r"Received: image_size=\(63, 33\), patch_size=\(16, 16\)"
    )
    with pytest.raises(ValueError, match=match) as raised:
        BUILDERS[f"build_{name}"](image_size=(63, 33), patch_size=16)
    assert not re.search("padding|Exception encountered", str(raised.value))


@pytest.mark.parametrize("name", ["fcn_vgg", "deconvnet"])
def test_networks_that_widen_the_image_need_a_fully_connected_layer(name):
    with pytest.raises(ValueError, match="`fully_connected_dims` must have at"):
        BUILDERS[f"build_{name}"](fully_connected_dims=())
