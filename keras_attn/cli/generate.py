"""`keras-attn generate`: the continuation of a prompt, printed as it is generated.

Opening a model: `cli/opened_model.py`; decoding: `decoding/generate.py`; several
continuations: `cli/numbered_texts.py`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from keras_attn.cli.generation_settings import note_settings
from keras_attn.cli.numbered_texts import Continuation, Scorer, print_numbered
from keras_attn.cli.opened_model import (
    given_tokenizer,
    is_checkpoint,
    is_translator,
    load_folder_tokenizer,
    local_model,
    open_model,
)
from keras_attn.cli.options import Panel, TokenizerFolder, model_with_weights
from keras_attn.cli.printed_text import StoppableText, StoppedError, TokenStream
from keras_attn.cli.startup import importing_tensorflow
from keras_attn.cli.terminal import console

if TYPE_CHECKING:
    import keras

    from keras_attn.export import Runner

_MAX_NEW_TOKENS = 64
_TEXT, _STRATEGY = Panel("Text"), Panel("How the next token is chosen")
_SEVERAL = Panel("Several texts")


def generate(
    model: Annotated[
        str,
        _TEXT.option(
            "A decoder such as GPT-2: a Hugging Face checkpoint with its tokenizer "
            "(config.json, *.safetensors, vocab.json, merges.txt) or its name, "
            "hf://owner/name; a run folder "
            "(model.keras, and tokenizer.json or vocab.json with merges.txt), or, "
            "with --tokenizer, a `.keras` file; or what was exported of one: a "
            "SavedModel, `*.tflite` or `*.onnx`, with the tokenizer of the folder that "
            "it is in. The folder of a translator translates the prompt.",
            metavar="PATH",
            callback=model_with_weights,
        ),
    ],
    prompt: Annotated[
        str, _TEXT.option("The text to continue; quote it.", metavar="TEXT")
    ],
    max_new_tokens: Annotated[
        int | None,
        _TEXT.count(
            "Maximum number of tokens to generate. Default: 64, or as many as the "
            "model has positions for."
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        _TEXT.option(
            "Stop before this text, as well as at the model's own end token. May be "
            "given several times.",
            metavar="TEXT",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        _STRATEGY.number(
            "Sample; below 1 favours probable tokens, above 1 is more varied.", min=0.01
        ),
    ] = None,
    top_k: Annotated[
        int | None, _STRATEGY.count("Sample among the N most probable tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        _STRATEGY.number(
            "Sample among the fewest tokens whose probabilities sum to at least X.",
            min=0.01,
            max=1.0,
        ),
    ] = None,
    seed: Annotated[
        int | None, _STRATEGY.count("Sample; the same seed gives the same text.", min=0)
    ] = None,
    beam: Annotated[
        int | None,
        _STRATEGY.count("Beam search with N beams; the text is printed at the end."),
    ] = None,
    num_samples: Annotated[
        int | None,
        _SEVERAL.count(
            "Print N continuations, numbered, the best first, each after its score: N "
            "samples, or with --beam the N best of the beams."
        ),
    ] = None,
    rank: Annotated[
        Literal["per_token", "total"] | None,
        _SEVERAL.option(
            "The score of a sample. per_token (the default): the mean log-probability "
            "of its tokens, from the model itself, before --temperature, --top-k and "
            "--top-p. total: their sum, which favours short texts. A beam is ranked by "
            "its search."
        ),
    ] = None,
    scorer: Annotated[
        str | None,
        _SEVERAL.folder_or_name(
            "Folder of another language model with its tokenizer, whose "
            "log-probabilities of the texts, with their end token or stop text, are "
            "the scores, also of beams."
        ),
    ] = None,
    tokenizer: TokenizerFolder = None,
    task: Annotated[
        str | None,
        _TEXT.option(
            "The head to build from a checkpoint folder: one that continues a text. "
            "Default: causal_lm.",
            metavar="TASK",
        ),
    ] = None,
) -> None:
    """Generate a continuation of a prompt, or its translation.

    Prints each token of a continuation as it is generated. The next token is the most
    probable one, unless one of the options below selects sampling or beam search. With
    --num-samples, several continuations are printed at the end, the best first.

    Example: keras-attn generate --model checkpoints/gpt2 --prompt "Once upon a time"
    --top-p .9

    Example: keras-attn generate --model checkpoints/gpt2 --prompt "Once upon a time"
    --num-samples 10 --top-k 40
    """
    sampling = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
    }
    sampling = {name: value for name, value in sampling.items() if value is not None}
    if beam is not None and sampling:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in sampling)
        raise typer.BadParameter(
            f"--beam does not sample; leave out --beam or {names}."
        )
    for option, value in {"--rank": rank, "--scorer": scorer}.items():
        if value is not None and num_samples is None:
            raise typer.BadParameter(f"{option} needs --num-samples.")
    if rank is not None and beam is not None and scorer is None:
        raise typer.BadParameter(
            "--rank is for samples, or for texts with a --scorer; --beam ranks its "
            "texts itself."
        )
    if "" in (stop or []):
        raise ValueError("--stop must not be empty. Received: --stop ''")
    with importing_tensorflow():
        from keras_attn.decoding import Beam, Greedy, Sample

    strategy = Greedy() if beam is None else Beam(beam)
    if sampling or (num_samples is not None and beam is None):
        strategy = Sample(**sampling)
    if beam is not None and num_samples is not None and num_samples > beam:
        raise typer.BadParameter(
            f"--num-samples must be at most the {beam} beams of --beam. "
            f"Received: --num-samples {num_samples}."
        )
    path = local_model(model)
    runner = _load_exported(path)
    # What was exported is used with the files of the folder that it is in.
    folder = path if runner is None else path.resolve().parent
    inputs = set() if runner is None else set(runner.signatures["prefill"].inputs)
    if is_translator(folder) and (runner is None or "decoder_token_ids" in inputs):
        unused = {
            "--max-new-tokens": max_new_tokens,
            "--stop": stop,
            "--num-samples": num_samples,
            "--tokenizer": tokenizer,
            "--task": task,
        }
        _print_translation(folder, prompt, strategy, unused, runner)
        return
    # Before the model, which takes longer to load.
    text_tokenizer = given_tokenizer(folder, tokenizer)
    if runner is None:
        network = _load_decoder(path, task)
    else:
        _check_continues(path, task, inputs)
        network = runner
    note_settings(folder, text_tokenizer.end_token_id)
    prompt_ids = _encode(text_tokenizer, prompt)
    length = _count_new_tokens(network, len(prompt_ids), max_new_tokens)
    if num_samples is not None:
        print_numbered(
            network,
            text_tokenizer,
            prompt,
            prompt_ids,
            length,
            strategy,
            stop or [],
            num_samples,
            is_total=rank == "total",
            scorer=None if scorer is None else _load_scorer(scorer),
        )
        return
    _print_continuation(
        network, text_tokenizer, prompt_ids, length, strategy, stop or []
    )


def _print_translation(
    folder: Path, text: str, strategy: Any, unused: dict[str, Any], runner: Any
) -> None:
    """Prints the translation of the prompt, for the folder of a translator."""
    from keras_attn.translator import Translator

    for option, value in unused.items():
        if value not in (None, []):
            raise typer.BadParameter(
                f"{option} is for models that continue a text; a translator has its "
                "own tokenizers and stops at its end token."
            )
    with console.status("Translating"):
        translator = Translator.load(folder)
        (translation,) = translator.translate([text], strategy=strategy, runner=runner)
    print(translation, flush=True)


def _print_continuation(
    model: "keras.Model",
    tokenizer: Any,
    prompt_ids: list[int],
    length: int,
    strategy: Any,
    stops: Sequence[str],
) -> None:
    """Prints tokens as they are generated; with a beam search, at its end."""
    import numpy as np

    from keras_attn.decoding import Beam, generate

    end = tokenizer.end_token_id
    tokens = TokenStream(tokenizer, prompt_ids)
    text = StoppableText(stops)
    status = console.status("Reading the prompt")

    def on_token(row):
        status.stop()
        if row[0] != end:
            text.feed(tokens.feed(int(row[0])))

    is_beam = isinstance(strategy, Beam)
    status.start()
    try:
        answer = generate(
            model,
            {"token_ids": np.array([prompt_ids])},
            length,
            strategy=strategy,
            end_token_id=end,
            on_token=None if is_beam else on_token,
        )
        status.stop()
        if is_beam:
            for token in answer.token_ids[0].tolist():
                if token == end:
                    break
                text.feed(tokens.feed(token))
        text.feed(tokens.finish())
        text.finish()
    except StoppedError:
        pass
    finally:
        status.stop()
    print(flush=True)


def _load_exported(path: Path) -> "Runner | None":
    """What was exported of a decoder; None for a model of Keras.

    Raises:
        ValueError: If it was exported, but is not a decoder.
    """
    from keras_attn.export import load_runner
    from keras_attn.export.formats import format_at

    is_run = is_checkpoint(path) or (path / "model.keras").is_file()
    if is_run or format_at(path) is None:
        return None
    runner = load_runner(path)
    if not {"prefill", "step"} <= set(runner.signatures):
        raise ValueError(
            "--model must be exported from a generative model, with the signatures "
            "prefill and step; `keras-attn export` writes them for a model of "
            f"causal_lm. Received: {str(path)!r}, with the signatures "
            f"{', '.join(runner.signatures)}"
        )
    return runner


def _check_continues(path: Path, task: str | None, inputs: set[str]) -> None:
    """Raises if what was exported needs more than a text, or a task is given."""
    if task is not None:
        raise ValueError(
            "--task is for a checkpoint folder; an exported model has its head. "
            f"Received: --task {task!r}, --model {str(path)!r}"
        )
    if not {"token_ids"} <= inputs <= {"token_ids", "padding_mask"}:
        raise ValueError(
            "--model must be a model that continues a text, such as GPT-2. "
            f"Received: {str(path)!r}, with the inputs {', '.join(sorted(inputs))}"
        )


def _load_decoder(path: Path, task: str | None, option: str = "--model") -> Any:
    chosen = "causal_lm" if task is None and is_checkpoint(path) else task
    model: Any = None
    try:
        model = open_model(path, chosen).model
    except ValueError as error:
        # The family has no language model.
        if task is not None or not str(error).startswith("`task` must be"):
            raise
    if not hasattr(model, "incremental") or "decoder_token_ids" in model.input:
        if task is not None:
            raise ValueError(
                "--task must be one that continues a text, such as causal_lm. "
                f"Received: --task {task!r}"
            )
        raise ValueError(
            f"{option} must be a model that continues a text, such as GPT-2. "
            f"Received: {str(path)!r}"
        )
    return model


def _load_scorer(name: str) -> Scorer:
    """The log-probabilities of texts after a prompt by the model of a folder."""
    from keras_attn.decoding import log_likelihood

    path = local_model(name, "--scorer")
    tokenizer = load_folder_tokenizer(path)
    model = _load_decoder(path, None, "--scorer")

    end = getattr(tokenizer, "end_token_id", None)

    def score(prompt: str, texts: Sequence[Continuation]):
        known = _encode(tokenizer, prompt)
        rows = [_encode(tokenizer, prompt, each.whole) for each in texts]
        for row, each in zip(rows, texts, strict=True):
            row += [end] * (each.is_ended and end is not None)
        # A token may join the end of the prompt with what follows.
        given = [max(1, _count_common(known, row)) for row in rows]
        try:
            found = log_likelihood(model, rows, num_given=given)
        except ValueError as error:
            raise ValueError(f"--scorer cannot score the texts: {error}") from error
        counts = zip(rows, given, strict=True)
        return found.tolist(), [len(row) - count for row, count in counts]

    return score


def _count_common(first: list[int], second: list[int]) -> int:
    """The number of tokens at the beginning that are the same."""
    pairs = enumerate(zip(first, second, strict=False))
    most = min(len(first), len(second))
    return next((index for index, (one, other) in pairs if one != other), most)


def _encode(tokenizer: Any, prompt: str, text: str = "") -> list[int]:
    """The ids of a prompt and of what follows it.

    An empty prompt is the start token, if there is one.
    """
    ids = list(tokenizer.encode_prompt(prompt + text))
    start = getattr(tokenizer, "start_token_id", None)
    if start is not None and not tokenizer.encode_prompt(prompt):
        ids = [start, *ids]
    if not ids:
        raise ValueError(
            f"--prompt must have at least one token. Received: --prompt {prompt!r}"
        )
    return ids


def _count_new_tokens(
    model: Any, prompt_length: int, max_new_tokens: int | None
) -> int:
    """The number of tokens to generate."""
    limit = getattr(model, "max_length", None)
    if limit is None:
        return max_new_tokens or _MAX_NEW_TOKENS
    left = limit - prompt_length
    if left < 1:
        raise ValueError(
            f"--prompt must have at most {limit - 1} tokens: the model has {limit} "
            f"positions. Received: a prompt of {prompt_length} tokens"
        )
    if max_new_tokens is None:
        return min(_MAX_NEW_TOKENS, left)
    if max_new_tokens > left:
        raise ValueError(
            f"--max-new-tokens must be at most {left} after this prompt of "
            f"{prompt_length} tokens: the model has {limit} positions. "
            f"Received: --max-new-tokens {max_new_tokens}"
        )
    return max_new_tokens
