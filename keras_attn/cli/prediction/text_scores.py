"""The scores of texts: classes, numbers, rankings and completions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_attn.cli.finetuning.kinds import Kind
from keras_attn.cli.finetuning.labeled import read_texts
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.prediction.inputs import TextRow
from keras_attn.cli.prediction.network import Network
from keras_attn.cli.prediction.scores import Evaluation, score_classes, score_numbers
from keras_attn.cli.prediction.texts import text_outputs
from keras_attn.cli.terminal import in_parts
from keras_attn.data import completion_dataset, read_completions, read_preferences
from keras_attn.ops import token_log_probabilities


def score_texts(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    """The scores of texts, or pairs of texts, with a class or a number each."""
    result = network.result
    if "second" in result.columns and kind.second is None:
        raise ValueError(
            "DATA must have pairs of texts, as the model learned them (see "
            f"--pair-column). Received: {str(settings.data)!r}"
        )
    data = read_texts(settings, settings.data, kind)
    columns = [data.texts] + ([data.second_texts] if data.second_texts else [])
    names = [kind.text, kind.second or ""]
    rows = [
        TextRow(place, dict(zip(names, texts, strict=False)))
        for place, *texts in zip(data.rows, *columns, strict=True)
    ]
    outputs = np.stack(list(text_outputs(network, rows, settings.batch_size)))
    outputs = outputs.reshape(len(rows), -1).astype(np.float32)
    what = f"{len(rows):,} {'pairs' if kind.second else 'texts'}"
    texts = [row.texts for row in rows]
    if result.task == "text_regression" or outputs.shape[1] == 1:
        return score_numbers(data.scores(), outputs[:, 0], texts, what, count)
    names = result.class_names or [str(index) for index in range(outputs.shape[1])]
    labels = data.classes(names)
    return score_classes(result.task, names, labels, outputs, texts, what, count)


def score_rankings(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    """The share of pairs whose better completion has the larger score."""
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
    outputs = list(text_outputs(network, rows, settings.batch_size))
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


def score_completions(
    network: Network, settings: Settings, kind: Kind, count: int
) -> Evaluation:
    """The perplexity of completions, and how often the better one is more probable."""
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
    options = (tokenizer, limit, settings.batch_size)
    found = [_log_probabilities(network.model, encoded, x, *options) for x in columns]
    sums, counts = zip(*found, strict=True)
    loss = float(-sums[0].sum() / counts[0].sum())
    figures = {"loss": loss, "perplexity": float(np.exp(loss))}
    order = np.argsort(sums[0] / np.maximum(counts[0], 1), kind="stable")
    if is_pair:
        # Without the reference of training: the model's own probabilities.
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
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    tokenizer: Any,
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
