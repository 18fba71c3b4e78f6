"""Words and table cells for the published figures of a model card."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keras_attn.models import ModelCard
    from keras_attn.models.catalog.cards import Score, Size, Training
    from keras_attn.models.catalog.public_weights import PublicWeights

_UNITS = ((1e12, "T"), (1e9, "B"), (1e6, "M"))


def rounded(number: float | None) -> str:
    """A count, rounded as papers do: 110M, 1.3B, 2.1T; "-" for None."""
    if number is None:
        return "-"
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:,.0f}"


def count(number: float) -> str:
    """A number with three digits, or whole if it is large: 0.25, 9.2, 97,000."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def spell_size(size: "Size", nothing: str = "-") -> str:
    """Layers, width or heads: a number, or those of each stage; `nothing` for None."""
    if size is None:
        return nothing
    return "+".join(map(str, size)) if isinstance(size, tuple | list) else str(size)


def spell_hours(hours: float | None) -> str:
    """A time, in days from two on, below an hour in minutes, then seconds."""
    if hours is None:
        return "-"
    if hours < 1 / 60:
        return f"{hours * 3600:.3g} s"
    if hours < 1:
        return f"{hours * 60:.3g} minutes"
    return f"{count(hours / 24)} days" if hours >= 48 else f"{hours:.3g} h"


def spell_hardware(training: "Training | None") -> str:
    """Such as "512 x v100", or "-"."""
    if training is None or not training.hardware:
        return "-"
    count = "" if training.devices is None else f"{training.devices:,} x "
    return count + training.hardware


def spell_seen(training: "Training | None") -> str:
    """Such as "300B tokens" or "384M images", or "-"."""
    if training is None:
        return "-"
    if training.tokens is not None:
        return f"{rounded(training.tokens)} tokens"
    return "-" if training.images is None else f"{rounded(training.images)} images"


def spell_training(training: "Training | None") -> str:
    """What is published about a run, in a line, with its source; "" for nothing."""
    if training is None:
        return ""
    data = training.data
    if training.gigabytes is not None:
        data += f" ({training.gigabytes:g} GB)"
    parts = [spell_seen(training), spell_hardware(training)]
    parts += [spell_hours(training.hours)]
    if training.flops is not None:
        parts += [f"{training.flops:.3g} FLOPs"]
    words = ", ".join([data, *(part for part in parts if part != "-")])
    return f"{words} ({training.source})"


def spell_score(score: "Score") -> str:
    """Such as "ImageNet top-1 83.5 at 224 (table 1)"."""
    setting = f" {score.setting}" if score.setting else ""
    source = f" ({score.source})" if score.source else ""
    return f"{score.measure} {score.value:g}{setting}{source}"


def spell_weights(weights: "PublicWeights | None") -> str:
    """Such as "hf://xlnet/xlnet-base-cased (the authors'; not fetched by us)"."""
    if weights is None:
        return ""
    return f"{weights.place} ({spell_source(weights)}; not fetched by us)"


def spell_source(weights: "PublicWeights") -> str:
    """Whose weights they are, and whether their name could be checked."""
    return weights.source + ("" if weights.is_checked else "; name from memory")


def size_cells(card: "ModelCard") -> list[str]:
    """The cells of a model in the table of sizes, after its name."""
    training = card.training
    gigabytes = None if training is None else training.gigabytes
    return [
        *map(spell_size, (card.layers, card.width, card.heads)),
        rounded(card.parameters),
        "-" if gigabytes is None else f"{gigabytes:g} GB",
        spell_seen(training),
        spell_hardware(training),
        spell_hours(None if training is None else training.hours),
    ]
