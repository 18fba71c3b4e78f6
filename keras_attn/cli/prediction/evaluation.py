"""Scores of a model on data with answers: those of fine-tuning, and the worst examples.

Legend: N examples, C classes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_attn.cli.finetuning.kinds import Kind, find_kind
from keras_attn.cli.finetuning.label_scale import LabelScale
from keras_attn.cli.finetuning.object_data import (
    find_splits,
    folder_of,
    read_objects,
)
from keras_attn.cli.finetuning.pixels import _classes as classes_of_masks
from keras_attn.cli.finetuning.pixels import validation_kind
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.inputs import TextRow
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.pictures import class_outputs, label_maps
from keras_attn.cli.prediction.texts import text_outputs
from keras_attn.cli.terminal import in_parts
from keras_attn.data import (
    completion_dataset,
    detection_dataset,
    read_completions,
    read_image_classes,
    read_labeled_texts,
    read_preferences,
    read_segmentation,
)
from keras_attn.data.images.image_files import read_image
from keras_attn.data.text.tables import column_names, is_table
from keras_attn.ops.boxes import pairwise_iou
from keras_attn.training import (
    DetectionScores,
    MatthewsCorrelation,
    PearsonCorrelation,
    SparseF1Score,
    SpearmanCorrelation,
    token_log_probabilities,
)

Row = dict[str, Any]
Picture = Callable[[], Any]  # Draws a figure of Matplotlib.
_MATCH = 0.5  # IoU from which a box is found, for the worst images.


@dataclass
class Evaluation:
    """What was measured.

    Attributes:
        task: One of `kinds.TASKS`.
        what: Number and kind of the examples, for the user.
        figures: The scores by name.
        class_names: Names of the classes; empty without classes.
        confusion: Number of examples, or of pixels, by true and predicted class,
            (C, C); None without classes.
        worst: The examples that are furthest from their answer, the worst first.
        pictures: What draws them, by the name of a file.
    """

    task: str
    what: str
    figures: dict[str, float]
    class_names: list[str] = field(default_factory=list)
    confusion: np.ndarray | None = None
    worst: list[Row] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)


def evaluate_model(
    network: Network,
    settings: Settings,
    *,
    count: int,
    min_score: float,
) -> Evaluation:
    """Scores a model.

    Args:
        network: The model.
        settings: DATA, and the options that say what is where in it, as those of
            `keras-attn finetune`.
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
        return _completions(network, settings, kind, count)
    if settings.task == "segmentation":
        return _pixels(network, settings, kind, count)
    if settings.task in ("detection", "instance_segmentation"):
        return _objects(network, settings, kind, count, min_score)
    if settings.task == "image_classification":
        return _pictures(network, settings, count)
    if settings.task == "reward":
        return _rankings(network, settings, kind, count)
    return _texts(network, settings, kind, count)


def _with_columns(settings: Settings, network: Network) -> Settings:
    """The columns that the model learned from, if they are in the table."""
    if not is_table(settings.data) or settings.data.is_dir():
        return settings
    names = column_names(settings.data, header=settings.header)
    known = network.result.columns
    for field_name, column in (("text_column", "text"), ("pair_column", "second")):
        if getattr(settings, field_name) is None and known.get(column) in names:
            if settings.task not in ("reward", "completion", "preference"):
                settings = replace(settings, **{field_name: known[column]})
    return settings


def _measured(metrics: Sequence[Any], true: Any, predicted: Any) -> dict[str, float]:
    """The results of metrics of all examples."""
    found: dict[str, float] = {}
    for metric in metrics:
        metric.update_state(true, predicted)
        found[metric.name] = float(metric.result())
    return found


