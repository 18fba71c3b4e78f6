"""Compiles a model's decoding loop, or its `prefill` and `step` separately.

`Compilations` keeps the compiled functions as long as the model lives.

Legend: B batch, M length of the buffer of new tokens.
"""

import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_attn.decoding.continuous_loop import ContinuousLoop
from keras_attn.decoding.loop import Settings, decode
from keras_attn.decoding.pair import (
    DecodingFunctions,
    IncrementalPair,
    get_functions,
)
from keras_attn.decoding.speculation import PromptLookup, speculate, text_before
from keras_attn.decoding.strategies import (
    compilation_key,
    traced_settings,
    with_traced_settings,
)
from keras_attn.distribution.device_batches import padded_rows
from keras_attn.kernels.replicas import of_first_replica

# A compiled loop takes a multiple of this many end tokens.
_END_TOKENS = 4
# Prefix of the loop's own inputs, which distinguishes them from the inputs of
# `prefill`.
_OWN = "generate/"


class Compilations:
    """The decoding functions of one model, and their compiled versions.

    Holds no reference to the model itself, so that it can be freed with the model.
    """

    def __init__(self):
        # Keyed by the length of the key/value caches, or by None if they serve every
        # length; and whether they have `extend`.
        self._functions: dict[bool, dict[int | None, DecodingFunctions]] = {}
        self._steps = {}
        self._loops = {}

    def decoding_functions(
        self, model, length: int, *, extend: bool = False
    ) -> DecodingFunctions:
        """`prefill` and `step`, not compiled, with key/value caches for this length.

        Args:
            model: A model, a pair or an exported pair.
            length: Maximum length of prompt and continuation together.
            extend: Whether to read several tokens at once as well.

        Raises:
            TypeError: If `model` can't decode.
            ValueError: If it cannot `extend`.
        """
        made = self._functions.setdefault(extend, {})
        options: dict[str, Any] = {}
        if extend:
            _check_extends(model)
            options["extend"] = True
        if None in made:
            return made[None]
        if not hasattr(model, "incremental"):
            return made.setdefault(None, get_functions(model))
        if "max_length" not in inspect.signature(model.incremental).parameters:
            return made.setdefault(None, get_functions(model.incremental()))
        length = rounded_length(length, getattr(model, "max_length", None))
        if length not in made:
            functions = get_functions(model.incremental(max_length=length, **options))
            made[None if functions.max_length is None else length] = functions
            return functions
        return made[length]

    def steps(self, functions: DecodingFunctions, jit_compile) -> DecodingFunctions:
        """The same functions, each compiled, for a loop on the host."""
        key = (functions.max_length, jit_compile)
        if key not in self._steps:
            jit = resolve_jit(jit_compile)
            self._steps[key] = replace(
                functions,
                prefill=_compile(functions.prefill, jit),
                step=_compile(functions.step, jit),
            )
        return self._steps[key]

    def continuous_loop(
        self, functions: DecodingFunctions, settings: Settings, jit_compile
    ) -> Callable[[dict], dict]:
        """The compiled loop of `generate_all`; it may be shared with other settings."""
        strategy = compilation_key(settings.strategy)
        key = (ContinuousLoop, strategy, functions.max_length, jit_compile)
        if key not in self._loops:
            loop = ContinuousLoop(functions, settings.strategy)
            self._loops[key] = _compile(loop, resolve_jit(jit_compile))
        return self._loops[key]

    def loop(
        self,
        functions: DecodingFunctions,
        settings: Settings,
        jit_compile,
        speculation=None,
        draft: DecodingFunctions | None = None,
    ) -> "CompiledLoop":
        """A compiled loop that serves these settings; it may be shared with others.

        Args:
            functions: The model's.
            settings: The settings.
            jit_compile: As in `generate`.
            speculation: As in `generate`.
            draft: The draft model's.
        """
        key = (
            compilation_key(settings.strategy),
            functions.max_length,
            _buffer_length(functions, settings),
            len(padded_ends(settings)),
            jit_compile,
            settings.num_results,
            speculation,
            # A loop keeps them, so no others can have this id.
            id(draft),
        )
        if key not in self._loops:
            loop = CompiledLoop(functions, settings, speculation, draft)
            loop.compile(jit_compile=resolve_jit(jit_compile))
            self._loops[key] = loop
        return self._loops[key]


# Entries disappear with their models.
_compilations = weakref.WeakKeyDictionary()


