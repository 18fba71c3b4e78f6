"""The committed files against PyTorch itself: `make test-parity`."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; `pip install torch`")

from parity.ours import results  # noqa: E402
from parity.references import make_cases  # noqa: E402

pytestmark = pytest.mark.parity
DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="module")
def cases():
    return make_cases()


def test_the_committed_files_are_reproduced(cases):
    assert {path.stem for path in DATA.glob("*.npz")} == set(cases)
    for name, arrays in cases.items():
        with np.load(DATA / f"{name}.npz") as file:
            assert set(file) == set(arrays)
            for key, array in arrays.items():
                np.testing.assert_allclose(
                    file[key], array, atol=1e-6, rtol=1e-6, err_msg=f"{name} {key}"
                )


def test_our_layers_agree_with_pytorch(cases):
    for name, arrays in cases.items():
        for key, array in results(name, arrays).items():
            np.testing.assert_allclose(
                array,
                arrays[f"output_{key}"],
                atol=1e-5,
                rtol=1e-5,
                err_msg=f"{name} {key}",
            )
