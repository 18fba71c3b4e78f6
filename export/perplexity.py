"""Whether a generative artefact and Keras predict the same next tokens.

Legend: B batch, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_attn.decoding import next_state
from keras_attn.decoding.pair import MASKS
from keras_attn.export.runner import Runner
from keras_attn.export.samples import Inputs
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import PREFILL, STEP
from keras_attn.export.signatures import Signature

# Tokens that are predicted, over all rows.
_TOKENS = 64


@dataclass(frozen=True)
class NextTokens:
    """Both predictions for the tokens of the samples, given the tokens before.

    Attributes:
        perplexity: By `"keras"` and the `"artefact"`.
        agreement: Share of tokens for which the likeliest next token is the same.
    """

    perplexity: dict[str, float]
    agreement: float


def next_tokens(
    runner: Runner, signatures: list[Signature], specs: dict[str, Specs], sample: Inputs
) -> NextTokens | None:
    """Reads texts token by token, and measures how likely each token is.

    Args:
        runner: The artefact in its stock runtime.
        signatures: `[prefill, step]` in Keras.
        specs: The artefact's inputs, by signature and name.
        sample: The caller's inputs of `prefill`; its texts are the prompt's.

    Returns:
        None if there is nothing to measure: `step` takes no tokens, a prompt has a
        fixed length, or no text has two tokens.
    """
    prefill, step = signatures
    prompt = prefill.prompt or "token_ids"
    if "token_ids" not in step.inputs or prompt not in sample:
        return None
    if specs[PREFILL][prompt].shape[1] not in (None, 1):
        return None
    visible = specs[STEP].get("visible")
    limit = None if visible is None else visible.shape[1]
    losses, same = np.zeros(2), []
    for row, tokens in enumerate(_texts(sample, prompt, limit)):
        if len(same) >= _TOKENS:
            break
        inputs = {name: value[row : row + 1] for name, value in sample.items()}
        inputs[prompt] = tokens[None, :1]
        if MASKS.get(prompt) in inputs:
            mask = inputs[MASKS[prompt]]
            inputs[MASKS[prompt]] = np.ones((1, 1), mask.dtype)
        expected = _Reader(prefill.reference, step.reference, step, specs)
        found = _Reader(
            lambda x: runner(x, PREFILL), lambda x: runner(x, STEP), step, specs
        )
        for number, token in enumerate(tokens[1 : 1 + _TOKENS - len(same)]):
            logits = [
                reader.read(inputs if number == 0 else tokens[number])
                for reader in (expected, found)
            ]
            if np.isnan(logits[0]).any():
                continue  # It predicts nothing.
            losses += [_loss(each, token) for each in logits]
            same.append(logits[0].argmax() == logits[1].argmax())
    if not same:
        return None
    with np.errstate(over="ignore"):  # Of a token that is masked.
        keras, artefact = np.exp(losses / len(same)).tolist()
    perplexity = {"keras": keras, "artefact": artefact}
    return NextTokens(perplexity, float(np.mean(same)))


def _texts(sample: Inputs, prompt: str, limit: int | None) -> list[np.ndarray]:
    """The real tokens of each row."""
    tokens = sample[prompt]
    mask = sample.get(MASKS.get(prompt, ""), np.ones_like(tokens))
    return [
        row[real.astype(bool)][:limit] for row, real in zip(tokens, mask, strict=True)
    ]


class _Reader:
    """Reads one text, a token at a time.

    Args:
        prefill: Function of the inputs of `prefill`.
        step: Function of the inputs of `step`.
        signature: The signature `step`.
        specs: The artefact's inputs, by signature and name.
    """

    def __init__(self, prefill, step, signature: Signature, specs: dict[str, Specs]):
        self._prefill, self._step = prefill, step
        self._names = tuple(signature.inputs)
        self._rows = [specs[name].batch or 1 for name in (PREFILL, STEP)]
        self._state: dict[str, Any] = {}

    def read(self, given) -> np.ndarray:
        """Logits (V,) after the inputs of `prefill`, or after a token."""
        if isinstance(given, dict):
            inputs = {k: np.repeat(v, self._rows[0], axis=0) for k, v in given.items()}
            self._state = {**inputs, **self._prefill(inputs)}
            first = {k: v[:1] for k, v in self._state.items()}
            self._state = {
                k: np.repeat(v, self._rows[1], axis=0) for k, v in first.items()
            }
        else:
            token = np.full(self._rows[1], given, "int32")
            state = {**self._state, "token_ids": token}
            inputs = {name: state[name] for name in self._names}
            self._state = next_state(state, self._step(inputs))
        return np.asarray(self._state["logits"])[0]


def _loss(logits: np.ndarray, token: int) -> float:
    """-log p of a token."""
    logits = logits.astype("float64") - logits.max()
    return float(np.log(np.exp(logits).sum()) - logits[token])
