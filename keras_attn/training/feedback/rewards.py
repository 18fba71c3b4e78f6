"""Rewards of completions: a reward model, or any function of texts.

Legend: B rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_attn.training.feedback.completions import Completions

# From prompts and completions to one number for each completion.
Reward = keras.Model | Callable[[list[str], list[str]], Sequence[float]]

_LARGEST = float(np.finfo(np.float32).max)


def reward_function(
    reward: Reward, tokenizer: Any, pad_token_id: int
) -> Callable[[Completions, str], np.ndarray]:
    """A function that scores completions by any kind of reward.

    Args:
        reward: The model or the function.
        tokenizer: An object with `decode`, which a function needs.
        pad_token_id: Padding of a reward model's inputs.

    Returns:
        A function of completions and of what to call them in a message, to float32
        (B,). It raises a `ValueError` unless every number is finite.

    Raises:
        TypeError: If `reward` is neither a model nor a function, or a function without
            a tokenizer.
    """
    if not callable(reward):
        raise TypeError(
            "`reward` must be a Keras model, or a function of prompts and completions. "
            f"Received: reward={reward!r}"
        )
    model: Any = reward if isinstance(reward, keras.Model) else None
    if model is None and not hasattr(tokenizer, "decode"):
        raise TypeError(
            "`tokenizer` must be given, with a method `decode`, if `reward` is a "
            f"function of texts. Received: tokenizer={tokenizer!r}"
        )

    def score(completions: Completions, label: str) -> np.ndarray:
        if model is not None:
            token_ids, mask = completions.right_padded(pad_token_id)
            found = model.predict_on_batch(
                {"token_ids": token_ids, "padding_mask": mask}
            )
        else:
            found = reward(*completions.texts(tokenizer))
        scores = np.asarray(found, "float64")
        rows = len(completions.token_ids)
        if scores.shape not in ((rows,), (rows, 1)):
            raise ValueError(
                "`reward` must return one number for each completion. Received: "
                f"{scores.shape} for {rows} completions of {label}"
            )
        scores = scores.reshape(-1)
        for row in np.flatnonzero(~(np.abs(scores) <= _LARGEST)):
            texts = ""
            if tokenizer is not None:
                prompts, answers = completions.texts(tokenizer)
                texts = f": {prompts[row][-50:]!r} {answers[row][:50]!r}"
            raise ValueError(
                "`reward` must return finite numbers; the batch was not learned. "
                f"Received: {scores[row]} for row {row} of {label}{texts}"
            )
        return scores.astype("float32")

    return score
