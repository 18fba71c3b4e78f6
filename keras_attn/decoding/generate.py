"""`generate`: decodes with any model and any strategy.

Where things are: `pair.py` defines what a model provides, `inputs.py` checks the
arguments, `strategies.py` chooses tokens, `loop.py` is the loop, and `compiled.py`
compiles the loop and keeps it for the next call.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.compiled import (
    CompiledStrategy,
    get_compilations,
    rounded_length,
)
from keras_attn.decoding.inputs import (
    as_arrays,
    check_beams,
    check_end_tokens,
    check_length,
    check_num_results,
    check_speculative_length,
    check_strategy,
    check_token,
    prepare,
    required_length,
)
from keras_attn.decoding.loop import Settings, decode, host_while, random_numbers
from keras_attn.decoding.speculation import (
    DraftModel,
    PromptLookup,
    Speculated,
    check_draft,
    check_speculation,
)
from keras_attn.decoding.strategies import Greedy


class Generated(NamedTuple):
    """The result of `generate`.

    Attributes:
        token_ids: int32 (B, max_new_tokens), the new tokens with their end token, then
            padding; with `num_results` (B, n, max_new_tokens).
        scores: float32 (B,), with `num_results` (B, n): the log-probability of those
            tokens; for beam search divided by the length penalty, and `ops.MASKED`
            (-1e9) for a continuation that was not found, because there are fewer.
    """

    token_ids: np.ndarray
    scores: np.ndarray


def generate(
    model,
    inputs,
    max_new_tokens,
    *,
    strategy=None,
    num_results: int | None = None,
    start_token_id=None,
    end_token_id=None,
    pad_token_id=0,
    on_token: Callable | None = None,
    jit_compile="auto",
    speculation: PromptLookup | DraftModel | None = None,
) -> "Generated | Speculated":
    """Generates a continuation of each prompt, one token at a time.

    Prompts of different lengths can share a batch if the model takes a padding mask for
    them. Padding may be on the left, on the right or in between: it occupies a slot in
    the caches but no position, and is never attended to, so each row gets the same text
    as if it were decoded by itself.

    A model with `incremental(max_length=…)` gets caches as long as prompt and
    continuation, rounded up to a multiple of 64 (above 512, in coarser steps of 1/8 to
    1/4 of the length), but no longer than the maximum length of the model. The loop is
    compiled once for each such length, type of strategy, number of beams, and number of
    end tokens, rounded up to a multiple of 4, and `num_results`. `max_new_tokens`, the
    tokens themselves, temperature, `top_k`, `top_p`, seed and length penalty are its
    inputs. The loop is compiled once more when the batch size, prompt length or source
    length first changes; under XLA, whose shapes are fixed, it is compiled for every
    new one.

    Args:
        model: A generative model (one with `incremental()`), its `IncrementalPair`, or
            an exported pair from `export.load_runner` or `export.decoder`. The first
            two run as one compiled call, the third step by step on the host. If an
            artefact takes prompts or sources of one fixed length, and their mask,
            shorter ones are padded.
        inputs: Dictionary of arrays, as for `model`: `token_ids` (B, S), and for an
            encoder-decoder `decoder_token_ids` (B, P), the prompt. `padding_mask`
            (B, S), and `decoder_padding_mask` (B, P) if the pair takes one, may be left
            out if every token is real. What `encode_batch` of a tokenizer returns can
            be passed as it is: its `segment_ids` are left out if they are 0 and the
            model reads none.
        max_new_tokens: Maximum number of tokens to add.
        strategy: `Greedy()` (default), `Sample(...)` or `Beam(...)`.
        num_results: n, how many continuations of each prompt to return. The prompt is
            read once. `Beam(K)` gives the n best of its K, the best first;
            `Sample(...)` n independent samples, in no order: with a seed, one prompt's
            first is the sample without `num_results`. None = one, and no axis for them.
        start_token_id: The prompt of an encoder-decoder if `inputs` has none.
        end_token_id: The token that ends a row, or several such tokens. None = rows
            never end early.
        pad_token_id: Written to a row after it has ended.
        on_token: A function that is called on the host after each step with the new
            tokens, an int32 array (B,), with `num_results` (B·n,); a row that has ended
            gets `pad_token_id`. Its return value is ignored. `prefill` and `step` are
            then compiled separately rather than as one loop. Not allowed with beam
            search, which may still revise earlier tokens.
        jit_compile: Whether XLA compiles the loop. "auto" = on JAX or an accelerator.
        speculation: `PromptLookup(...)` or `DraftModel(...)`: several tokens are
            guessed, and checked by one pass of the model, a decoder without an encoder
            such as GPT-2. `Greedy()` gives the same tokens as without, `Sample(...)`
            tokens of the same distribution, but other tokens for the same seed. A batch
            advances by the fewest guesses that any of its rows keeps.

    Returns:
        `Generated(token_ids, scores)`, with an axis for `num_results` after the batch;
        with a `speculation`
        `Speculated(token_ids, scores, num_passes, num_guessed, num_kept)`.

    Raises:
        TypeError: If `model` can't decode or acts in an environment, `strategy` is not
            a strategy, `inputs` is not a dictionary, or `on_token` is not callable.
        ValueError: If an input is missing, unknown or empty; a token is not in the
            vocabulary; a mask has the wrong shape, or a row of only padding; prompt and
            new tokens together are longer than the maximum length of the model; an
            artefact was exported for a different number of beams; `num_results` is more
            than the beams of a beam search, more than 1 for `Greedy()`, or combined
            with `speculation`; `on_token` is given with beam search; or `speculation`
            is given for a model that cannot read several tokens at once, with beam
            search or `on_token`, or with a draft model of another vocabulary.

    Example:
        ```python
        import numpy as np
        from keras_attn import decoding, models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        prompt = {"token_ids": np.array([[5, 6, 7]]), "padding_mask": np.ones((1, 3))}
        answer = decoding.generate(gpt, prompt, 4, strategy=decoding.Beam(2))
        answer.token_ids  # (1, 4), after the prompt.
        ```
    """
    strategy = Greedy() if strategy is None else strategy
    check_positive("max_new_tokens", max_new_tokens)
    check_strategy(strategy, on_token)
    check_num_results(num_results, strategy, speculation)
    if speculation is not None:
        check_speculation(speculation, strategy, on_token)
    inputs = as_arrays(inputs)

    # `functions.prefill` and `functions.step` are the two Keras models of
    # `model.incremental(max_length)` (for GPT-2: gpt.py), with key/value caches that
    # are long enough, and not compiled. `compilations` keeps them and what is compiled
    # from them for later calls.
    compilations = get_compilations(model)
    cache_length = required_length(model, inputs, max_new_tokens)
    if speculation is not None:
        # The last pass may write as many slots after the last token.
        cache_length += speculation.tokens - 1
        check_speculative_length(model, cache_length, speculation)
    extend = speculation is not None
    functions = compilations.decoding_functions(model, cache_length, extend=extend)
    if "token_ids" not in functions.step_inputs:
        raise TypeError(
            "`model` must read a token at each step; use `decoding.walk` for one that "
            f"reads its surroundings. Received: model={type(model).__name__}"
        )
    check_beams(functions, strategy, num_results)

    # Checked. A missing mask marks every token as real; a missing prompt becomes one
    # start token per row.
    inputs = prepare(functions, inputs, start_token_id, pad_token_id)
    batch, prompt_length = inputs[functions.prompt].shape
    check_length(functions.max_length, functions.prompt, prompt_length, max_new_tokens)
    vocabulary = functions.new_vocabulary
    pad_token_id = check_token("pad_token_id", pad_token_id, vocabulary)
    end_token_ids = check_end_tokens(end_token_id, vocabulary)
    settings = Settings(
        strategy, max_new_tokens, end_token_ids, pad_token_id, num_results or 1
    )
    if speculation is not None:
        return _speculate(model, functions, inputs, settings, speculation, jit_compile)
    uniform = random_numbers(settings, batch)

    # `decode` in one compiled graph, unless the host needs each token or the model is
    # an artefact.
    if functions.traceable and on_token is None:
        # A Keras model whose `call` is `decode`; the number of tokens, the end tokens
        # and the strategy's numbers are inputs, so other values compile nothing.
        loop = compilations.loop(functions, settings, jit_compile)
        found = Generated(**loop.run(inputs, uniform, settings))
    else:
        if functions.traceable:
            functions = compilations.steps(functions, jit_compile)
        # As in a compiled loop, few lengths of the buffer are compiled.
        length = rounded_length(max_new_tokens, None)
        if uniform is not None:
            unused = length - max_new_tokens
            uniform = np.pad(uniform, [(0, 0), (0, unused), (0, 0)])
        settings = replace(settings, strategy=CompiledStrategy(strategy))
        results = decode(
            functions, inputs, uniform, length, settings, host_while, on_token
        )
        token_ids, scores = map(ops.convert_to_numpy, results)
        found = Generated(token_ids[..., :max_new_tokens], scores)
    if num_results is None:
        return Generated(found.token_ids[:, 0], found.scores[:, 0])
    return found


def _speculate(
    model, functions, inputs, settings: Settings, speculation, jit_compile
) -> Speculated:
    """Runs the compiled loop with guesses; all arguments have been checked."""
    draft = None
    batch, prompt_length = inputs[functions.prompt].shape
    length = settings.max_new_tokens
    if isinstance(speculation, DraftModel):
        cache_length = prompt_length + length + speculation.tokens - 1
        check_speculative_length(speculation.model, cache_length, speculation)
        drafts = get_compilations(speculation.model)
        # A draft that can extend has the caches and the prompt that the loop needs.
        draft = drafts.decoding_functions(speculation.model, cache_length, extend=True)
        check_draft(functions, draft)
    numbers = settings.strategy.uniform(batch, 3 * length)
    if numbers is not None:
        numbers = np.reshape(numbers, (batch, length, 3))
    compilations = get_compilations(model)
    loop = compilations.loop(functions, settings, jit_compile, speculation, draft)
    found = loop.run(inputs, numbers, settings)
    counts = {name: found[name].item() for name in Speculated._fields[2:]}
    return Speculated(found["token_ids"], found["scores"], **counts)
