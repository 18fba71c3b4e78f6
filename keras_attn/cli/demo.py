"""`keras-attn demo`: RNNsearch learns to read dates, and is exported three ways.

    keras-attn demo --run-dir runs/demo

Two cores, no accelerator, no data: under five minutes. Expect at least 98 % exact
matches on 1,000 unseen dates, and the same translations from every artefact as from
Keras.
"""

import importlib.util
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.table import Table

from keras_attn.cli.options import Panel
from keras_attn.cli.run_owner import own
from keras_attn.cli.runs import claim, clear, is_interrupted, read_settings
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import (
    CheckFailedError,
    console,
    fit_verbosity,
    in_parts,
    say,
    working,
)
from keras_attn.extras import requires_extra

if TYPE_CHECKING:
    from keras_attn.export import ExportReport
    from keras_attn.translator import Translator

Pairs = list[tuple[str, str]]

_OPTIONS = Panel()
_SEED = 0
_LEARNING_RATE = 4e-3
_BATCH_SIZE = 64
# Rows that an export compares and times. LiteRT's batch is fixed at the same size, so
# that the timings of the formats are comparable.
_EXPORT_BATCH = 8
_ARTEFACTS = {
    "SavedModel": "saved_model",
    "LiteRT": "dates.tflite",
    "ONNX": "dates.onnx",
}
_EXPORT_PACKAGES = ("tf2onnx", "onnx", "onnxruntime", "ai_edge_litert")
_GREEDY, _BEAM = "Greedy", "Beam of 4"


@dataclass(frozen=True)
class Plan:
    """The sizes of a demo.

    Attributes:
        train: Number of training pairs.
        validation: Number of pairs to score on after each epoch.
        test: Number of unseen dates to evaluate on.
        compared: Number of test dates that each artefact also translates.
        epochs: Passes over the training pairs.
        embedding_dim: Width of a character's embedding.
        hidden_dim: Units of each GRU and of the attention; the maxout has half.
        required: Exact match that the test must reach, in [0, 1].
    """

    train: int
    validation: int
    test: int
    compared: int
    epochs: int
    embedding_dim: int
    hidden_dim: int
    required: float


_FULL = Plan(20_000, 200, 1_000, 200, 3, 32, 128, required=0.98)
_QUICK = Plan(320, 16, 32, 16, 1, 8, 16, required=0.0)


def demo(
    run_dir: Annotated[
        Path,
        _OPTIONS.option(
            "Output folder. An interrupted demo in it is resumed; a finished one is "
            "replaced.",
            file_okay=False,
        ),
    ] = Path("runs/demo"),
    quick: Annotated[
        bool,
        _OPTIONS.option(
            "A smoke test of half a minute: every step, on a few hundred dates; the "
            "model does not learn the task, and no accuracy is required.",
            "--quick",
        ),
    ] = False,
) -> None:
    """Train RNNsearch to read dates, plot its attention and export it to three formats.

    Trains on 20,000 dates as people write them ("the third of march 2027"), asks
    for ISO 8601 ("2027-03-03") of 1,000 unseen days, draws the alignment, and
    compares SavedModel, LiteRT and ONNX with Keras. Needs no data, and five minutes
    on two cores.

    Example: keras-attn demo --run-dir runs/demo
    """
    _check_installed()
    with importing_tensorflow():
        from keras_attn.data import split_dates
        from keras_attn.translator import Translator, fit_translator

    start = time.perf_counter()
    plan = _QUICK if quick else _FULL
    train, test = split_dates(plan.train, plan.validation + plan.test, _SEED)
    validation, test = test[: plan.validation], test[plan.validation :]
    _prepare_folder(run_dir, plan)

    _heading("Data")
    say(f"{len(train):,} dates as people write them, and in ISO 8601:")
    for source, target in train[:3]:
        say(f"  {source}  →  {target}")
    if (run_dir / "translator.json").is_file():
        translator = Translator.load(run_dir)
    else:
        translator = _build(plan, train + validation + test)

    _heading("Train")
    count = translator.model.count_params()
    say(f"RNNsearch, {count:,} parameters, trained from random weights")
    if quick:
        say("A smoke test: too few dates to learn from, so expect wrong answers.")
    fit_translator(
        translator,
        _sides(train),
        _sides(validation),
        run_dir,
        epochs=plan.epochs,
        batch_size=_BATCH_SIZE,
        learning_rate=_LEARNING_RATE,
        num_scored=plan.validation,
        seed=_SEED,
        verbose=fit_verbosity(),
    )
    say(f"TensorBoard: tensorboard --logdir {run_dir / 'logs'}")

    _heading("Ask")
    accuracy = _evaluate(translator, test)

    _heading("Look inside")
    _plot(translator, test, run_dir)

    _heading("Ship")
    failures = _ship(translator, test[: plan.compared], run_dir)
    if accuracy < plan.required:
        failures.append(
            f"{accuracy:.1%} of the dates are right; {plan.required:.0%} are required"
        )
    if failures:
        raise CheckFailedError("; ".join(failures))
    minutes, seconds = divmod(round(time.perf_counter() - start), 60)
    say(f"\nAll checks passed, in {minutes} min {seconds} s.", "green")


