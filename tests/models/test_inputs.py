"""What the suites feed a model follows from the model's own inputs."""

import keras
import numpy as np
from keras import layers, ops
from model_cases import B, S, inputs_for


def test_inputs_of_new_names_have_the_shapes_types_and_ranges_of_the_model():
    shapes = {
        "token_ids": ((None,), "int32"),
        "region_ids": ((None,), "int32"),
        "region_mask": ((None,), "bool"),
        "regions": ((None, 3), "float32"),
        "pixels": ((None, 7, 2), "float32"),
        "decoder_actions": ((None,), "int32"),
    }
    inputs = {
        name: keras.Input(shape, dtype=dtype, name=name)
        for name, (shape, dtype) in shapes.items()
    }
    tables = {"token_ids": 5, "region_ids": 4, "decoder_actions": 2}
    found = [
        ops.sum(layers.Embedding(size, 1)(inputs[name]), (1, 2))
        for name, size in tables.items()
    ]
    model = keras.Model(inputs, ops.sum(ops.stack(found), 0))
    made = inputs_for(model, target=6)
    assert {name: value.dtype.name for name, value in made.items()} == {
        name: dtype for name, (_, dtype) in shapes.items()
    }
    assert {name: value.shape for name, value in made.items()} == {
        "token_ids": (B, S),
        "region_ids": (B, S),
        "region_mask": (B, S),
        "regions": (B, S, 3),
        "pixels": (B, 19, 7, 2),
        "decoder_actions": (B, 6),
    }
    for name, size in tables.items():
        assert 0 <= made[name].min() < made[name].max() < size
    assert made["region_mask"].all()
    assert np.isfinite(model(made)).all()
