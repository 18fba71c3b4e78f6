"""What the short commands do: list, describe, export, verify, attention."""

import functools
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from rich.table import Table
from rich.text import Text

from keras_attn import export, models
from keras_attn.cli.terminal import CheckFailedError, console, say, working
from keras_attn.data import load_text_tokenizer
from keras_attn.export.errors import RefusedError
from keras_attn.translator import Translator
from keras_attn.viz import capture_attention, plot_alignment, save_figure

_KINDS_OF_MODEL = (
    "a `.keras` file that `model.save` wrote, the folder of a `keras-attn train` run, "
    "or a checkpoint folder (config.json, *.safetensors)"
)


def list_models(pattern: str) -> None:
    """Prints a table of the models that match a shell pattern."""
    names = models.list_models(pattern)
    if not names:
        raise ValueError(
            f"no model is called {pattern!r}; `keras-attn list` shows them all"
        )
    table = Table("Model", "What it is", "Paper")
    table.add_column("Parameters", justify="right")
    for name in names:
        card = models.describe(name)
        table.add_row(name, Text(card.title), Text(card.paper), _rounded(card))
    console.print(table)
    say("`keras-attn describe MODEL` shows a model's card, and counts.", "dim")


def _rounded(card: models.ModelCard) -> str:
    """The published count as people say it: 110M, 1.3B."""
    if card.parameters is None:
        return "-"
    for size, unit in ((1e9, "B"), (1e6, "M")):
        if card.parameters >= size:
            return f"{card.parameters / size:.3g}{unit}"
    return f"{card.parameters:,}"


def plan(name: str, **sizes) -> None:
    """Prints what a model would cost."""
    with working(f"Counting {name}"):
        found = models.plan(name, **sizes)
    trained = found.training_flops_per_token
    of_tokens = "token_ids" in models.describe(name).inputs
    one = "token" if of_tokens else "row"
    size = f"{found.batch} x {found.sequence} tokens"
    if not of_tokens:
        size = f"{found.batch} {'row' if found.batch == 1 else 'rows'}"
    rows = [
        ("parameters", f"{found.parameters:,}"),
        (f"FLOPs a {one}", f"{_short(found.forward_flops_per_token)}FLOP forward"),
        ("", f"{_short(trained)}FLOP forward and backward"),
        ("FLOPs a step", f"{_short(found.training_flops)}FLOP"),
        ("weights", f"{_short(found.weights)}B"),
        ("gradients", f"{_short(found.gradients)}B"),
        (found.optimizer, f"{_short(found.optimizer_state)}B"),
        ("activations", f"{_short(found.activations)}B"),
        ("training", f"{_short(found.training_memory)}B together"),
    ]
    if found.cache is not None:
        rows += [
            ("cache", f"{_short(found.cache)}B of keys, values or states"),
            ("generation", f"{_short(found.generation_memory)}B together"),
        ]
    table = Table(
        show_header=False,
        title=Text(f"{found.name}: {size}"),
    )
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console.print(table)
    each = "one device" if found.devices == 1 else f"each of {found.devices} devices"
    say(
        f"In {found.dtype}. Memory is that of {each}; FLOPs are those of matrix "
        "products, 2 a multiply-add.",
        "dim",
    )


def _short(number: float | None) -> str:
    """Three digits and the prefix of the unit."""
    number = float(number or 0)
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {prefix}"
    return f"{number:.3g} "


def describe(name: str) -> None:
    """Prints the card of a model."""
    card = models.describe(name)
    with console.status("Counting parameters"):
        counted = models.count_parameters(name)
    published = "the paper gives no count"
    if card.parameters is not None:
        published = f"{card.parameters:,} parameters"
    rows = [
        ("paper", card.paper),
        ("task", card.task),
        ("inputs", _named(card.inputs)),
        ("outputs", _named(card.outputs)),
        ("published", published),
        ("counted", f"{counted:,} parameters"),
        ("notes", card.notes),
        (
            "in Python",
            f"from keras_attn import models\nmodel = models.create({name!r})",
        ),
    ]
    table = Table(show_header=False, title=Text(f"{name}: {card.title}"))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for label, text in rows:
        if text:
            table.add_row(label, Text(text))
    console.print(table)


