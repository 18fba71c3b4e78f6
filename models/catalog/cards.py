"""Cards: what is published about a model, as numbers, each with its source.

    CARDS = model_cards(
        "swin_{variant}",
        {"tiny": 28_288_354, "small": 49_606_258},
        training=Training("ImageNet", images=300 * IMAGENET, source="section 4.1"),
        scores=[
            scored("ImageNet top-1", "at 224", "table 1", {"tiny": 81.3, "small": 83.0})
        ],
        ...
    )

What a paper does not say is None: nothing here is estimated, but tokens may be the
product of published steps, rows and lengths. Layers, width and heads are those of the
builder's `VARIANTS`, which `registered` adds.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from keras_attn.models.catalog.public_weights import PUBLIC_WEIGHTS, PublicWeights

# Images of the data sets that most classifiers learn from. Papers call the larger one
# ImageNet-21k or -22k; the cards say 21k (Russakovsky et al. 2015, arXiv:1409.0575;
# Ridnik et al. 2021, arXiv:2104.10972, table 1).
IMAGENET = 1_281_167
IMAGENET_21K = 14_197_122

# The sizes of a card, and the arguments of builders that they are, by preference.
_SIZES = {
    "layers": ("num_layers", "num_blocks"),
    "width": ("hidden_dim", "hidden_dims"),
    "heads": ("num_heads",),
}
Size = int | tuple[int, ...] | None


@dataclass(frozen=True)
class Training:
    """How the published weights were trained; None and "" where nothing is published.

    Attributes:
        data: Names of the data sets.
        source: Table or section of the card's paper, or another place.
        gigabytes: Size of the texts, in 10⁹ bytes.
        tokens: Tokens seen: of all passes over the data, on each side of an
            encoder-decoder.
        images: Images, or pairs of image and text, seen in all passes.
        hardware: The accelerator, one of `models/plans/accelerators.py` if it is there.
        devices: Number of accelerators; chips of a TPU.
        hours: Time from the beginning to the end.
        flops: Floating-point operations of the whole training.
    """

    data: str
    source: str
    gigabytes: float | None = None
    tokens: float | None = None
    images: float | None = None
    hardware: str = ""
    devices: int | None = None
    hours: float | None = None
    flops: float | None = None


@dataclass(frozen=True)
class Score:
    """A published score.

    Attributes:
        measure: What was measured, such as `"ImageNet top-1"`. Shares are percentages.
        value: The number.
        setting: Resolution, pre-training, decoding: what sets it apart from another
            score of this measure, such as `"from ImageNet-21k, at 384"`. Only scores of
            one setting can be compared.
        source: Table or section of the card's paper, or another place.
    """

    measure: str
    value: float
    setting: str
    source: str


@dataclass(frozen=True)
class ModelCard:
    """The published facts about a model.

    Attributes:
        name: Registry name, as in `create(name)`.
        family: Name of its file in `models/`, or of a related model's file.
        title: One-line description.
        paper: Authors, year and arXiv id.
        year: Year of publication.
        task: What the model is for, such as `"translation"`.
        parameters: Published number of parameters, rounded as in the paper; None if
            the paper gives none.
        inputs: Shape and meaning of each input, by name.
        outputs: Shape and meaning of each output, by name.
        preprocessing: How images become inputs at the published size when the published
            weights are evaluated, with the fields of a `preprocessor_config.json`; None
            where that is not published, and for other inputs.
        notes: What else there is to know, if anything.
        training: Data, hardware and time; None if nothing is published.
        scores: Published scores.
        layers: Layers or blocks, of an encoder-decoder on each side; of each stage, if
            there are stages; None if the builder has no such size, like both below.
        width: D, units of a layer; of each stage, if they are given.
        heads: Heads of each attention; of each stage, if they differ.
        weights: Where published weights are; not fetched by us. None if there are none
            that `load_checkpoint` reads.
    """

    name: str
    family: str
    title: str
    paper: str
    year: int
    task: str
    parameters: int | None
    inputs: dict[str, str] = field(hash=False)
    outputs: dict[str, str] = field(hash=False)
    preprocessing: dict[str, Any] | None = field(default=None, hash=False)
    notes: str = ""
    training: Training | None = None
    scores: tuple[Score, ...] = ()
    layers: Size = None
    width: Size = None
    heads: Size = None
    weights: PublicWeights | None = None


def scored(
    measure: str, setting: str, source: str, values: Mapping[str, float]
) -> dict[str, Score]:
    """One column of a published table: a score of each variant.

    Args:
        measure: As in `Score`, like the two below.
        setting: As in `Score`.
        source: As in `Score`.
        values: The scores by the names of the variants.

    Returns:
        `Score` objects by the names of the variants.
    """
    return {
        variant: Score(measure, value, setting, source)
        for variant, value in values.items()
    }


def model_cards(
    name: str,
    parameters: Mapping[str, int | None],
    *,
    title: str,
    paper: str,
    task: str,
    inputs: dict[str, str],
    outputs: dict[str, str],
    preprocessing: dict[str, Any] | None = None,
    family: str = "",
    notes: str | Mapping[str, str] = "",
    training: Training | Mapping[str, Training] | None = None,
    scores: Sequence[Mapping[str, Score]] = (),
) -> dict[str, ModelCard]:
    """The cards of several variants, which differ only in published figures.

    They are in a model's file, below the sizes of the same variants; see `registered`.

    Args:
        name: Name of each model; `{variant}` is replaced by the name of the variant.
        parameters: Published number of parameters of each variant; None if the paper
            gives none.
        title: One-line description; `{variant}` is replaced by the name of the
            variant, with ", " in place of "_".
        paper: Authors, year and arXiv id; the year is its first number.
        task: As in `ModelCard`, like `inputs` and `outputs`. Models of one task share
            these three: `models/catalog/tasks.py`.
        inputs: Shape, type and meaning of each input, by name.
        outputs: Shape and meaning of each output, by name.
        preprocessing: As in `ModelCard`.
        family: Name of a related model's file; default: the file of the builder.
        notes: As in `ModelCard`; of all variants, or by variant.
        training: As in `ModelCard`; of all variants, or by variant.
        scores: Columns of tables, made by `scored`.

    Returns:
        The cards by the names of the variants.

    Raises:
        ValueError: If `paper` has no year, or notes, training or scores are of a
            variant that `parameters` lacks.
    """
    year = re.search(r"\d{4}", paper)
    if year is None:
        raise ValueError(f"`paper` must contain its year. Received: paper={paper!r}")
    tables = [each for each in (notes, training, *scores) if isinstance(each, Mapping)]
    unknown = {variant for table in tables for variant in table} - set(parameters)
    if unknown:
        raise ValueError(
            "`notes`, `training` and `scores` must be of the variants of `parameters`, "
            f"{', '.join(parameters)}. Received: {', '.join(sorted(unknown))}"
        )

    def of(variant: str, table: Any, default: Any) -> Any:
        return table.get(variant, default) if isinstance(table, Mapping) else table

    return {
        variant: ModelCard(
            name=name.format(variant=variant),
            family=family,
            title=title.format(variant=variant.replace("_", ", ")),
            paper=paper,
            year=int(year[0]),
            task=task,
            parameters=count,
            inputs=inputs,
            outputs=outputs,
            preprocessing=preprocessing,
            notes=of(variant, notes, ""),
            training=of(variant, training, None),
            scores=tuple(column[variant] for column in scores if variant in column),
        )
        for variant, count in parameters.items()
    }


def with_published_sizes(card: ModelCard, sizes: Mapping[str, Any]) -> ModelCard:
    """The card with layers, width and heads, and with what else is known by its name.

    Args:
        card: The card of a variant.
        sizes: The sizes of the variant, by the names of the builder's arguments.
    """
    found = {
        name: next((sizes[each] for each in arguments if each in sizes), None)
        for name, arguments in _SIZES.items()
    }
    return replace(card, **found, weights=PUBLIC_WEIGHTS.get(card.name))
