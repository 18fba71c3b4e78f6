"""Our layers with PyTorch's weights, called with PyTorch's inputs."""

import keras
import numpy as np
from keras import ops

from keras_attn import layers

HEADS = 3


def results(name, arrays):
    """The outputs of our layer for a case of `references.py`.

    Args:
        name: Name of the case.
        arrays: Its weights, inputs and expected outputs.

    Returns:
        Our outputs, by the names of the case.
    """
    family, *words = name.split("_")
    inputs = {
        key.removeprefix("input_"): array
        for key, array in arrays.items()
        if key.startswith("input_")
    }
    weights = {
        key: array
        for key, array in arrays.items()
        if not key.startswith(("input_", "output_"))
    }
    if family == "mha":
        found = _multi_head(inputs, weights)
    elif family == "recurrent":
        found = _recurrent(words[0], inputs, weights)
    else:
        found = _block(family, words[0], words[1], inputs, weights)
    return {
        key: np.asarray(ops.convert_to_numpy(tensor)) for key, tensor in found.items()
    }


def _projections(weights, prefix=""):
    """PyTorch's weights to kernels and biases of query, key, value and output."""
    if f"{prefix}in_proj_weight" in weights:
        kernels = np.split(weights[f"{prefix}in_proj_weight"], 3)
    else:
        kernels = [weights[f"{prefix}{part}_proj_weight"] for part in "qkv"]
    biases = np.split(weights[f"{prefix}in_proj_bias"], 3)
    output = weights[f"{prefix}out_proj.weight"], weights[f"{prefix}out_proj.bias"]
    pairs = [*zip(kernels, biases, strict=True), output]
    return [(kernel.T, bias) for kernel, bias in pairs]


def _set_attention(layer, projections):
    *inward, (output_kernel, output_bias) = projections
    if layer.is_self_attention:
        kernels, biases = zip(*inward, strict=True)
        layer.query_key_value.kernel.assign(np.concatenate(kernels, axis=1))
        layer.query_key_value.bias.assign(np.concatenate(biases))
    else:
        for part, (kernel, bias) in zip(("query", "key", "value"), inward, strict=True):
            getattr(layer, part).kernel.assign(kernel)
            getattr(layer, part).bias.assign(bias)
    layer.output_projection.kernel.assign(output_kernel)
    layer.output_projection.bias.assign(output_bias)


def _multi_head(inputs, weights):
    query = inputs["query"]
    layer = layers.MultiHeadAttention(HEADS, query.shape[-1] // HEADS)
    call = [query]
    if "value" in inputs:
        call += [inputs["value"], inputs["key"]]
    layer.build(*(array.shape for array in call))
    _set_attention(layer, _projections(weights))
    outputs, scores = layer(
        *call,
        padding_mask=inputs.get("padding"),
        attention_mask=inputs.get("mask"),
        return_attention_scores=True,
    )
    return {"outputs": outputs, "scores": scores}


def _block(family, order, activation, inputs, weights):
    is_decoder = family == "decoder"
    kind = (
        layers.TransformerDecoderBlock if is_decoder else layers.TransformerEncoderBlock
    )
    block = kind(
        HEADS,
        len(weights["linear1.bias"]),
        activation=activation,
        norm_first=order == "pre",
    )
    masks = {"padding_mask": inputs["padding"]}
    call = [inputs["inputs"]]
    norms = ["attention_norm", "feed_forward_norm"]
    attentions = {"attention": "self_attn."}
    if is_decoder:
        call.append(inputs["memory"])
        masks["encoder_padding_mask"] = inputs["memory_padding"]
        norms = ["self_attention_norm", "cross_attention_norm", "feed_forward_norm"]
        attentions = {
            "self_attention": "self_attn.",
            "cross_attention": "multihead_attn.",
        }
    block.build(*(array.shape for array in call))
    for name, prefix in attentions.items():
        _set_attention(getattr(block, name), _projections(weights, prefix))
    for number, name in enumerate(norms, start=1):
        getattr(block, name).gamma.assign(weights[f"norm{number}.weight"])
        getattr(block, name).beta.assign(weights[f"norm{number}.bias"])
    dense: tuple = (block.feed_forward.expand, block.feed_forward.contract)
    for number, layer in enumerate(dense, start=1):
        layer.kernel.assign(weights[f"linear{number}.weight"].T)
        layer.bias.assign(weights[f"linear{number}.bias"])
    return {"outputs": block(*call, **masks)}


def _recurrent(kind, inputs, weights):
    units = inputs["state"].shape[-1]
    cells = {"gru": keras.layers.GRUCell, "lstm": keras.layers.LSTMCell}
    layer = layers.AttentionRNN(cells[kind](units), layers.DotProductAttention("dot"))
    layer.build(inputs["inputs"].shape, inputs["memory"].shape)
    biases = np.stack([weights["bias_ih"], weights["bias_hh"]])
    # PyTorch's gates: reset, update, candidate; Keras: update, reset, candidate.
    order = {"gru": [1, 0, 2], "lstm": [0, 1, 2, 3]}[kind]

    def reorder(array):
        parts = np.split(array, len(order), axis=-1)
        return np.concatenate([parts[gate] for gate in order], axis=-1)

    layer.cell.set_weights(
        [
            reorder(weights["weight_ih"].T),
            reorder(weights["weight_hh"].T),
            reorder(biases if kind == "gru" else biases.sum(axis=0)),
        ]
    )
    states = [inputs[name] for name in ("state", "carry") if name in inputs]
    found = layer(
        inputs["inputs"],
        inputs["memory"],
        states,
        memory_padding_mask=inputs["padding"],
        return_attention_scores=True,
    )
    return {
        "states": found["states"],
        "contexts": found["contexts"],
        "scores": found["attention_scores"][:, 0],
    }
