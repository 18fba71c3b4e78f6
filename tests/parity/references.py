"""Attention layers of PyTorch with tiny random weights: inputs and outputs.

Each case is a flat dictionary of arrays: weights by PyTorch's names, inputs as
`input_*`, outputs as `output_*`. NumPy samples them with a fixed seed, so the cases are
reproducible.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

B, T, S = 2, 5, 7
D, HEADS, MLP = 6, 3, 13
KEY_WIDTH, VALUE_WIDTH = 11, 17
UNITS = 11


def make_cases():
    """Name of every case to its arrays."""
    cases = {}
    for name in ("plain", "padding", "mask"):
        cases[f"mha_self_{name}"] = multi_head(True, name)
        cases[f"mha_cross_{name}"] = multi_head(False, name)
    for norm_first in (False, True):
        order = "pre" if norm_first else "post"
        for activation in ("relu", "gelu"):
            cases[f"encoder_{order}_{activation}"] = encoder(norm_first, activation)
        activation = "gelu" if norm_first else "relu"
        cases[f"decoder_{order}_{activation}"] = decoder(norm_first, activation)
    cases["recurrent_gru"] = recurrent("gru")
    cases["recurrent_lstm"] = recurrent("lstm")
    return cases


def padding_of(length):
    """True = a real position."""
    return np.arange(length) < np.array([[length], [3]])


def multi_head(is_self, masked):
    """`torch.nn.MultiheadAttention`; cross-attention has `kdim` and `vdim`."""
    case = _Case()
    query = case.input("query", B, T, D)
    key = query if is_self else case.input("key", B, S, KEY_WIDTH)
    value = query if is_self else case.input("value", B, S, VALUE_WIDTH)
    layer = case.set_weights(
        torch.nn.MultiheadAttention(
            D, HEADS, kdim=key.shape[-1], vdim=value.shape[-1], batch_first=True
        )
    )
    length, options = key.shape[1], {}
    if masked == "padding":
        options["key_padding_mask"] = case.mask("padding", padding_of(length))
    elif masked == "mask":
        visible = case.rng.random((T, length)) < 0.7
        visible[:, 0] = True
        options["attn_mask"] = case.mask("mask", visible)
    outputs, scores = layer(query, key, value, average_attn_weights=False, **options)
    return case.record(outputs=outputs, scores=scores)


def encoder(norm_first, activation):
    """`torch.nn.TransformerEncoderLayer`."""
    case = _Case()
    inputs = case.input("inputs", B, T, D)
    layer = _layer(case, torch.nn.TransformerEncoderLayer, norm_first, activation)
    padding = case.mask("padding", padding_of(T))
    return case.record(outputs=layer(inputs, src_key_padding_mask=padding))


def decoder(norm_first, activation):
    """`torch.nn.TransformerDecoderLayer`, with the causal mask."""
    case = _Case()
    inputs = case.input("inputs", B, T, D)
    memory = case.input("memory", B, S, D)
    layer = _layer(case, torch.nn.TransformerDecoderLayer, norm_first, activation)
    outputs = layer(
        inputs,
        memory,
        tgt_mask=torch.from_numpy(~np.tri(T, dtype=bool)),
        tgt_key_padding_mask=case.mask("padding", padding_of(T)),
        memory_key_padding_mask=case.mask("memory_padding", padding_of(S)),
    )
    return case.record(outputs=outputs)


def _layer(case, layer, norm_first, activation):
    options = {"norm_first": norm_first, "activation": activation}
    return case.set_weights(layer(D, HEADS, MLP, batch_first=True, **options))


def recurrent(kind):
    """A recurrent decoder of PyTorch's cells with dot-product attention to a memory."""
    case = _Case()
    inputs = case.input("inputs", B, T, D)
    memory = case.input("memory", B, S, UNITS)
    padding = case.mask("padding", padding_of(S))
    cell_type = {"gru": torch.nn.GRUCell, "lstm": torch.nn.LSTMCell}[kind]
    cell = case.set_weights(cell_type(D + UNITS, UNITS))
    state = case.input("state", B, UNITS)
    if kind == "lstm":
        state = (state, case.input("carry", B, UNITS))
    rows = {"states": [], "contexts": [], "scores": []}
    for step in range(T):
        query = state if kind == "gru" else state[0]
        energies = torch.einsum("bu,bsu->bs", query, memory)
        weights = energies.masked_fill(padding, -torch.inf).softmax(-1)
        context = torch.einsum("bs,bsu->bu", weights, memory)
        state = cell(torch.cat([inputs[:, step], context], dim=-1), state)
        rows["states"].append(state if kind == "gru" else state[0])
        rows["contexts"].append(context)
        rows["scores"].append(weights)
    return case.record(**{name: torch.stack(row, 1) for name, row in rows.items()})


class _Case:
    """Samples inputs and weights, and records them."""

    def __init__(self):
        self.rng = np.random.default_rng(11)
        self.arrays = {}

    def input(self, name, *shape):
        array = self.rng.normal(size=shape).astype("float32")
        self.arrays[f"input_{name}"] = array
        return torch.from_numpy(array)

    def mask(self, name, visible):
        """Records a mask (True = attend); returns PyTorch's, the opposite."""
        self.arrays[f"input_{name}"] = visible
        return torch.from_numpy(~visible)

    def set_weights(self, module):
        for name, parameter in module.named_parameters():
            array = self.rng.normal(size=parameter.shape) * 0.3
            self.arrays[name] = array.astype("float32")
            parameter.data = torch.from_numpy(self.arrays[name])
        return module.eval()

    def record(self, **outputs):
        for name, tensor in outputs.items():
            self.arrays[f"output_{name}"] = tensor.detach().numpy()
        return self.arrays
