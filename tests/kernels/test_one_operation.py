"""A function that is one node of a functional model."""

import keras
import numpy as np
import pytest
from model_cases import build

from keras_attn import ops as attn
from keras_attn.kernels.one_operation import one_operation

MASK = np.array([[0, 1, 1, 1], [1, 1, 0, 1]], bool)


def test_a_model_has_one_node_that_computes_the_function(tmp_path):
    mask = keras.Input([None], dtype="bool")
    model = keras.Model(mask, attn.row_positions(mask))
    (node,) = model.operations[1:]
    assert type(node).__name__ == "RowPositions"
    assert model.output.dtype == "int32"
    expected = keras.ops.convert_to_numpy(attn.row_positions(MASK))
    np.testing.assert_array_equal(model.predict_on_batch(MASK), expected)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict_on_batch(MASK), expected)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("bert_base", {"Add", "RowPositions"}),
        ("roberta_base", {"Add", "RobertaPositions", "ZerosLike"}),
        ("gpt2_small", {"TokenPositions"}),
    ],
)
def test_what_a_summary_shows_beside_layers(case, expected):
    others = {
        type(operation).__name__
        for operation in build(case).operations
        if not isinstance(operation, keras.Layer)
    }
    assert others == expected


def test_two_uses_are_two_nodes_and_the_docstring_stays():
    @one_operation
    def twice_as_much(x):
        """Doubles."""
        return keras.ops.multiply(x, 2)

    x = keras.Input([3])
    model = keras.Model(x, twice_as_much(twice_as_much(x)))
    assert len(model.operations) == 3
    assert twice_as_much.__doc__ == "Doubles."
    np.testing.assert_array_equal(model(np.ones([1, 3])), 4 * np.ones([1, 3]))
