"""`generate`: drives any incremental pair with any strategy."""

import weakref
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attn.checks import check_positive
from keras_attn.decoding.halves import (
    Halves,
    cache_length,
    compiled,
    halves_of,
    prompt_of,
)
from keras_attn.decoding.inputs import as_arrays, check_room, check_token, prepare
from keras_attn.decoding.loop import (
    CompiledLoop,
    Settings,
    decode,
    host_while,
    loop_inputs,
)
from keras_attn.decoding.pair import IncrementalPair
from keras_attn.decoding.strategies import Greedy, program_of
from keras_attn.kernels.runtime import is_tensorflow

# What was compiled for a model lives as long as the model.
_compiled = weakref.WeakKeyDictionary()
# No token has this id, so no row ever ends.
_NONE = (-1,)


class Generated(NamedTuple):
    """What `generate` returns.

    Attributes:
        token_ids: int32 (B, max_new_tokens), the new tokens with their end token;
            padding behind it.
        scores: float32 (B,), the log-probability of those tokens; for a beam divided
            by its length penalty.
    """

    token_ids: np.ndarray
    scores: np.ndarray


def generate(
    model,
    inputs,
    max_new_tokens,
    *,
    strategy=None,
    start_token_id=None,
    end_token_id=None,
    pad_token_id=0,
    on_token=None,
    jit_compile="auto",
):
    """Continues a prompt, one token at a time.

    Prompts of unequal length share a batch where the model takes a mask of them:
    padding, at the left, at the right or in between, has a slot but no position, and
    nobody sees it, so a row's text is the one it gets alone.

    A model with `incremental(max_length=…)` keeps caches as long as prompt and
    continuation, rounded up to a multiple of 64 (above 512, of an eighth to a quarter
    of the length), but no longer than the model has positions. The loop is compiled
    once for such a length, a type of strategy, a number of beams, and up to 4 end
    tokens (or 8, or 12, …). `max_new_tokens`, the tokens themselves, temperature,
    `top_k`, `top_p`, seed and length penalty are its inputs. Batch sizes and lengths
    of prompt and source compile once more when they first differ; under XLA, whose
    shapes are fixed, each time.

    Args:
        model: A generative model (one with `incremental()`), its `IncrementalPair`,
            or an exported pair from `export.load_runner`. The first two run as one
            compiled call, the third step by step on the host. Where an artefact takes
            prompts or sources of one length, and their mask, shorter ones are padded.
        inputs: Dictionary of arrays, as for `model`: `token_ids` (B, S), and for an
            encoder-decoder `decoder_token_ids` (B, P), the prompt. `padding_mask`
            (B, S), and `decoder_padding_mask` (B, P) where the pair takes one, may be
            left out: then every token is real.
        max_new_tokens: L, the most tokens to add.
        strategy: `Greedy()` (default), `Sample(...)` or `Beam(...)`.
        start_token_id: The prompt of an encoder-decoder, if `inputs` have none.
        end_token_id: The token that ends a row, or several of which any does. None =
            none does.
        pad_token_id: What fills a row behind its end.
        on_token: A function that is called on the host with the new tokens, an int32
            array (B,), as soon as each step has chosen them; a row that has ended
            gets `pad_token_id`. What it returns is not used. The halves are then
            compiled one by one rather than as one loop. Not for a beam, which may
            still change its mind.
        jit_compile: Whether XLA compiles the loop. "auto" = on JAX or an accelerator.

    Returns:
        `Generated(token_ids, scores)`.

    Raises:
        TypeError: for a model that can't decode, no strategy, inputs without names,
            or an `on_token` that can't be called.
        ValueError: for missing, unknown or empty inputs; tokens that the vocabulary
            does not have; a mask of another shape, or with a row of padding alone; a
            prompt or more tokens than the model has positions for; another number of
            beams than an artefact was exported for; or `on_token` with a beam.

    Example:
        ```python
        answer = generate(
            model, {"token_ids": ids}, 20, strategy=Beam(4), start_token_id=1,
            end_token_id=2,
        )
        ```
    """
    strategy = Greedy() if strategy is None else strategy
    check_positive("max_new_tokens", max_new_tokens)
    _check_strategy(strategy, on_token)
    is_keras = isinstance(model, (keras.Model, IncrementalPair))
    kept = _compiled.setdefault(model, {}) if is_keras else {}
    inputs = as_arrays(inputs)
    halves = _halves(model, kept, inputs, max_new_tokens)
    _check_beams(halves, strategy)
    inputs = prepare(halves, inputs, start_token_id, pad_token_id)
    batch, length = inputs[halves.prompt].shape
    check_room(halves.max_length, halves.prompt, length, max_new_tokens)
    vocabulary = halves.vocabulary.get(halves.prompt)
    pad_token_id = check_token("pad_token_id", pad_token_id, vocabulary)
    ends = _end_tokens(end_token_id, vocabulary)
    settings = Settings(strategy, max_new_tokens, ends, pad_token_id)
    uniform = strategy.draw(batch, max_new_tokens)
    if not halves.traceable or on_token is not None:
        if halves.traceable:
            key = ("step by step", halves.max_length, jit_compile)
            if key not in kept:
                kept[key] = compiled(halves, _resolve_jit(jit_compile))
            halves = kept[key]
        results = decode(
            halves, inputs, uniform, max_new_tokens, settings, host_while, on_token
        )
        return Generated(*map(ops.convert_to_numpy, results))
    length = halves.max_length or cache_length(max_new_tokens, None)
    inputs = loop_inputs(inputs, uniform, length, settings)
    num_ends = len(inputs["generate/end_token_ids"])
    key = (program_of(strategy), halves.max_length, length, num_ends, jit_compile)
    if key not in kept:
        kept[key] = CompiledLoop(halves, strategy, length)
        kept[key].compile(jit_compile=_resolve_jit(jit_compile))
    outputs = kept[key].predict_on_batch(inputs)
    token_ids = outputs["token_ids"][:, :max_new_tokens]
    return Generated(token_ids, outputs["scores"])