def _texts(network: Network, settings: Settings, kind: Kind, count: int) -> Evaluation:
    result = network.result
    if "second" in result.columns and kind.second is None:
        raise ValueError(
            "DATA must have pairs of texts, as the model learned them (see "
            f"--pair-column). Received: {str(settings.data)!r}"
        )
    data = read_labeled_texts(
        settings.data,
        text_column=kind.text,
        second_column=kind.second,
        label_column=kind.label,
        header=settings.header,
    )
    columns = [data.texts] + ([data.second_texts] if data.second_texts else [])
    names = [kind.text, kind.second or ""]
    rows = [
        TextRow(place, dict(zip(names, texts, strict=False)))
        for place, *texts in zip(data.rows, *columns, strict=True)
    ]
    outputs = np.stack(
        [output for _, output in text_outputs(network, rows, settings.batch_size)]
    )
    outputs = outputs.reshape(len(rows), -1).astype(np.float32)
    what = f"{len(rows):,} {'pairs' if kind.second else 'texts'}"
    texts = [row.texts for row in rows]
    if result.task == "text_regression" or outputs.shape[1] == 1:
        return _numbers(data.scores(), outputs[:, 0], texts, what, count)
    names = result.class_names or [str(index) for index in range(outputs.shape[1])]
    labels = data.classes(names)
    return _classification(result.task, names, labels, outputs, texts, what, count)


def _numbers(
    labels: np.ndarray,
    predicted: np.ndarray,
    texts: Sequence[Row],
    what: str,
    count: int,
) -> Evaluation:
    metrics = [PearsonCorrelation(), SpearmanCorrelation(max(2, len(labels)))]
    # Of numbers near 1: those in the unit of the labels may be large.
    scale = LabelScale.of(labels)
    pair = scale.standardize(labels), scale.standardize(predicted)
    figures = _measured([*scale.metrics(), *metrics], *pair)
    errors = np.abs(labels - predicted)
    worst = [
        {
            **texts[row],
            "label": float(labels[row]),
            "predicted": float(f"{predicted[row]:.6g}"),
        }
        for row in np.argsort(-errors, kind="stable")[:count]
    ]
    return Evaluation("text_regression", what, figures, worst=worst)


def _classification(
    task: str,
    names: Sequence[str],
    labels: np.ndarray,
    outputs: np.ndarray,
    examples: Sequence[Row],
    what: str,
    count: int,
) -> Evaluation:
    """Scores of logits (N, C)."""
    if len(names) != outputs.shape[1]:
        raise ValueError(
            f"MODEL must have an output for each of its {len(names)} classes. "
            f"Received: {outputs.shape[1]} outputs"
        )
    metrics: list[Any] = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
    if len(names) > 5 and task == "image_classification":
        metrics.append(keras.metrics.SparseTopKCategoricalAccuracy(5, "top_5"))
    metrics.append(MatthewsCorrelation(len(names)))
    if len(names) == 2:
        metrics.append(SparseF1Score(name="f1_" + re.sub(r"\W", "_", names[1])))
    logits = outputs.astype(np.float64)
    logs = logits - logits.max(-1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(-1, keepdims=True))
    losses = -logs[np.arange(len(labels)), labels]
    figures = {"loss": float(losses.mean()), **_measured(metrics, labels, outputs)}
    counts = np.bincount(labels, minlength=len(names))
    figures["most_frequent_class"] = float(counts.max() / counts.sum())
    best = outputs.argmax(-1)
    wrong = [
        row for row in np.argsort(-losses, kind="stable") if best[row] != labels[row]
    ]
    worst = [
        {
            **examples[row],
            "label": names[int(labels[row])],
            "predicted": names[int(best[row])],
            "score": float(f"{np.exp(logs[row, best[row]]):.4g}"),
        }
        for row in wrong[:count]
    ]
    confusion = _confusion(labels, best, len(names))
    return Evaluation(task, what, figures, list(names), confusion, worst)


def _confusion(labels: np.ndarray, predicted: np.ndarray, count: int) -> np.ndarray:
    """Numbers by true and predicted class, (C, C)."""
    places = labels.astype(np.int64) * count + predicted
    return np.bincount(places.reshape(-1), minlength=count**2).reshape(count, count)


