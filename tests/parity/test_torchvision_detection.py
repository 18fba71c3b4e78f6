"""Faster R-CNN and Mask R-CNN against torchvision's, at tiny sizes with odd images.

torchvision's model pads a batch to a multiple of 32 by itself, and its transform leaves
an image of the right size as it is. Ours is read from a folder with its `state_dict`.
"""

from typing import Any

import keras
import numpy as np
import pytest
from parity.detector_training import SIZE, images_of
from parity.folders import same_arrays

from keras_attn import ops
from keras_attn.models import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch", reason="needs PyTorch: the extra `parity`")
shim: Any = pytest.importorskip("parity.torchvision_shim")
if not shim.is_installed():
    pytest.skip("needs torchvision", allow_module_level=True)
references: Any = pytest.importorskip("parity.detector_references")


@pytest.fixture(scope="module", params=[False, True], ids=["faster", "mask"])
def pair(request, tmp_path_factory):
    """torchvision's model, ours with its weights, images, and what both return."""
    theirs = references.reference(request.param)
    folder = tmp_path_factory.mktemp("torchvision")
    references.save(folder, theirs)
    model: Any = load_checkpoint(folder)
    images = images_of()
    expected = references.run(theirs, images)
    found = {k: keras.ops.convert_to_numpy(v) for k, v in model(images).items()}
    return theirs, model, images, expected, found


def close(found, expected):
    expected = expected.numpy() if hasattr(expected, "numpy") else expected
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * scale)


def test_detections(pair):
    _, model, images, expected, found = pair
    for row, wanted in enumerate(expected):
        count = int(found["num_detections"][row])
        assert count == len(wanted["boxes"]) > 5
        close(found["boxes"][row, :count], wanted["boxes"])
        close(found["scores"][row, :count], wanted["scores"])
        labels = found["classes"][row, :count] + 1
        np.testing.assert_array_equal(labels, wanted["labels"])
        assert len(set(labels)) > 1
        if "masks" not in wanted:
            continue
        pasted = ops.paste_masks(
            found["masks"], found["boxes"], SIZE, threshold=None, aligned=False
        )
        close(pasted[row, :count], wanted["masks"][:, 0])
        assert wanted["masks"].std() > 0.03


def test_torchvision_reads_our_file(pair, tmp_path):
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    theirs, model, *_ = pair
    save_checkpoint(model, tmp_path)
    written, expected = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert set(written) == set(expected)
    for key, value in expected.items():
        assert torch.equal(written[key], value), key
    references.reference(model.has_masks).load_state_dict(written)


def test_the_committed_file_is_that_of_torchvision():
    theirs = references.reference(masks=True)
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    committed = load_file(references.FOLDER / "model.safetensors")
    for key, value in theirs.state_dict().items():
        assert torch.equal(committed[key].float(), value), key
    found = references.expected_of(references.run(theirs, images_of()))
    same_arrays(references.FOLDER / "expected.npz", found, 1e-4)
    same_arrays(
        references.FOLDER / "training.npz", references.training_of(theirs), 1e-4
    )
