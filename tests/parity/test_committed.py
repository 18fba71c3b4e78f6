"""Our layers against outputs of PyTorch, in files that `generate.py` writes."""

from pathlib import Path

import numpy as np
import pytest
from parity.ours import results

FILES = [
    *(f"mha_{x}_{y}" for x in ("self", "cross") for y in ("plain", "padding", "mask")),
    *(f"encoder_{x}_{y}" for x in ("pre", "post") for y in ("relu", "gelu")),
    *("decoder_pre_gelu", "decoder_post_relu", "recurrent_gru", "recurrent_lstm"),
]


@pytest.mark.parametrize("name", FILES)
def test_agrees_with_pytorch(name):
    with np.load(Path(__file__).parent / "data" / f"{name}.npz") as file:
        arrays = dict(file)
    found = results(name, arrays)
    expected = {key for key in arrays if key.startswith("output_")}
    assert {f"output_{key}" for key in found} == expected
    for key, array in found.items():
        np.testing.assert_allclose(array, arrays[f"output_{key}"], atol=1e-5, rtol=1e-5)
