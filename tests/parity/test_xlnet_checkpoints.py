"""XLNet against transformers, from tiny checkpoints: read, run, written and shipped.

`xlnet_references.py` writes the folders.
"""

import keras
import numpy as np
import pytest
from layer_contract import flat
from parity.folders import (
    CHECKPOINTS,
    TOLERANCE,
)

from keras_attn.models.checkpoints import load_checkpoint
from keras_attn.models.checkpoints.families.xlnet import XLNET


def close(actual, expected, atol=TOLERANCE):
    assert len(flat(actual)) == len(flat(expected))
    for one, other in zip(flat(actual), flat(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


def arrays_of(case):
    with np.load(CHECKPOINTS / case / "expected.npz") as file:
        return dict(file)


def inputs_of(arrays, prefix="input_"):
    names = ["token_ids", "padding_mask", "segment_ids"]
    names += ["permutation_mask", "target_mapping"] * (prefix == "input_")
    return {k: arrays[prefix + k] for k in names if prefix + k in arrays}


@pytest.mark.parametrize("case", ["xlnet_encoder", "xlnet_clamped"])
def test_the_encoder_agrees_with_transformers(case):
    arrays = arrays_of(case)
    inputs, real = inputs_of(arrays), arrays["input_padding_mask"]
    got = load_checkpoint(CHECKPOINTS / case)(inputs)
    sequence = flat(got["sequence_output"])[0]
    close(sequence[real], arrays["output_sequence"][real])
    last = [np.flatnonzero(row)[-1] for row in real]
    close(got["pooled_output"], sequence[np.arange(len(last)), last], atol=0)

    # The same with an empty memory, then the next segment with the memory of the first.
    # The memory of transformers includes padding, at which our outputs differ, so only
    # rows without padding in the memory are compared.
    rows = real[:, -5:].all(1)
    assert rows.sum() == 2
    model = load_checkpoint(CHECKPOINTS / case, memory_length=5)
    width = sequence.shape[-1]
    memory = np.zeros((len(real), 0, width), "float32")
    first = model({**inputs, "memory_0": memory, "memory_1": memory})
    close(first["sequence_output"], sequence)
    later = inputs_of(arrays, "input_later_")
    memory = {f"memory_{i}": flat(first[f"memory_{i}"])[0] for i in range(2)}
    second = model({**later, **memory})
    real = later["padding_mask"] & rows[:, None]
    sequence = flat(second["sequence_output"])[0]
    close(sequence[real], arrays["output_later_sequence"][real])
    for i in range(2):
        close(memory[f"memory_{i}"][rows], arrays[f"output_memory_{i}"][rows])
        # Compared: positions of the first segment, and real tokens of the second.
        theirs, ours = arrays[f"output_later_memory_{i}"], second[f"memory_{i}"]
        kept = np.concatenate([np.ones((len(real), 2), bool), later["padding_mask"]], 1)
        kept &= rows[:, None]
        close(flat(ours)[0][kept], theirs[kept])


def test_the_language_model_agrees_with_transformers():
    arrays, folder = arrays_of("xlnet_lm"), CHECKPOINTS / "xlnet_lm"
    inputs = inputs_of(arrays)
    model = load_checkpoint(folder)
    close(model(inputs), arrays["output_logits"])
    content = load_checkpoint(folder, task="masked_lm")(
        {k: inputs[k] for k in ("token_ids", "padding_mask", "segment_ids")}
    )
    real = inputs["padding_mask"]
    close(flat(content)[0][real], arrays["output_content_logits"][real])
    model = load_checkpoint(folder, memory_length=5)
    memory = {f"memory_{i}": arrays[f"output_memory_{i}"] for i in range(2)}
    close(model({**inputs, **memory}), arrays["output_logits_behind_memory"])


def test_the_classifier_agrees_with_transformers():
    arrays = arrays_of("xlnet_classifier")
    model = load_checkpoint(CHECKPOINTS / "xlnet_classifier")
    inputs, real = inputs_of(arrays), arrays["input_padding_mask"]
    got = flat(model(inputs))[0]
    # transformers pools the last position, which with right padding is no real token.
    ends = real[:, -1]
    assert ends.sum() == 3
    close(got[ends], arrays["output_logits"][ends])
    # Ours gives the outputs of the same tokens with left padding.
    moved = {k: x.copy() for k, x in inputs.items()}
    for row in np.flatnonzero(~ends):
        shift = len(real[row]) - 1 - np.flatnonzero(real[row])[-1]
        assert shift > 0
        for x in moved.values():
            x[row] = np.roll(x[row], shift)
    close(model(moved), got)


def test_only_xlnets_are_recognized():
    assert XLNET.find_task(keras.Sequential([keras.Input((3,))])) is None
    encoder = load_checkpoint(CHECKPOINTS / "xlnet_encoder", memory_length=7)
    assert XLNET.find_task(encoder) == "encoder"
    block = encoder.get_layer("block_1").output
    assert XLNET.find_task(keras.Model(encoder.input, block)) is None
    assert XLNET.config(encoder)["mem_len"] == 7


@pytest.mark.shipped
@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="exporters need TensorFlow"
)
def test_it_is_exported_at_any_size(tmp_path):
    from keras_attn.export import export, load_runner

    model = load_checkpoint(CHECKPOINTS / "xlnet_lm")
    inputs, path = inputs_of(arrays_of("xlnet_lm")), tmp_path / "model.tflite"
    report = export(model, path)
    assert not report.notes  # No size was fixed.
    assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-4
    names = " ".join(report.operators).upper()
    assert "FLEX" not in names and "CUSTOM" not in names
    (got,) = load_runner(path)(inputs).values()
    close(got, model(inputs))
