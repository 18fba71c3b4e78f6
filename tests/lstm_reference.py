"""One step of an LSTM by NumPy and by PyTorch, for the parity of recurrent models."""

import functools

from attention_reference import lstm_step


def numpy_step(weights, x, h, c):
    """An LSTM without peepholes; the gates are i, f, g, o."""
    return lstm_step(x, h, c, *weights)


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
