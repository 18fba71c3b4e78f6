"""One step of an LSTM by NumPy and by PyTorch, for the parity of recurrent models."""

import functools

import numpy as np


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_step(weights, x, h, c):
    """An LSTM without peepholes; the gates are i, f, g, o."""
    W, R, b = weights
    i, f, g, o = np.split(x @ W + h @ R + b, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


@functools.cache
def torch_cell(inputs, units):
    import torch

    return torch.nn.LSTMCell(inputs, units, dtype=torch.float64)


def torch_step(weights, x, h, c):
    """The same by PyTorch's cell."""
    import torch

    W, R, b = weights
    cell = torch_cell(*W.T.shape[::-1][:1], len(h))
    with torch.no_grad():
        cell.weight_ih.copy_(torch.tensor(W.T))
        cell.weight_hh.copy_(torch.tensor(R.T))
        cell.bias_ih.copy_(torch.tensor(b))
        cell.bias_hh.zero_()
        h, c = cell(
            *[torch.tensor(x)[None]], (torch.tensor(h)[None], torch.tensor(c)[None])
        )
    return h[0].numpy(), c[0].numpy()
