"""What recurrent captioners share: decoding.

A captioner is two functions, in the order in which it works:

    look   from the locations of the image to what the decoder keeps of it
    tell   from words and what is kept to logits, and what of it has changed

Legend: B batch, P locations of the image, C channels, T length, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_attn.decoding import IncrementalPair


def caption_pair(model, layers, look: Callable, tell: Callable) -> IncrementalPair:
    """The prefill and step models of a captioner.

    The state is what `look` returns, and so depends on the model.

    Args:
        model: The captioner.
        layers: Its layers by name.
        look: From layers and locations (B, P, C) to a dictionary of tensors.
        tell: From layers, tokens (B, T) and such a dictionary to logits (B, T, V) and
            a dictionary of the tensors that are different after these tokens.
    """
    inputs = model.input
    state = look(layers, layers["places"].output)
    logits, changes = tell(layers, inputs["decoder_token_ids"], state)
    state = {**state, **changes}
    prefill = keras.Model(inputs, {"logits": logits[:, -1], **state})

    before = {
        name: keras.Input(tensor.shape[1:], dtype=tensor.dtype, name=name)
        for name, tensor in state.items()
    }
    token_ids: Any = keras.Input((), dtype="int32", name="token_ids")
    logits, changes = tell(layers, ops.expand_dims(token_ids, 1), before)
    step = keras.Model(
        {"token_ids": token_ids, **before}, {"logits": logits[:, 0], **changes}
    )
    return IncrementalPair(prefill, step, prompt="decoder_token_ids")
