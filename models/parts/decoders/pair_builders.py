"""Builds the two models that decode one step at a time, from two functions.

    prefill    the model's inputs -> logits (B, V) and the state
    step the last token and the state -> logits (B, V) and the changes of the state

The state is a dictionary of tensors. Its names, shapes and types are defined in one
place, by what `prefill` returns; the inputs of the model `step` follow from it.

A recurrent decoder has one function for any number of tokens, `decode`;
`recurrent_pair` derives both models from it. A decoder with key/value caches reads a
prompt and a token in different ways; its state is described in `incremental.py`, next
to this file.

Legend: B batch, T length, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_attn.decoding import IncrementalPair

Tensors = dict[str, Any]


def build_pair(
    inputs: Tensors,
    prefill: Callable[[Tensors], tuple[Any, Tensors]],
    step: Callable[[Any, Tensors], tuple[Any, Tensors]],
    *,
    token: Any = None,
    extend: Callable[[Any, Tensors], tuple[Any, Tensors]] | None = None,
    **fields,
) -> IncrementalPair:
    """The pair of models built from two functions that share a model's layers.

    ```python
    def prefill(inputs):
        memory = encode(inputs["token_ids"])
        logits, hidden = decode(inputs["decoder_token_ids"], memory)
        return logits[:, -1], {"hidden": hidden, "memory": memory}

    def step(token_ids, state):
        logits, hidden = decode(token_ids[:, None], state["memory"], state["hidden"])
        return logits[:, 0], {"hidden": hidden}

    build_pair(inputs, prefill, step, prompt="decoder_token_ids")
    ```

    Args:
        inputs: The inputs of `prefill` by name.
        prefill: From these inputs to logits (B, V) and the state by name. An input that
            is a state as well, such as a mask, is not an output of the model:
            `generate` passes the input on.
        step: From the last token and the state to logits (B, V) and the changes of the
            state by name; see `IncrementalPair`.
        token: The input of `step` besides the state. None = `token_ids`, int32 (B,).
        extend: From several tokens, (B, T), and the state to logits (B, T, V) and the
            entries of the caches by name. None = the pair has no `extend`.
        **fields: Further fields of the pair, such as `prompt`.
    """
    logits, state = prefill(inputs)
    returned = {name: x for name, x in state.items() if x is not inputs.get(name)}
    if token is None:
        token = keras.Input((), dtype="int32", name="token_ids")
    before = inputs_like(state)
    next_logits, changes = step(token, before)
    if extend is not None:
        # A function, as Keras on JAX can make no graph in which one axis is longer than
        # another of unknown length: the caches and several tokens, and the tokens.
        def read_several(inputs):
            state = dict(inputs)
            all_logits, entries = extend(state.pop("token_ids"), state)
            return {"logits": all_logits, **entries}

        fields["extend"] = read_several
    return IncrementalPair(
        keras.Model(inputs, {"logits": logits, **returned}, name="prefill"),
        keras.Model(
            {token.name: token, **before},
            {"logits": next_logits, **changes},
            name="step",
        ),
        **fields,
    )


def recurrent_pair(
    inputs: Tensors,
    encode: Callable[[Tensors], Tensors],
    decode: Callable[[Any, Tensors], tuple[Any, Tensors]],
    *,
    prompt: str = "decoder_token_ids",
    **fields,
) -> IncrementalPair:
    """The pair of models for a decoder that reads any number of tokens the same way.

    Args:
        inputs: The inputs of `prefill` by name.
        encode: From these inputs to the state before the first token.
        decode: From tokens (B, T) and a state to logits (B, T, V) and the states that
            differ afterwards, all by name. Names that are new to the state, such as a
            projection of the memory, belong to it from then on; a step may return only
            states that change in a step.
        prompt: The input that holds the tokens.
        **fields: Further fields of the pair.
    """

    def prefill(inputs):
        state = encode(inputs)
        logits, changes = decode(inputs[prompt], state)
        return logits[:, -1], {**state, **changes}

    def step(token_ids, state):
        logits, changes = decode(ops.expand_dims(token_ids, 1), state)
        return logits[:, 0], changes

    return build_pair(inputs, prefill, step, prompt=prompt, **fields)


def inputs_like(tensors: Tensors) -> Tensors:
    """New inputs with the shapes and types of these tensors, by the same names."""
    return {
        name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in tensors.items()
    }
