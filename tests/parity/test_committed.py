"""Our layers against outputs of PyTorch, in files that `generate.py` writes."""

from pathlib import Path

import numpy as np
import pytest
from parity.ours import results

FILES = sorted((Path(__file__).parent / "data").glob("*.npz"))


def test_every_case_is_committed():
    families = {path.stem.split("_")[0] for path in FILES}
    assert families == {"mha", "encoder", "decoder", "recurrent"}
    assert len(FILES) == 14
    assert sum(path.stat().st_size for path in FILES) < 100_000


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_agrees_with_pytorch(path):
    with np.load(path) as file:
        arrays = dict(file)
    found = results(path.stem, arrays)
    expected = {key for key in arrays if key.startswith("output_")}
    assert {f"output_{key}" for key in found} == expected
    for key, array in found.items():
        np.testing.assert_allclose(array, arrays[f"output_{key}"], atol=1e-5, rtol=1e-5)