def _heading(text: str) -> None:
    say(f"\n{text}", "bold cyan")


def _prepare_folder(run_dir: Path, plan: Plan) -> None:
    """Keeps an interrupted demo in the folder; removes any other demo."""
    settings = {"command": "demo", **vars(plan)}
    own(run_dir)
    found = read_settings(run_dir)
    if found is not None and found.get("command") == "demo":
        if found == settings and is_interrupted(run_dir):
            say(f"Resuming the interrupted demo in {run_dir}.")
        else:
            say(f"Replacing the earlier demo in {run_dir}.")
            clear(run_dir, "alignment.png", "alignment.gif", "exported")
    claim(run_dir, settings)


def _build(plan: Plan, pairs: Pairs) -> "Translator":
    """An untrained translator, with the characters of the pairs as its tokens."""
    import keras

    from keras_attn import models
    from keras_attn.data import CharacterTokenizer
    from keras_attn.translator import Translator

    keras.utils.set_random_seed(_SEED)
    sides = list(zip(*pairs, strict=True))
    # The longest text and its end token, rounded up to the multiple of 8 that batches
    # are padded to.
    longest = max(len(text) for side in sides for text in side)
    source_tokenizer, target_tokenizer = map(CharacterTokenizer.train, sides)
    model = models.create(
        "rnnsearch_50",
        source_vocabulary_size=source_tokenizer.vocabulary_size,
        target_vocabulary_size=target_tokenizer.vocabulary_size,
        embedding_dim=plan.embedding_dim,
        hidden_dim=plan.hidden_dim,
        attention_dim=plan.hidden_dim,
        maxout_dim=plan.hidden_dim // 2,
    )
    return Translator(
        model, source_tokenizer, target_tokenizer, max_length=(longest // 8 + 1) * 8
    )


def _evaluate(translator: "Translator", test: Pairs) -> float:
    """Translates the unseen dates; prints and returns the exact match."""
    from keras_attn.metrics import exact_match

    sources, references = _sides(test)
    translations = []
    for part in in_parts(sources, 100, "Translating unseen dates"):
        translations += translator.translate(part)
    accuracy = exact_match(translations, references)
    right = sum(map(str.__eq__, translations, references))
    say(f"{right:,} of {len(test):,} dates right, on unseen days: {accuracy:.1%}")
    rows = zip(sources, references, translations, strict=True)
    wrong = [row for row in rows if row[1] != row[2]]
    for source, reference, translation in wrong[:3]:
        say(f"  {source}  →  {translation}, not {reference}")
    return accuracy


def _check_installed() -> None:
    """Raises before minutes of training if a package of the export is missing."""
    for package in _EXPORT_PACKAGES:
        with requires_extra("export", "The demo exports to ONNX and LiteRT, so it"):
            if importlib.util.find_spec(package) is None:
                raise ImportError(name=package)


def _plot(translator: "Translator", test: Pairs, run_dir: Path) -> None:
    """Plots the alignment of a date in words, the most instructive kind."""
    from keras_attn.viz import (
        alignment_frames,
        plot_alignment,
        save_animation,
        save_figure,
    )

    words = [text for text, _ in test if not any(map(str.isdigit, text))]
    text = (words or [test[0][0]])[0]
    alignment = translator.align(text)
    save_figure(plot_alignment(*alignment, title=text), run_dir / "alignment.png")
    frames = alignment_frames(*alignment, title=text)
    save_animation(frames, run_dir / "alignment.gif")
    say(f"Attention while it read “{text}”: {run_dir / 'alignment.png'}")
    say(f"The same, letter by letter: {run_dir / 'alignment.gif'}")


def _ship(translator: "Translator", pairs: Pairs, run_dir: Path) -> list[str]:
    """Exports to every format, runs the artefacts, prints the table.

    Returns:
        One line per difference from Keras; empty if there are none.
    """
    from keras_attn import export
    from keras_attn.decoding import Beam, Greedy

    strategies = {_GREEDY: Greedy(), _BEAM: Beam(num_beams=4)}
    folder = run_dir / "exported"
    folder.mkdir(exist_ok=True)
    sources, _ = _sides(pairs)
    expected = {
        name: translator.translate(sources, strategy=strategy)
        for name, strategy in strategies.items()
    }
    table = _table(len(sources))
    failures = []
    for format, file in _ARTEFACTS.items():
        with working(f"{format}: exporting and comparing"):
            report = _export(translator, sources, folder / file)
            runner = export.load_runner(folder / file)
            equal = {}
            for name, strategy in strategies.items():
                translations = translator.translate(
                    sources, strategy=strategy, runner=runner, batch_size=_EXPORT_BATCH
                )
                equal[name] = sum(map(str.__eq__, translations, expected[name]))
        table.add_row(
            format,
            f"{report.bytes / 1e6:.2f} MB",
            f"{report.max_abs_diff:.1e}",
            *(f"{report.latency_ms[name]:.2f} ms" for name in ("prefill", "step")),
            *(f"{count} / {len(sources)}" for count in equal.values()),
        )
        failures += [
            f"{format}, {name.lower()}: {len(sources) - count} of {len(sources)} "
            "dates differ from Keras"
            for name, count in equal.items()
            if count < len(sources)
        ]
    console.print(table)
    say(f"In {folder}: {', '.join(_ARTEFACTS.values())}")
    return failures


def _export(translator: "Translator", sources: list[str], path: Path) -> "ExportReport":
    """Exports the two decoding functions, with a fixed shape for LiteRT."""
    import numpy as np

    from keras_attn import export

    length = translator.max_length
    token_ids = np.zeros((_EXPORT_BATCH, length), "int32")
    for row, text in zip(token_ids, sources, strict=False):
        ids = translator.source_tokenizer.encode(text)
        row[: len(ids)] = ids
    sample = {
        "token_ids": token_ids,
        "padding_mask": token_ids != translator.source_tokenizer.pad_token_id,
        "decoder_token_ids": np.full(
            (_EXPORT_BATCH, 1), translator.target_tokenizer.start_token_id, "int32"
        ),
    }
    fixed = {}
    if path.suffix == ".tflite":
        # Its recurrent layers need a fixed batch; `step` stays open, for beams.
        fixed = {
            "batch_size": _EXPORT_BATCH,
            "sequence_length": {name: sample[name].shape[1] for name in sample},
        }
    return export.export(
        translator.model.incremental(), path, sample_inputs=sample, **fixed
    )


def _table(compared: int) -> Table:
    table = Table(
        "Format", title=f"Each artefact compared with Keras, on {compared} dates"
    )
    for label in ("Size", "Max diff", "Prefill", "Step", _GREEDY, _BEAM):
        table.add_column(label, justify="right")
    table.caption_justify = "left"
    table.caption = (
        f"Prefill, Step: time per call of {_EXPORT_BATCH} dates\n"
        "Greedy, Beam: dates translated as by Keras"
    )
    return table


def _sides(pairs: Pairs) -> tuple[list[str], list[str]]:
    return [source for source, _ in pairs], [target for _, target in pairs]
