"""Scores of a model on data with answers, as in fine-tuning, and the worst examples.

The scores: `text_scores.py`, `image_scores.py`.
"""

from dataclasses import replace

from keras_attn.cli.finetuning.kinds import find_kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.image_scores import (
    score_objects,
    score_pictures,
    score_pixels,
)
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.scores import Evaluation
from keras_attn.cli.prediction.text_scores import (
    score_completions,
    score_rankings,
    score_texts,
)
from keras_attn.data.text.tables import column_names, is_table


def evaluate_model(
    network: Network, settings: Settings, *, count: int, min_score: float
) -> Evaluation:
    """Scores a model.

    Args:
        network: The model.
        settings: DATA, and the options that describe it, as for `keras-attn finetune`.
        count: Number of worst examples.
        min_score: Smallest score of an object that is drawn, or counted for the worst.

    Raises:
        ValueError: If the data are not of the model's kind.
    """
    settings = replace(settings, task=network.result.task)
    settings = _with_columns(settings, network)
    try:
        kind = find_kind(settings, settings.data)
    except ValueError as error:
        needs = f"--task {settings.task} needs"
        text = str(error).replace(needs, f"A model of {settings.task} needs")
        raise ValueError(text) from error
    if settings.task in ("completion", "preference"):
        return score_completions(network, settings, kind, count)
    if settings.task == "segmentation":
        return score_pixels(network, settings, kind, count)
    if settings.task in ("detection", "instance_segmentation"):
        return score_objects(network, settings, kind, count, min_score)
    if settings.task == "image_classification":
        return score_pictures(network, settings, count)
    if settings.task == "reward":
        return score_rankings(network, settings, kind, count)
    return score_texts(network, settings, kind, count)


def _with_columns(settings: Settings, network: Network) -> Settings:
    """The columns that the model learned from, if they are in the table."""
    if not is_table(settings.data) or settings.data.is_dir():
        return settings
    if settings.task in ("reward", "completion", "preference"):
        return settings
    names = column_names(settings.data, header=settings.header)
    known = network.result.columns
    options = {"text_column": "text", "pair_column": "second", "label_column": "label"}
    for option, column in options.items():
        if getattr(settings, option) is None and known.get(column) in names:
            settings = replace(settings, **{option: known[column]})
    return settings
