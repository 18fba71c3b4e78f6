"""The text of new tokens, one after the other, up to a stop text."""

from collections.abc import Sequence
from typing import Any


class TokenStream:
    """Decodes tokens one by one, with any tokenizer.

    Args:
        tokenizer: The tokenizer.
        prompt_ids: The tokens before them, whose text is left out.
    """

    def __init__(self, tokenizer: Any, prompt_ids: list[int]):
        from keras_attn.data import ByteLevelBPETokenizer, StreamDecoder

        self._tokenizer = tokenizer
        self._stream = None
        if isinstance(tokenizer, ByteLevelBPETokenizer):
            self._stream = StreamDecoder(tokenizer)
        # Other tokenizers may join a token to the one before: decode the prompt too.
        self._ids = list(prompt_ids)
        self._done = len(tokenizer.decode(self._ids))

    def feed(self, token: int) -> str:
        """The text that this token adds."""
        if self._stream is not None:
            return self._stream.feed(token)
        self._ids.append(token)
        # A character of several tokens is held back until it is complete.
        return self._new(self._tokenizer.decode(self._ids).rstrip("\ufffd"))

    def finish(self) -> str:
        """The remaining text."""
        if self._stream is not None:
            return self._stream.finish()
        return self._new(self._tokenizer.decode(self._ids))

    def _new(self, text: str) -> str:
        new, self._done = text[self._done :], max(self._done, len(text))
        return new


class StoppedError(Exception):
    """One of the stop texts has been generated."""


class StoppableText:
    """Prints text as it is generated, up to the first of the stop texts.

    Args:
        stops: The stop texts.
    """

    def __init__(self, stops: Sequence[str]):
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> None:
        """Prints text that cannot begin a stop text; raises at a stop text."""
        self._held += text
        found = [self._held.find(stop) for stop in self._stops if stop in self._held]
        if found:
            self._print(min(found))
            raise StoppedError
        self._print(len(self._held) - self._possible_stop())

    def finish(self) -> None:
        """Prints the remaining text."""
        self._print(len(self._held))

    def _possible_stop(self) -> int:
        """Number of characters at the end that may begin a stop text."""
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
