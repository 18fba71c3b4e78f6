"""`generate_all`: many prompts of unlike lengths, a batch at a time.

In `generate` the rows of a batch start together, and wait for the longest. Here a row
that ends is taken by the next prompt while the others go on. `continuous_loop.py` is
the compiled part; this file chooses which prompt enters which row.

Legend: B rows, M length of the buffer of new tokens, P prompt length.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from keras_attn.cache_names import CACHE_INDEX
from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.compiled import (
    get_compilations,
    padded_ends,
    resolve_jit,
    rounded_length,
)
from keras_attn.decoding.inputs import (
    check_end_tokens,
    check_length,
    check_token,
    prepare,
)
from keras_attn.decoding.loop import Settings
from keras_attn.decoding.pair import MASKS, DecodingFunctions, prompt_name
from keras_attn.decoding.strategies import Greedy, Sample, traced_settings

# Under XLA, which compiles each length, prompts are padded to one of few.
_SHORTEST = 16


class Completion(NamedTuple):
    """The completion of a prompt by `generate_all`.

    Attributes:
        token_ids: int32 (N,), the new tokens with their end token, without padding.
        score: The log-probability of those tokens.
    """

    token_ids: np.ndarray
    score: float


class _Job(NamedTuple):
    """A prompt that waits for a row.

    Attributes:
        place: Its place among the prompts.
        inputs: The inputs of `prefill`, 1 row.
        padding: How many tokens of padding follow the prompt.
        limit: How many new tokens are wanted.
        uniform: The strategy's random numbers, (M,), or None.
    """

    place: int
    inputs: dict[str, np.ndarray]
    padding: int
    limit: int
    uniform: np.ndarray | None


def generate_all(
    model,
    prompts: Iterable,
    max_new_tokens: int | Sequence[int],
    *,
    batch_size: int = 8,
    strategy: Greedy | Sample | None = None,
    start_token_id: int | None = None,
    end_token_id=None,
    pad_token_id: int = 0,
    on_completion: Callable[[int, Completion], Any] | None = None,
    jit_compile="auto",
) -> list[Completion]:
    """Continues many prompts of unlike lengths, by continuous batching.

    `batch_size` prompts are decoded together. When one of them ends, by an end token or
    its own number of tokens, the next prompt takes its row at once, while the other
    rows go on. So no row waits for the longest one, and the longest prompt decides how
    long the caches are, not how long the others take. Each prompt gets the tokens that
    `generate` gives it by itself.

    One step for all rows is compiled for the length of the caches, the longest prompt
    with its new tokens, rounded up as in `generate`; other calls of that length and
    `batch_size` compile nothing. Each prompt is read by itself. Under XLA it is padded
    to 16, 32, 64, … tokens if the model takes a padding mask, and the reading is
    compiled for each of these lengths.

    Args:
        model: A generative model of tokens (one with `incremental()`), or its
            `IncrementalPair`.
        prompts: The token ids of each prompt, sequences of integers of any lengths; of
            an encoder-decoder, its sources.
        max_new_tokens: Maximum number of tokens to add, or one number for each prompt.
        batch_size: B, how many prompts are decoded together. A step of more rows takes
            longer, but not as many times as long.
        strategy: `Greedy()` (default) or `Sample(...)`. Each prompt has random numbers
            of its own, which depend only on the seed and on the prompt's place: its
            tokens do not depend on `batch_size`, on the other prompts, or on when it
            was read.
        start_token_id: The first token of the answers of an encoder-decoder.
        end_token_id: The token that ends an answer, or several such tokens. None =
            answers never end early.
        pad_token_id: The token of padding. No answer has it.
        on_completion: A function that is called on the host as soon as a prompt has
            ended, with its place among the prompts and its `Completion`: for progress,
            or to go on with an answer before all are there. Its return value is
            ignored.
        jit_compile: Whether XLA compiles. "auto" = on JAX or an accelerator.

    Returns:
        A `Completion(token_ids, score)` for each prompt, in the order of the prompts.

    Raises:
        TypeError: If `model` can't decode tokens, or is an artefact; `strategy` is not
            one of the two; or `on_completion` is not callable.
        ValueError: If `batch_size` or a number of tokens is less than 1; the numbers of
            tokens are not as many as prompts; a prompt is empty, has tokens that are
            not in the vocabulary, or is too long for the model; or sources of unlike
            lengths are given to a model without a padding mask. Nothing has been
            compiled then.

    Example:
        ```python
        from keras_attn import decoding, models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        prompts = [[5, 6, 7], [8], [9, 10]]
        answers = decoding.generate_all(gpt, prompts, 4, batch_size=2, end_token_id=2)
        [answer.token_ids for answer in answers]  # Three, each of 1 to 4 tokens.
        ```

    Reference:
        Yu et al. 2022, "Orca: A Distributed Serving System for Transformer-Based
        Generative Models" (OSDI), section 3: iteration-level scheduling.
    """
    strategy = Greedy() if strategy is None else strategy
    check_positive("batch_size", batch_size)
    _check_choices(strategy, on_completion)
    prompts = [_as_prompt(index, tokens) for index, tokens in enumerate(prompts)]
    limits = _as_limits(max_new_tokens, len(prompts))
    if not prompts:
        return []
    compilations = get_compilations(model)
    is_source = prompt_name(model) != "token_ids"
    used = [1 if is_source else len(prompt) for prompt in prompts]
    for number, (length, limit) in enumerate(zip(used, limits, strict=True)):
        if hasattr(model, "incremental"):
            most = getattr(model, "max_length", None)
            check_length(most, f"prompts[{number}]", length, limit)
    length = max(map(sum, zip(used, limits, strict=True)))
    functions = compilations.decoding_functions(model, length)
    _check_functions(functions, model)
    vocabulary = functions.new_vocabulary
    pad_token_id = check_token("pad_token_id", pad_token_id, vocabulary)
    ends = check_end_tokens(end_token_id, vocabulary)
    settings = Settings(strategy, max(limits), ends, pad_token_id)
    buffer_length = rounded_length(max(limits), None)
    jobs = deque()
    lengths = _padded_lengths(functions, prompts, is_source, resolve_jit(jit_compile))
    for index, prompt in enumerate(prompts):
        inputs = {"token_ids": prompt[None]}
        inputs = prepare(functions, inputs, start_token_id, pad_token_id)
        length = inputs[functions.prompt].shape[1]
        check_length(functions.max_length, f"prompts[{index}]", length, limits[index])
        padding = max(0, lengths[index] - inputs["token_ids"].shape[1])
        for name, fill in (("token_ids", pad_token_id), ("padding_mask", False)):
            if name in inputs and padding:
                widths = [(0, 0), (0, padding)]
                inputs[name] = np.pad(inputs[name], widths, constant_values=fill)
        numbers = _uniform(strategy, index, limits[index], buffer_length)
        padding = 0 if is_source else padding
        jobs.append(_Job(index, inputs, padding, limits[index], numbers))
    prefill = compilations.steps(functions, jit_compile).prefill
    loop = compilations.continuous_loop(functions, settings, jit_compile)
    batch = _Batch(functions, prefill, loop, settings, batch_size, buffer_length)
    return batch.run(jobs, on_completion)


class _Batch:
    """The rows, and which prompt each of them continues.

    Args:
        functions: Of the model.
        prefill: Reads a prompt.
        loop: The compiled `ContinuousLoop`.
        settings: Strategy and special tokens.
        size: B.
        buffer_length: M.
    """

    def __init__(self, functions, prefill, loop, settings, size, buffer_length):
        self._functions, self._prefill, self._loop = functions, prefill, loop
        self._constant = {
            "end_token_ids": padded_ends(settings),
            "pad_token_id": np.int32(settings.pad_token_id),
            "numbers": traced_settings(settings.strategy),
        }
        self._job: list[_Job | None] = [None] * size
        self._state = None
        self._rows = {
            "token_ids": np.full((size, buffer_length), settings.pad_token_id, "int32"),
            "count": np.zeros(size, "int32"),
            "limit": np.zeros(size, "int32"),
            "scores": np.zeros(size, "float32"),
            "done": np.ones(size, bool),
        }

    def run(self, jobs: deque[_Job], on_completion) -> list[Completion]:
        """Decodes all prompts; see `generate_all`."""
        answers: dict[int, Completion] = {}
        count = len(jobs)
        while len(answers) < count:
            free = self._job.index(None)
            job = jobs.popleft()
            self._enter(job, free)
            more = bool(jobs)
            self._go_on(job, free, is_full=None not in self._job or not more, more=more)
            for row, other in enumerate(self._job):
                if other is not None and self._rows["done"][row]:
                    self._job[row] = None
                    tokens = self._rows["token_ids"][row, : self._rows["count"][row]]
                    score = float(self._rows["scores"][row])
                    answers[other.place] = Completion(tokens.copy(), score)
                    if on_completion is not None:
                        on_completion(other.place, answers[other.place])
        return [answers[index] for index in range(count)]

    def _enter(self, job: _Job, row: int) -> None:
        """Gives a row to a prompt, which has no new tokens yet."""
        self._job[row] = job
        for name, value in (("count", 0), ("limit", job.limit), ("scores", 0)):
            self._rows[name][row] = value
        self._rows["done"][row] = False
        if job.uniform is not None:
            if "uniform" not in self._rows:
                shape = (len(self._job), len(job.uniform))
                self._rows["uniform"] = np.zeros(shape, "float32")
            self._rows["uniform"][row] = job.uniform

    def _go_on(self, job: _Job, row: int, *, is_full: bool, more: bool) -> None:
        """Reads the prompt of a row, and decodes unless another is to be read first."""
        outputs = {**job.inputs, **self._prefill(job.inputs)}
        names = ("logits", *self._functions.step_inputs)
        new = {name: outputs[name] for name in names if name != "token_ids"}
        if CACHE_INDEX in new:
            # New tokens take the slots of the padding.
            new[CACHE_INDEX] = new[CACHE_INDEX] - job.padding
        if self._state is None:
            self._state = {
                name: ops.zeros((len(self._job), *tensor.shape[1:]), tensor.dtype)
                for name, tensor in new.items()
            }
        found = self._loop(
            {
                **self._constant,
                "state": self._state,
                "new": new,
                "row": np.int32(row),
                "rows": self._rows,
                "is_full": np.array(is_full),
                "is_waited_for": np.array(more),
            }
        )
        self._state = found["state"]
        for name, values in found["rows"].items():
            self._rows[name] = np.array(ops.convert_to_numpy(values))


def _uniform(strategy, index: int, limit: int, length: int) -> np.ndarray | None:
    """The random numbers of the prompt at an index, (M,)."""
    if isinstance(strategy, Sample) and strategy.seed is not None:
        words = np.random.SeedSequence([strategy.seed, index]).generate_state(2)
        strategy = replace(strategy, seed=int.from_bytes(words.tobytes(), "little"))
    numbers = strategy.uniform(1, limit)
    return None if numbers is None else np.pad(numbers[0], (0, length - limit))


def _padded_lengths(functions, prompts, is_source: bool, jit: bool) -> list[int]:
    """The number of tokens to which each prompt is padded."""
    lengths = [len(prompt) for prompt in prompts]
    has_mask, most = MASKS["token_ids"] in functions.prefill_inputs, max(lengths)
    if is_source and not has_mask and len(set(lengths)) > 1:
        raise ValueError(
            "`prompts` must have one length, because the model takes no padding mask "
            f"for them. Received: lengths from {min(lengths)} to {most}"
        )
    if is_source:
        # The state of a source is as long as the source, in all rows alike.
        return [most] * len(lengths)
    if not (jit and has_mask):
        return lengths
    longest = [max(_SHORTEST, 1 << (n - 1).bit_length()) for n in lengths]
    return [min(n, functions.max_length or n) for n in longest]


def _as_prompt(index: int, tokens) -> np.ndarray:
    """A prompt as an array (P,); `prepare` checks the tokens."""
    prompt = np.asarray(tokens)
    if prompt.ndim != 1 or not prompt.size:
        raise ValueError(
            f"`prompts[{index}]` must be a sequence of at least one token id. "
            f"Received: prompts[{index}].shape={prompt.shape}"
        )
    return prompt


def _as_limits(max_new_tokens, count: int) -> list[int]:
    """The number of new tokens of each prompt."""
    if np.ndim(max_new_tokens) == 0:
        return [check_positive("max_new_tokens", max_new_tokens)] * count
    limits = list(max_new_tokens)
    if len(limits) != count:
        raise ValueError(
            "`max_new_tokens` must be one number, or one for each prompt. Received: "
            f"{len(limits)} numbers for {count} prompts"
        )
    return [check_positive("max_new_tokens", limit) for limit in limits]


def _check_choices(strategy, on_completion) -> None:
    """Raises unless prompts can be continued in rows that start at any time."""
    if not isinstance(strategy, Greedy | Sample):
        raise TypeError(
            "`strategy` must be `Greedy()` or `Sample(...)`, which choose one token "
            "after the other; for others call `generate`. Received: "
            f"strategy={strategy!r}"
        )
    if on_completion is not None and not callable(on_completion):
        raise TypeError(
            "`on_completion` must be a function of a prompt's place and its "
            f"completion. Received: on_completion={on_completion!r}"
        )


def _check_functions(functions: DecodingFunctions, model) -> None:
    """Raises unless a model reads tokens and can be compiled into one loop."""
    if not functions.traceable:
        raise TypeError(
            "`model` must be a Keras model; for an artefact call `generate` with a "
            f"batch of prompts. Received: model={type(model).__name__}"
        )
    if "token_ids" not in {*functions.step_inputs} & {*functions.prefill_inputs}:
        raise TypeError(
            "`model` must continue tokens or translate them; for a model of images, "
            "sounds or surroundings call `generate` or `walk`. Received: "
            f"model={type(model).__name__}"
        )
