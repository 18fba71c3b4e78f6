"""The Transformer against transformers, from tiny checkpoints.

`transformer_references.py` writes the folders. We have no loader for checkpoints of
this layout, so this file converts the weights: transformers has all sines before all
cosines, we interleave them, which only permutes the channels.
"""

import numpy as np
import pytest
from parity.folders import (
    CHECKPOINTS,
    arrays_of,
    outputs_of,
    tensors_of,
)

from keras_attn import models

CASES = ("transformer_post_norm", "transformer_pre_norm")
WIDTH = 12
# The index of each of our channels among transformers'.
ORDER = np.arange(WIDTH).reshape(2, -1).T.ravel()
PARTS = ("query", "key", "value", "output")


def ours_from(tensors, path):
    """The value of our weight with this path."""
    layer, *inner, kind = path.split("/")
    if layer == "token_embedding":
        return tensors["model.shared.weight"][:, ORDER]
    side, *_, index = layer.split("_")
    start = f"model.{side}."
    if layer.endswith("_norm"):
        return norm(tensors, f"{start}layer_norm", kind)
    start += f"layers.{index}."
    name = {
        "attention": "self_attn",
        "self_attention": "self_attn",
        "cross_attention": "encoder_attn",
        "feed_forward": "final",
    }[inner[0].removesuffix("_norm")]
    if inner[0].endswith("_norm"):
        return norm(tensors, f"{start}{name}_layer_norm", kind)
    if inner[0] == "feed_forward":
        first = inner[1] == "expand"
        found = tensors[f"{start}fc{1 if first else 2}.{torch_name(kind)}"]
        if kind == "bias":
            return found if first else found[ORDER]
        return found[:, ORDER].T if first else found[ORDER].T
    wanted = inner[1]
    parts = PARTS[:3] if wanted == "query_key_value" else (wanted,)
    found = []
    for part in parts:
        short = "out" if part == "output" else part[0]
        array = tensors[f"{start}{name}.{short}_proj.{torch_name(kind)}"]
        if part == "output":
            array = array[ORDER]  # Output channels.
        elif array.ndim == 2:
            array = array[:, ORDER]  # Input channels.
        found.append(array.T)
    return np.concatenate(found, axis=-1)


def torch_name(kind):
    return "bias" if kind.endswith("bias") else "weight"


def norm(tensors, name, kind):
    return tensors[f"{name}.{'weight' if kind == 'gamma' else 'bias'}"][ORDER]


def read(case, **options):
    tensors = tensors_of(CHECKPOINTS / case)
    model = models.build_transformer(
        vocabulary_size=29,
        num_layers=2,
        hidden_dim=WIDTH,
        num_heads=3,
        mlp_dim=20,
        norm_first=case.endswith("pre_norm"),
        layer_norm_epsilon=1e-5,
        **options,
    )
    model.set_weights([ours_from(tensors, weight.path) for weight in model.weights])
    # All weights are used except the sinusoids, and a bias that is not learned.
    learned = [
        tensor
        for name, tensor in tensors.items()
        if not name.endswith(("embed_positions.weight", "final_logits_bias"))
    ]
    assert sum(tensor.size for tensor in learned) == model.count_params()
    return model


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_transformers(case):
    inputs, expected = arrays_of(CHECKPOINTS / case)
    assert np.std(expected["logits"]) > 0.5
    found = outputs_of(read(case), inputs)["logits"]
    bias = tensors_of(CHECKPOINTS / case)["final_logits_bias"]
    np.testing.assert_allclose(found + bias, expected["logits"], rtol=0, atol=2e-5)
