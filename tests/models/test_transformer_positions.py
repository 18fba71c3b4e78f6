"""Positions of the Transformer: sinusoids or learned, added or concatenated."""

from typing import Any

import keras
import numpy as np
import pytest
from attention_reference import sinusoid
from model_cases import make_inputs, numpy, randomize
from model_family import BLOCKS, POSITIONS, B, D, S, T, V

from keras_attn import models

ONE_LAYER: dict[str, Any] = {**BLOCKS, "num_layers": 1, "dropout": 0.0}


def build(**options):
    return randomize(models.build_transformer(**ONE_LAYER, **options))


def embedded(model, side, inputs):
    """What the first block of a side reads, (B, T, D)."""
    return numpy(
        keras.Model(model.inputs, model.get_layer(f"{side}_dropout").output)(inputs)
    )


@pytest.mark.parametrize("combine", ["add", "concatenate"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_tokens_and_positions_are_combined_as_the_equations_say(positions, combine):
    model, inputs = build(positions=positions, combine=combine), make_inputs()
    # The first row is padded on the left: its first real token has position 0.
    inputs["padding_mask"][0] = [False, False, True, True, True]
    places = {"encoder": [[0, 0, 0, 1, 2], range(S)], "decoder": B * [range(T)]}
    tokens = numpy(model.get_layer("token_embedding").embeddings) * np.sqrt(D)
    if positions == "sinusoidal":
        table = np.array([sinusoid(place, D) for place in range(S)])
    else:
        table = numpy(model.get_layer("position_embedding").embeddings)
        assert table.shape == (model.default_max_length, D)
    for side, name in (("encoder", "token_ids"), ("decoder", "decoder_token_ids")):
        x, p = tokens[inputs[name]], table[np.array([*map(list, places[side])])]
        if combine == "add":
            expected = x + p
        else:
            (kernel,) = model.get_layer("position_projection").get_weights()
            expected = np.concatenate([x, p], -1) @ kernel
        np.testing.assert_allclose(
            embedded(model, side, inputs), expected, rtol=0, atol=1e-4
        )


def test_adding_is_concatenating_with_a_projection_that_adds():
    learned = {"positions": "learned", "max_sequence_length": POSITIONS}
    added, joined = build(**learned), build(**learned, combine="concatenate")
    for layer in joined.layers:
        if layer.name == "position_projection":
            layer.set_weights([np.concatenate([np.eye(D), np.eye(D)])])
        elif layer.weights:
            layer.set_weights(added.get_layer(layer.name).get_weights())
    inputs = make_inputs()
    expected = numpy(added(inputs))
    assert expected.shape == (B, T, V)
    np.testing.assert_allclose(numpy(joined(inputs)), expected, rtol=0, atol=1e-4)


def test_the_table_limits_source_and_target():
    model = build(positions="learned", max_sequence_length=T)
    with pytest.raises(ValueError, match=r"`token_ids` must have .*at most 3"):
        model(make_inputs())
    inputs = make_inputs(source=T, target=T + 1)
    with pytest.raises(ValueError, match=r"`decoder_token_ids` must have .*at most 3"):
        model(inputs)
    message = (
        "`max_sequence_length` is the number of learned positions; .* leave it out, or "
        "pass positions='learned'. Received: max_sequence_length=3"
    )
    with pytest.raises(ValueError, match=message):
        build(max_sequence_length=3)