def get_compilations(model) -> Compilations:
    """The compilations kept for a Keras model or pair; none for anything else."""
    if not isinstance(model, (keras.Model, IncrementalPair)):
        return Compilations()
    # Kernels may have been replaced since, as by `training.enable_lora`.
    pair = isinstance(model, IncrementalPair)
    parts = (model.prefill, model.step) if pair else (model,)
    version = [getattr(part, "kernels_version", 0) for part in parts]
    if model not in _compilations or _compilations[model][0] != version:
        _compilations[model] = (version, Compilations())
    return _compilations[model][1]


def rounded_length(length: int, limit: int | None) -> int:
    """`length`, rounded up so that few lengths are compiled.

    Lengths up to 512 are rounded up to a multiple of 64, longer ones in steps of an
    eighth to a quarter of the length: 64, 128, …, 512, 640, 768, 896, 1024, 1280, …

    Args:
        length: Number of tokens that key/value caches or a buffer of tokens must hold.
        limit: Maximum length; None without a limit.
    """
    length = int(length)  # An integer of NumPy has no `bit_length`.
    multiple = 1 << max(6, length.bit_length() - 3)
    rounded = -(-length // multiple) * multiple
    return rounded if limit is None else min(rounded, limit)


class CompiledStrategy:
    """A strategy for the loop on the host, whose `advance` TensorFlow has compiled.

    One operation after the other, it takes a tenth of a step of GPT-2 small in ONNX
    Runtime, and a quarter for sampling. On another backend nothing is compiled.

    Args:
        strategy: The strategy.
    """

    def __init__(self, strategy):
        self.num_beams = strategy.num_beams
        self.start, self.finish = strategy.start, strategy.finish
        if keras.backend.backend() != "tensorflow":
            self.advance = strategy.advance
            return
        settings = traced_settings(strategy)
        key = compilation_key(strategy)
        if key not in _advances:
            while len(_advances) >= _KEPT_ADVANCES:
                del _advances[next(iter(_advances))]
            _advances[key] = _compiled_advance(strategy)
        compiled = _advances[key]

        def advance(search, logits, index, end_token_id, pad_token_id):
            arguments = (settings, search, logits, index, end_token_id, pad_token_id)
            return compiled(
                *keras.tree.map_structure(ops.convert_to_tensor, arguments[:-2]),
                np.array(end_token_id, "int32"),
                np.array(pad_token_id, "int32"),
            )

        self.advance = advance


# By the `compilation_key` of a strategy.
_advances = {}
_KEPT_ADVANCES = 16


def _compiled_advance(strategy):
    """`advance` as a function of the traced settings and its arguments."""
    import tensorflow as tf

    def advance(settings, *arguments):
        return with_traced_settings(strategy, settings).advance(*arguments)

    return tf.function(advance, autograph=False)


class CompiledLoop(keras.Model):
    """The loop as a Keras model, whose `predict` Keras compiles on every backend.

    Args:
        functions: The model's.
        settings: The strategy to compile, without the values of its `numbers`, which
            are inputs; M has room for `max_new_tokens` and a few more.
        speculation: As in `generate`.
        draft: The functions of the model that guesses, if one does.
    """

    def __init__(
        self,
        functions: DecodingFunctions,
        settings: Settings,
        speculation=None,
        draft: DecodingFunctions | None = None,
    ):
        # Not the global policy's precision: random numbers must not be rounded to it.
        super().__init__(name="generate", dtype="float32")
        self.decoding_functions = functions
        self.strategy, self.num_results = settings.strategy, settings.num_results
        self.buffer_length = _buffer_length(functions, settings)
        # As attributes, so that Keras passes their weights to the compiled function.
        self.prefill = functions.prefill
        self.step = functions.step
        # In a tuple, as the draft model is not a part of this one.
        self._speculation = (speculation, draft)
        if draft is not None:
            self.draft_prefill, self.draft_step = draft.prefill, draft.step

    def run(self, inputs: dict, uniform, settings: Settings) -> dict:
        """Runs the compiled loop.

        Args:
            inputs: Inputs of `prefill`.
            uniform: The random numbers, (B, max_new_tokens, …), or None.
            settings: Settings whose numbers are plain Python numbers.

        Returns:
            Arrays: `token_ids`, (B, n, max_new_tokens), and `scores`, (B, n); with a
            speculation the fields of `Speculated`.
        """
        # Devices that share the rows need as many of each.
        inputs, rows = padded_rows(inputs, in_one_batch=True)
        if uniform is not None:
            uniform, _ = padded_rows(uniform, in_one_batch=True)
        own = self.own_inputs(inputs, uniform, settings)
        outputs = of_first_replica(self, self.predict_on_batch({**inputs, **own}))
        token_ids = outputs["token_ids"][:rows, ..., : settings.max_new_tokens]
        return {**outputs, "token_ids": token_ids, "scores": outputs["scores"][:rows]}

    def own_inputs(
        self, inputs: dict, uniform, settings: Settings
    ) -> dict[str, np.ndarray]:
        """The further inputs of the compiled loop besides those of `prefill`, by name.

        Args:
            inputs: As in `run`.
            uniform: As in `run`.
            settings: As in `run`.
        """
        own = {
            "max_new_tokens": np.int32(settings.max_new_tokens),
            "end_token_ids": padded_ends(settings),
            "pad_token_id": np.int32(settings.pad_token_id),
            **traced_settings(settings.strategy),
        }
        if uniform is not None:
            unused = self.buffer_length - uniform.shape[1]
            own["uniform"] = np.pad(uniform, [(0, 0), (0, unused), (0, 0)])
        if isinstance(self._speculation[0], PromptLookup):
            own["text"] = text_before(
                inputs["token_ids"], inputs["padding_mask"], self._speculation[0].ngram
            )
        return {_OWN + name: np.asarray(x) for name, x in own.items()}

    def call(self, inputs):
        """The new tokens and their scores, as `decode` gives them; see `run`."""
        inputs, own = dict(inputs), {}
        for name in list(inputs):
            if name.startswith(_OWN):
                own[name.removeprefix(_OWN)] = inputs.pop(name)
        # Without compilation Keras' JAX backend passes NumPy arrays, and a step takes
        # no mixture of these and the traced state.
        inputs = {name: ops.convert_to_tensor(x) for name, x in inputs.items()}
        uniform = own.pop("uniform", None)
        limits = ("max_new_tokens", "end_token_ids", "pad_token_id")
        limits = {name: own.pop(name) for name in limits}
        text = own.pop("text", None)
        strategy = with_traced_settings(self.strategy, own)
        settings = Settings(strategy, **limits, num_results=self.num_results)
        speculation, draft = self._speculation
        functions, length = self.decoding_functions, self.buffer_length
        if speculation is not None:
            return speculate(
                functions, draft, inputs, text, uniform, length, settings, speculation
            )
        token_ids, scores = decode(
            functions, inputs, uniform, length, settings, ops.while_loop
        )
        return {"token_ids": token_ids, "scores": scores}


def _buffer_length(functions, settings: Settings) -> int:
    """M, which serves all numbers of tokens up to a few more."""
    return functions.max_length or rounded_length(settings.max_new_tokens, None)


def _check_extends(model) -> None:
    """Raises unless a model reads several tokens at once after a state."""
    if isinstance(model, IncrementalPair):
        is_able = model.extend is not None
    else:
        method = getattr(model, "incremental", None)
        is_able = method and "extend" in inspect.signature(method).parameters
    if not is_able:
        raise ValueError(
            "`speculation` needs a decoder-only model that reads several tokens in one "
            "pass, whose `incremental()` takes `extend`, such as GPT-2. Received: "
            f"model={type(model).__name__}"
        )


def padded_ends(settings: Settings) -> np.ndarray:
    """The end tokens, padded with -1, which is not the id of any token."""
    ends = np.array(settings.end_token_ids, "int32")
    return np.pad(ends, (0, -len(ends) % _END_TOKENS), constant_values=-1)


def _compile(model, jit_compile: bool) -> Callable[[dict], dict]:
    """A functional model as a function that its backend has compiled."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        call = tf.function(
            lambda inputs: model(inputs, training=False),
            jit_compile=jit_compile,
            reduce_retracing=True,
        )
    elif backend == "jax" and jit_compile:
        import jax

        stateless = jax.jit(
            lambda *state: model.stateless_call(*state, training=False)[0]
        )

        def call(inputs):
            # Passed as arguments, because JAX would compile captured weights as
            # constants.
            trainable = [weight.value for weight in model.trainable_variables]
            others = [weight.value for weight in model.non_trainable_variables]
            return stateless(trainable, others, inputs)
    else:

        def call(inputs):
            return model(inputs, training=False)

    return lambda inputs: call(keras.tree.map_structure(ops.convert_to_tensor, inputs))


def resolve_jit(jit_compile) -> bool:
    """XLA is faster on an accelerator; on a CPU, TensorFlow's own kernels are."""
    if jit_compile != "auto":
        return bool(jit_compile)
    if keras.backend.backend() != "tensorflow":
        return True
    import tensorflow as tf

    return bool(tf.config.list_logical_devices("GPU"))