def export_model(
    path: Path,
    artefact: Path,
    *,
    task: str | None,
    format: str | None,
    quantization: str,
    batch_size: int | None,
    sequence_length: int | None,
    max_length: int | None,
    num_beams: int | None,
    samples: Path | None,
    tokenizer: Path | None,
    tolerance: float | None,
    report: Path | None,
) -> None:
    """Exports a model and prints the report."""
    model, texts = _load_model(path, task)
    cutter = load_text_tokenizer(tokenizer) if tokenizer else None
    sample_inputs = _read_samples(samples, texts, sequence_length, cutter)
    if report is not None:
        # Found out now, not when all is done.
        report.parent.mkdir(parents=True, exist_ok=True)
    with working(f"Exporting to {artefact}"):
        done = export.export(
            model,
            artefact,
            format=format,
            quantization=_or_none(quantization),
            batch_size=batch_size,
            sequence_length=sequence_length,
            max_length=max_length,
            num_beams=num_beams,
            sample_inputs=sample_inputs,
            tokenizer=cutter,
            tolerance=tolerance,
        )
    if report is not None:
        done.save(report)
    say(str(done))


def verify_model(
    path: Path,
    artefact: Path,
    *,
    task: str | None,
    quantization: str,
    samples: Path | None,
    tokenizer: Path | None,
    sequence_length: int | None,
    tolerance: float | None,
) -> None:
    """Compares an artefact with its model and prints the report."""
    # Before the model, which takes longer: what is no artefact is told at once.
    runner = export.load_runner(artefact)
    model, texts = _load_model(path, task)
    cutter = load_text_tokenizer(tokenizer) if tokenizer else None
    sample_inputs = _read_samples(samples, texts, _fixed_length(runner), cutter)
    try:
        with working(f"Comparing {artefact} with Keras"):
            done = export.verify(
                model,
                artefact,
                quantization=_or_none(quantization),
                sample_inputs=sample_inputs,
                tokenizer=cutter,
                sequence_length=sequence_length,
                tolerance=tolerance,
            )
    except RefusedError:
        raise  # It did not run, so nothing was compared.
    except export.ExportError as error:
        raise CheckFailedError(f"{artefact} disagrees with {path}: {error}") from error
    say(str(done))
    say(f"{artefact} agrees with {path}.", "green")


def draw_attention(
    folder: Path, text: str, translation: str | None, layer: int | None, output: Path
) -> None:
    """Draws where the model of a folder looks, in a text or while it translates it."""
    if _is_checkpoint(folder):
        if translation is not None:
            raise ValueError(
                "--translation is for the folder of a `keras-attn train` run. "
                f"Received: {str(folder)!r}, a checkpoint"
            )
        _draw_self_attention(folder, text, layer, output)
        return
    if layer is not None:
        raise ValueError(
            "--layer is for a checkpoint folder; a translator has one alignment. "
            f"Received: --layer {layer}"
        )
    translator = Translator.load(folder)
    if translation is None:
        (translation,) = translator.translate([text])
    alignment = translator.align(text, translation)
    save_figure(plot_alignment(*alignment, title=text), output)
    say(translation)
    say(f"Alignment: {output}", "dim")


def _draw_self_attention(folder: Path, text: str, layer: int | None, output: Path):
    """A panel a head, of one layer of a checkpoint's model."""
    # Before the model, which takes longer.
    tokenizer = load_text_tokenizer(folder)
    with working("Loading the model"):
        model = models.load_checkpoint(folder, task="encoder")
    inputs = _text_inputs(tokenizer, model, [text], None)
    scores = list(capture_attention(model, inputs).items())
    if layer is not None and not 0 <= layer < len(scores):
        raise ValueError(
            f"--layer must be from 0 to {len(scores) - 1}, a layer of this model. "
            f"Received: --layer {layer}"
        )
    path, panels = scores[-1 if layer is None else layer]
    tokens = [tokenizer.pieces[index] for index in inputs["token_ids"][0]]
    save_figure(plot_alignment(panels[0], tokens, tokens, title=text), output)
    say(f"Attention of {path}: {output}", "dim")


