"""Checks of models with LoRA weights and quantized weights."""

import keras
import numpy as np
from adaptation_cases import (
    REFUSED_MODELS,
    assert_only_updates_train,
    cosine,
    draw_updates,
    num_kernels,
    refused_in,
)
from model_cases import GRAPHS, inputs_for, is_detector, numpy, outputs_of
from model_contract import close

from keras_attn.training import adapters_off, enable_lora, merge_lora

# Every model with a kernel of a product.
TAKE_UPDATES = [case for case in GRAPHS if case not in REFUSED_MODELS]
# Blocks of 32 rows gave the tiny `clip_rn50` a cosine of 0.76 in int4, of 16 rows 0.98.
BLOCKS = {"int8": None, "int4": 16}


def adapt(model, inputs, expected):
    """Gives every kernel of a model an update, and checks what it computes.

    Args:
        model: The model.
        inputs: Its inputs.
        expected: Its outputs.

    Returns:
        The outputs with the updates.
    """
    report = enable_lora(model, 1, targets="all")
    close(outputs_of(model, inputs), expected, 0)
    refused = refused_in(model)
    passed_over = {path for paths in refused.values() for path in paths}
    assert set(report.passed_over) <= passed_over
    assert_only_updates_train(model)
    draw_updates(model)
    adapted = outputs_of(model, inputs)
    assert any((adapted[x] != expected[x]).any() for x in expected)
    return adapted


def quantize(model, mode, inputs, expected):
    """Makes integers of every kernel; returns the outputs, which are near."""
    report = model.quantize(mode, block_size=BLOCKS[mode])
    assert report.bytes_after < report.bytes_before
    small = [x for x in report.passed_over.values() if "no fewer bytes" in x]
    assert len(report.quantized) + len(small) == num_kernels(model)
    refused_in(model, mode, BLOCKS[mode])
    integers = outputs_of(model, inputs)
    for name, values in integers.items():
        np.testing.assert_array_equal(
            np.isfinite(values), np.isfinite(expected[name]), name
        )
        if values.dtype == np.float32 and not is_detector(model):
            limit = {"int8": 0.99, "int4": 0.9}[mode]
            assert cosine(values, expected[name]) > limit, name
    return integers


def assert_merges(model, inputs, adapted):
    """Merges the updates of a model, and returns the outputs, which are the same."""
    merge_lora(model)
    found = outputs_of(model, inputs)
    for name, values in found.items():
        largest = np.abs(adapted[name][np.isfinite(adapted[name])]).max(initial=1)
        if not is_detector(model):  # Rounding changes the order of detections.
            close({name: values}, {name: adapted[name]}, 1e-5 * largest)
    return found


def assert_file_keeps(model, inputs, expected, path):
    """Checks a model from a file, and returns it: the same outputs, the same trains."""
    model.save(path)
    loaded = keras.saving.load_model(path)
    close(outputs_of(loaded, inputs), expected, 0)
    # A recurrent cell that is loaded has a shorter path.
    names = [[x.name for x in each.trainable_variables] for each in (loaded, model)]
    assert names[0] == names[1]
    return loaded


def assert_pair_is_kept(model, loaded):
    """Checks the pair for decoding of a model from a file, if the model decodes."""
    if hasattr(model, "incremental"):
        ours, theirs = model.incremental().prefill, loaded.incremental().prefill
        inputs = inputs_for(ours)
        close(numpy(theirs(inputs)), numpy(ours(inputs)), 0)


def assert_takes_updates_and_integers(model, inputs, expected, path):
    """Checks a model with updates, and then, from a file too, with integers."""
    adapted = adapt(model, inputs, expected)
    with adapters_off(model):
        close(outputs_of(model, inputs), expected, 0)
    merged = assert_merges(model, inputs, adapted)
    integers = quantize(model, "int8", inputs, merged)
    assert_file_keeps(model, inputs, integers, path)