def _pictures(network: Network, settings: Settings, count: int) -> Evaluation:
    data = read_image_classes(settings.data, network.result.class_names or None)
    data.check()
    outputs = np.stack(
        [x for _, x in class_outputs(network, data.paths, settings.batch_size)]
    ).reshape(len(data), -1)
    found = _classification(
        "image_classification",
        data.class_names,
        data.classes,
        outputs,
        [{"file": str(path)} for path in data.paths],
        f"{len(data):,} images",
        count,
    )
    if found.worst:
        found.pictures["worst.png"] = lambda: _draw_wrong(found.worst)
    return found


def _draw_wrong(worst: Sequence[Row]) -> Any:
    from PIL import Image

    from keras_attn.viz import plot_generated_images

    images = []
    for row in worst:
        picture = Image.fromarray(read_image(Path(row["file"])))
        images.append(np.asarray(picture.resize((160, 160))))
    captions = [
        f"{Path(row['file']).name}: {row['label']}, predicted {row['predicted']} "
        f"({row['score']:.2f})"
        for row in worst
    ]
    return plot_generated_images(np.stack(images)[:, None], captions)


def _pixels(network: Network, settings: Settings, kind: Kind, count: int) -> Evaluation:
    result = network.result
    names = result.class_names
    named, palette = classes_of_masks(settings, kind)
    if settings.classes is not None and named != names:
        raise ValueError(
            f"--classes must be the classes of MODEL. Received: {named} instead of "
            f"{names}"
        )
    if settings.images is None and settings.masks is None:
        # Of a data set with splits, not what was trained on.
        kind = validation_kind(settings, kind) or kind
    data = read_segmentation(kind.images, kind.masks, names, palette=palette)
    data = replace(data, channels=result.channels).check()
    confusion = np.zeros((len(names), len(names)), np.int64)
    shares = []
    files = [image for image, _ in data.pairs]
    for index, (_, _, predicted) in enumerate(label_maps(network, files)):
        _, labels = data.read(index)
        known = labels < len(names)
        part = _confusion(labels[known], predicted[known], len(names))
        confusion += part
        shares.append(float(np.trace(part) / max(part.sum(), 1)))
    hits = np.diag(confusion)
    either = confusion.sum(0) + confusion.sum(1) - hits
    ious = {
        f"iou_{name}": float(hits[number] / either[number])
        for number, name in enumerate(names)
        if either[number]
    }
    figures = {
        "mean_iou": float(np.mean(list(ious.values()) or [0.0])),
        "pixel_accuracy": float(hits.sum() / max(confusion.sum(), 1)),
        **ious,
    }
    order = np.argsort(shares, kind="stable")[:count]
    worst = [
        {"file": str(files[row]), "pixel_accuracy": round(shares[row], 6)}
        for row in order
    ]

    def draw(row: int) -> Any:
        from keras_attn.viz import plot_segmentation

        image, labels = data.read(row)
        ((_, _, predicted),) = label_maps(network, [files[row]])
        return plot_segmentation(
            image[None], labels[None], predicted[None], class_names=names, errors=True
        )

    pictures = {
        f"worst_{place}_{files[row].stem}.png": (lambda row=row: draw(int(row)))
        for place, row in enumerate(order, 1)
    }
    what = f"{len(files):,} images with masks in {kind.images}"
    return Evaluation(result.task, what, figures, names, confusion, worst, pictures)