def _check_strategy(strategy, on_token) -> None:
    # A class has the methods, too, but is not a strategy yet.
    if isinstance(strategy, type) or not hasattr(strategy, "advance"):
        raise TypeError(
            "`strategy` must be a strategy, such as `Greedy()`, `Sample(...)` or "
            f"`Beam(...)`. Received: strategy={strategy!r}"
        )
    if on_token is None:
        return
    if not callable(on_token):
        raise TypeError(
            "`on_token` must be a function of the new tokens. "
            f"Received: on_token={on_token!r}"
        )
    if getattr(strategy, "revises", False):
        raise ValueError(
            "`on_token` needs a strategy whose tokens are final at once, `Greedy()` or "
            f"`Sample(...)`. Received: strategy={strategy!r}"
        )


def _check_beams(halves, strategy) -> None:
    if halves.num_beams in (None, strategy.num_beams):
        return
    raise ValueError(
        f"`strategy` must have {halves.num_beams} beams for each row: the artefact was "
        "exported with that `num_beams`, or with a fixed batch. Received: "
        f"strategy={strategy!r}, num_beams={strategy.num_beams}"
    )


def _halves(model, kept, inputs, max_new_tokens) -> Halves:
    """The halves of a model, with caches for a prompt and its continuation."""
    name = prompt_of(model)
    prompt = inputs.get(name)
    # Where there is none, it is a start token.
    length = prompt.shape[1] if prompt is not None and prompt.ndim == 2 else 1
    if hasattr(model, "incremental"):
        limit = getattr(model, "max_length", None)
        check_room(limit, name, length, max_new_tokens)
    return halves_of(model, kept, length + max_new_tokens)


def _end_tokens(end_token_id, vocabulary) -> tuple[int, ...]:
    if end_token_id is None:
        return _NONE
    if isinstance(end_token_id, set | frozenset):
        end_token_id = list(end_token_id)
    ends = end_token_id if np.ndim(end_token_id) else [end_token_id]
    found = {check_token("end_token_id", token, vocabulary) for token in ends}
    return tuple(sorted(found)) or _NONE


def _resolve_jit(jit_compile) -> bool:
    """XLA pays on an accelerator; on a CPU, TensorFlow's own kernels are faster."""
    if jit_compile != "auto":
        return bool(jit_compile)
    if not is_tensorflow():
        return True
    import tensorflow as tf

    return bool(tf.config.list_logical_devices("GPU"))