def _is_checkpoint(path: Path) -> bool:
    """Whether a folder is one of Hugging Face's, and not one of a training run."""
    return (path / "config.json").exists() and not (path / "translator.json").exists()


def _load_model(
    path: Path, task: str | None
) -> tuple[keras.Model, Callable[[list[str], int | None], dict] | None]:
    """The model, and what makes inputs of texts, padded to a length, if it has such."""
    if path.is_dir() and _is_checkpoint(path):
        with working("Loading the model"), warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            model = models.load_checkpoint(path, task)
        for each in said:
            say(str(each.message), "yellow")
        return model, lambda texts, length: _text_inputs(
            load_text_tokenizer(path), model, texts, length
        )
    if task is not None:
        raise ValueError(
            "--task is for a checkpoint folder, with config.json and *.safetensors; a "
            f"model that Keras saved is what it is. Received: {str(path)!r}"
        )
    if path.is_dir():
        if not (path / "translator.json").exists():
            raise ValueError(
                f"MODEL must be {_KINDS_OF_MODEL}; this folder has neither config.json "
                f"nor translator.json. Received: {str(path)!r}"
            )
        translator = Translator.load(path)
        return translator.model, functools.partial(_translator_inputs, translator)
    if path.suffix != ".keras" or not zipfile.is_zipfile(path):
        raise ValueError(f"MODEL must be {_KINDS_OF_MODEL}. Received: {str(path)!r}")
    return keras.saving.load_model(path), None


def _fixed_length(runner) -> int | None:
    """The tokens of a row that an artefact takes; None where it takes any number."""
    for signature in runner.signatures.values():
        if "token_ids" in signature.inputs:
            shape = signature.inputs["token_ids"].shape
            # That of a step is one token a row.
            if len(shape) == 2:
                return shape[1] if isinstance(shape[1], int) else None
    return None


def _read_samples(
    path: Path | None,
    texts: Callable[[list[str], int | None], dict] | None,
    length: int | None,
    tokenizer: Any,
) -> dict[str, Any] | None:
    """Sample inputs by name; those made of texts are as wide as `length` says."""
    if path is None:
        return None
    if tokenizer is not None:
        return {"text": path.read_text(encoding="utf-8").splitlines()}
    if path.suffix == ".npz":
        try:
            return dict(np.load(path))
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"--samples must be a whole `.npz` of plain arrays ({error}). "
                f"Received: {str(path)!r}"
            ) from error
    if texts is None:
        raise ValueError(
            "--samples must be an `.npz` with one array an input where MODEL is a "
            f"`.keras` file. Received: {str(path)!r}"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return texts([line for line in lines if line.strip()], length)


def _text_inputs(
    tokenizer, model: keras.Model, texts: list[str], length: int | None
) -> dict[str, np.ndarray]:
    """What a model of a checkpoint takes of texts; wide as `length` or the longest."""
    names = set(model.input) if isinstance(model.input, dict) else set()
    if "token_ids" not in names:
        raise ValueError(
            "MODEL must be a model of text where there is a text. "
            f"Received: a model with the inputs {', '.join(sorted(names)) or 'images'}"
        )
    batch = tokenizer.encode_batch(
        texts, max_length=length, pad_to_max_length=length is not None
    )
    return {name: array for name, array in batch.items() if name in names}


def _translator_inputs(
    translator: Translator, lines: list[str], length: int | None
) -> dict[str, np.ndarray]:
    token_ids = translator.source_tokenizer.encode_batch(
        lines, length or translator.max_length
    )
    missing = (length or 0) - token_ids.shape[1]
    if missing > 0:
        token_ids = np.pad(token_ids, [(0, 0), (0, missing)])
    start = translator.target_tokenizer.start_token_id
    return {
        "token_ids": token_ids,
        "padding_mask": token_ids != translator.source_tokenizer.pad_token_id,
        "decoder_token_ids": np.full((len(token_ids), 1), start, "int32"),
    }


def _or_none(quantization: str) -> str | None:
    return None if quantization == "none" else quantization


def _named(texts: dict[str, str]) -> str:
    return "\n".join(f"{name}: {text}" for name, text in texts.items())