def _objects(
    network: Network, settings: Settings, kind: Kind, count: int, min_score: float
) -> Evaluation:
    result = network.result
    has_masks = result.task == "instance_segmentation"
    # Of a data set with splits, not what was trained on.
    _, split = find_splits(settings, kind)
    names = None if kind.annotations is not None else result.class_names
    data = read_objects(settings.data, kind, split, names)
    if data.class_names != result.class_names:
        raise ValueError(
            "DATA must have the categories that MODEL learned. "
            f"Received: {data.class_names} instead of {result.class_names}"
        )
    data = data.check()
    scores = {"": DetectionScores(result.class_names)}
    if has_masks:
        scores["mask_"] = DetectionScores(
            result.class_names, masks=True, aligned_masks=result.aligned_masks
        )
    sides = result.image_size or [0, 0]
    rows = network.rows_of(1)

    def batches() -> Iterator[tuple[Any, Any]]:
        for pictures, truth in detection_dataset(
            data,
            image_size=(sides[0], sides[1]),
            batch_size=rows,
            normalize=result.normalize,
            masks=has_masks,
        ):
            arrays = {name: np.asarray(value) for name, value in truth.items()}
            yield np.asarray(pictures), arrays

    wrong: list[int] = []
    for pictures, truth in batches():
        found = network({network.image_input: pictures})
        for each in scores.values():
            each.add(truth, found, pictures.shape[1:3])
        for row in range(len(pictures)):
            wrong.append(_count_wrong(truth, found, row, min_score))
    figures = {
        prefix + name: float(value)
        for prefix, each in scores.items()
        for name, value in each.result().items()
    }
    order = [row for row in np.argsort(wrong, kind="stable")[::-1] if wrong[row]]
    files = [example.image_path for example in data.examples]
    worst = [
        {"file": str(files[row]), "missed_or_wrong": wrong[row]}
        for row in order[:count]
    ]

    def draw(row: int) -> Any:
        from keras_attn.viz import plot_detections

        pictures, truth = next(
            batch for number, batch in enumerate(batches()) if number == row // rows
        )
        found = network({network.image_input: pictures})
        place = slice(row % rows, row % rows + 1)
        return plot_detections(
            pictures[place],
            {name: value[place] for name, value in found.items()},
            {name: value[place] for name, value in truth.items()},
            class_names=result.class_names,
            min_score=min_score,
            aligned_masks=result.aligned_masks,
        )

    drawn = {
        f"worst_{place}_{files[row].stem}.png": (lambda row=row: draw(int(row)))
        for place, row in enumerate(order[:count], 1)
    }
    what = f"{len(files):,} images with {'masks' if has_masks else 'boxes'}"
    what += f" of {split}.txt" if kind.layout == "voc" and split == "val" else ""
    what += f" in {folder_of(data)}"
    return Evaluation(
        result.task, what, figures, list(result.class_names), None, worst, drawn
    )


def _count_wrong(truth: Row, found: Row, row: int, min_score: float) -> int:
    """True objects of an image that were not found, and objects that are none."""
    is_true = truth["classes"][row] >= 0
    if "is_crowd" in truth:
        is_true &= ~truth["is_crowd"][row].astype(bool)
    kept = (found["classes"][row] >= 0) & (found["scores"][row] >= min_score)
    true, classes = truth["boxes"][row][is_true], truth["classes"][row][is_true]
    boxes, labels = found["boxes"][row][kept], found["classes"][row][kept]
    if not len(true) or not len(boxes):
        return len(true) + len(boxes)
    overlaps = np.asarray(pairwise_iou(boxes, true), np.float64)
    overlaps[labels[:, None] != classes[None]] = 0
    matched = 0
    while overlaps.max() >= _MATCH:
        box, object_ = np.unravel_index(overlaps.argmax(), overlaps.shape)
        overlaps[box], overlaps[:, object_] = 0, 0
        matched += 1
    return len(true) + len(boxes) - 2 * matched


