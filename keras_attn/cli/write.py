"""What `keras-attn generate` does: reads a folder, and writes on behind a prompt."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_attn.cli.terminal import console, working
from keras_attn.data import (
    ByteLevelBPETokenizer,
    StreamDecoder,
    load_text_tokenizer,
    load_tokenizer,
)
from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.models import load_checkpoint

_MOST = 64


def write(
    folder: Path,
    prompt: str,
    *,
    max_new_tokens: int | None,
    stops: Sequence[str],
    chance: Mapping[str, Any],
    num_beams: int | None,
) -> None:
    """Prints what the model of a folder writes behind a prompt."""
    if "" in stops:
        raise ValueError("--stop must be a text. Received: --stop ''")
    # Before the model, which takes longer.
    tokenizer = _load_tokenizer(folder)
    with working("Loading the model"):
        model = _load_model(folder)
    prompt_ids = _encode(tokenizer, prompt)
    options = {
        "strategy": Greedy() if num_beams is None else Beam(num_beams),
        "end_token_id": tokenizer.end_token_id,
    }
    if chance:
        options["strategy"] = Sample(**chance)
    length = _length(model, len(prompt_ids), max_new_tokens)
    inputs = {"token_ids": np.array([prompt_ids])}
    pieces = _Pieces(tokenizer, prompt_ids)
    text = _Text(stops)
    status = console.status("Reading the prompt")
    status.start()
    try:
        if num_beams is not None:
            answer = generate(model, inputs, length, **options)
            status.stop()
            for token in answer.token_ids[0].tolist():
                if token == tokenizer.end_token_id:
                    break
                text.feed(pieces.feed(token))
        else:

            def on_token(tokens):
                status.stop()
                if tokens[0] != tokenizer.end_token_id:
                    text.feed(pieces.feed(int(tokens[0])))

            generate(model, inputs, length, on_token=on_token, **options)
        text.feed(pieces.finish())
        text.finish()
    except _StoppedError:
        pass
    finally:
        status.stop()
    print(flush=True)


class _StoppedError(Exception):
    """One of the texts to stop at has been written."""


class _Text:
    """Prints text as it comes, up to the first of the texts to stop at."""

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> None:
        """Prints all that can't be the beginning of a stop, and raises at a stop."""
        self._held += text
        found = [self._held.find(stop) for stop in self._stops if stop in self._held]
        if found:
            self._print(min(found))
            raise _StoppedError
        self._print(len(self._held) - self._doubtful())

    def finish(self) -> None:
        """Prints what was held back."""
        self._print(len(self._held))

    def _doubtful(self) -> int:
        """How much at the end may yet become a stop."""
        return max(
            (
                size
                for stop in self._stops
                for size in range(1, len(stop))
                if self._held.endswith(stop[:size])
            ),
            default=0,
        )

    def _print(self, size: int) -> None:
        print(self._held[:size], end="", flush=True)
        self._held = self._held[size:]


class _Pieces:
    """The text of tokens that come one by one, with any tokenizer."""

    def __init__(self, tokenizer, prompt_ids: list[int]):
        self._tokenizer = tokenizer
        self._stream = None
        if isinstance(tokenizer, ByteLevelBPETokenizer):
            self._stream = StreamDecoder(tokenizer)
        # Others may join a piece to the one before, so the prompt is decoded too.
        self._ids = list(prompt_ids)
        self._done = len(tokenizer.decode(self._ids))

    def feed(self, token: int) -> str:
        """What is new of the text."""
        if self._stream is not None:
            return self._stream.feed(token)
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        new, self._done = text[self._done :], max(self._done, len(text))
        return new

    def finish(self) -> str:
        """What was held back."""
        return self._stream.finish() if self._stream is not None else ""


def _load_tokenizer(folder: Path):
    ours = folder / "tokenizer.json"
    if (folder / "translator.json").is_file():
        raise ValueError(
            "--model is the folder of a translator, which has no prompt to go on "
            f"with; try `keras-attn attention`. Received: {str(folder)!r}"
        )
    if (folder / "model.keras").is_file() and ours.is_file():
        try:
            return load_tokenizer(ours)
        except ValueError:
            pass  # Then it is Hugging Face's file of that name.
    return load_text_tokenizer(folder)


def _load_model(folder: Path) -> Any:
    model: Any = None
    if not (folder / "config.json").is_file() and (folder / "model.keras").is_file():
        model = keras.saving.load_model(folder / "model.keras")
    else:
        try:
            model = load_checkpoint(folder, task="causal_lm")
        except ValueError as error:
            # Of a family that has no such task.
            if not str(error).startswith("`task` must be"):
                raise
    if not hasattr(model, "incremental") or "decoder_token_ids" in model.input:
        raise ValueError(
            "--model must be of a model that goes on with a text, such as GPT-2; this "
            f"one can't. Received: {str(folder)!r}"
        )
    return model


def _encode(tokenizer, prompt: str) -> list[int]:
    ids = list(tokenizer.encode(prompt))
    if not ids and getattr(tokenizer, "start_token_id", None) is not None:
        ids = [tokenizer.start_token_id]
    if not ids:
        raise ValueError(
            f"--prompt must have a token at least. Received: --prompt {prompt!r}"
        )
    return ids


def _length(model, prompt_length: int, max_new_tokens: int | None) -> int:
    """How many tokens to write."""
    limit = getattr(model, "max_length", None)
    if limit is None:
        return max_new_tokens or _MOST
    left = limit - prompt_length
    if left < 1:
        raise ValueError(
            f"--prompt must have at most {limit - 1} tokens: the model has {limit} "
            f"positions. Received: a prompt of {prompt_length} tokens"
        )
    if max_new_tokens is None:
        return min(_MOST, left)
    if max_new_tokens > left:
        raise ValueError(
            f"--max-new-tokens must be at most {left} behind this prompt of "
            f"{prompt_length} tokens: the model has {limit} positions. "
            f"Received: --max-new-tokens {max_new_tokens}"
        )
    return max_new_tokens