def _rankings(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    data = read_preferences(settings.data, prompt_column=kind.prompt)
    rows = []
    for number, (prompt, *answers) in enumerate(
        zip(data.prompts, data.chosen, data.rejected, strict=True), 1
    ):
        for answer in answers:
            texts = {"completion": answer}
            if kind.prompt is not None:
                texts = {"prompt": prompt, **texts}
            rows.append(TextRow(f"{settings.data.name}, pair {number}", texts))
    outputs = [output for _, output in text_outputs(network, rows, settings.batch_size)]
    margins = np.reshape(np.array(outputs, np.float64), (-1, 2)) @ [1, -1]
    figures = {
        "ranking_accuracy": float((margins > 0).mean()),
        "margin": float(margins.mean()),
        "loss": float(np.logaddexp(0, -margins).mean()),
    }
    worst = [
        {
            "prompt": data.prompts[row],
            "chosen": data.chosen[row],
            "rejected": data.rejected[row],
            "margin": float(f"{margins[row]:.4g}"),
        }
        for row in np.argsort(margins, kind="stable")[:count]
        if margins[row] <= 0
    ]
    what = f"{len(margins):,} pairs of completions"
    return Evaluation(network.result.task, what, figures, worst=worst)


def _completions(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    if network.is_exported:
        raise ValueError(
            "MODEL must be a folder or a `.keras` file: the tokens of given "
            "completions are scored in Keras. Received: an exported file"
        )
    tokenizer = network.tokenizer()
    is_pair = settings.task == "preference"
    if is_pair:
        data = read_preferences(settings.data, prompt_column=kind.prompt)
        prompts, answers = data.prompts, [data.chosen, data.rejected]
    else:
        prompts, *answers = read_completions(
            settings.data,
            prompt_column=kind.prompt or "prompt",
            completion_column=kind.text,
        )
    encoded = [tokenizer.encode(text) for text in prompts]
    columns = [[tokenizer.encode(text) for text in column] for column in answers]
    longest = sum(max(map(len, column)) for column in (encoded, sum(columns, []))) + 1
    limits = (network.result.max_length, getattr(network.model, "max_length", None))
    limit = min(each for each in (*limits, longest) if each)
    too_long = next((n for n, ids in enumerate(encoded) if len(ids) > limit), None)
    if too_long is not None:
        raise ValueError(
            f"A prompt must have at most {limit} tokens. Received: "
            f"{len(encoded[too_long])} tokens in prompt {too_long + 1}"
        )
    sums, counts = zip(
        *(
            _log_probabilities(
                network.model,
                tokenizer,
                encoded,
                column,
                limit,
                settings.batch_size,
            )
            for column in columns
        ),
        strict=True,
    )
    loss = float(-sums[0].sum() / counts[0].sum())
    figures = {"loss": loss, "perplexity": float(np.exp(loss))}
    order = np.argsort(sums[0] / np.maximum(counts[0], 1), kind="stable")
    if is_pair:
        # The reference of training is not there: the model alone.
        margins = sums[0] - sums[1]
        figures["chosen_more_probable"] = float((margins > 0).mean())
        order = np.argsort(margins, kind="stable")
    names = ("chosen", "rejected") if is_pair else ("completion",)
    worst = [
        {
            "prompt": prompts[row],
            **{name: texts[row] for name, texts in zip(names, answers, strict=True)},
            "loss": float(f"{-sums[0][row] / max(counts[0][row], 1):.4g}"),
        }
        for row in order[:count]
    ]
    what = f"{len(prompts):,} prompts with {'pairs of ' * is_pair}completions"
    return Evaluation(settings.task or "", what, figures, worst=worst)


def _log_probabilities(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    max_length: int,
    batch_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The log-probability of each completion, and its number of tokens, (N,) each."""
    batches = completion_dataset(
        prompts,
        completions,
        max_length=max_length,
        batch_size=batch_size,
        end_token_id=tokenizer.end_token_id,
        pad_token_id=tokenizer.pad_token_id,
        pad_to_multiple_of=32,
    )
    sums, counts = [], []
    for ((inputs, labels, weights),) in in_parts(list(batches), 1, "Evaluating"):
        logits = model.predict_on_batch(inputs)
        found = np.asarray(token_log_probabilities(logits, labels)) * weights
        sums.append(np.sum(found, -1))
        counts.append(np.sum(weights, -1))
    return np.concatenate(sums), np.concatenate(counts)
