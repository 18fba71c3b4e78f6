"""The papers' equations in NumPy, one query and one head at a time.

Written from the papers, for the tests only; no code is shared with the library.
Everything is float64.
"""

import math
from typing import Any

import numpy as np


def softmax(scores):
    """Probabilities of a row of scores; those of -inf are zero."""
    scores = np.asarray(scores, "float64")
    if np.all(np.isneginf(scores)):
        return np.zeros_like(scores)
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attend(score, query, key, value, mask=None):
    """Single-headed attention; `score(q, k)` is the score of two vectors.

    Args:
        score: A function from two vectors to a number.
        query: (B, T, Dq).
        key: (B, S, Dk).
        value: (B, S, Dv).
        mask: (B, T, S), True = attend.

    Returns:
        Contexts, (B, T, Dv), and probabilities, (B, T, S).
    """
    weights = np.zeros((len(query), query.shape[1], key.shape[1]))
    for b, t in np.ndindex(weights.shape[:2]):
        row = [score(query[b, t], k) for k in key[b]]
        if mask is not None:
            row = np.where(mask[b, t], row, -np.inf)
        weights[b, t] = softmax(row)
    return np.einsum("bts,bsd->btd", weights, value), weights


def score_of(layer):
    """The score of two vectors, with the weights of a built `ScoredAttention`."""
    weights = weights_of(layer)
    if "score_vector" in weights:
        w, u = weights["query/kernel"], weights["key/kernel"]
        v, b = weights["score_vector"][:, 0], weights.get("key/bias", 0.0)
        return lambda q, k: v @ np.tanh(q @ w + k @ u + b)
    kernel: Any = weights.get("projection/kernel")
    return {
        "dot": lambda q, k: q @ k,
        "scaled_dot": lambda q, k: q @ k / math.sqrt(len(q)),
        "general": lambda q, k: q @ kernel @ k,
        "linear": lambda q, k: np.concatenate([q, k]) @ kernel[:, 0],
    }[layer.score]


def multi_head(query, key, value, weights, heads, groups=None, mask=None, bias=None):
    """`concat(head_1 … head_N) W^O`, head by head (Vaswani et al. 2017, 3.2.2).

    Args:
        query: (B, T, Dq).
        key: (B, S, Dk).
        value: (B, S, Dv).
        weights: `wq, bq, wk, bk, wv, bv, wo, bo`; kernels (in, out).
        heads: N.
        groups: Key/value heads; each is shared by N / groups consecutive heads.
        mask: (B, N, T, S), True = attend.
        bias: (B, N, T, S), added to the scores.

    Returns:
        Outputs, (B, T, width of wo), and probabilities, (B, N, T, S).
    """
    wq, bq, wk, bk, wv, bv, wo, bo = weights
    groups = groups or heads
    size, value_size = wq.shape[1] // heads, wv.shape[1] // groups
    outputs, scores = [], []
    for b in range(len(query)):
        mixed, rows = [], []
        for n in range(heads):
            g = n // (heads // groups)
            q = (query[b] @ wq + bq)[:, n * size : (n + 1) * size]
            k = (key[b] @ wk + bk)[:, g * size : (g + 1) * size]
            v = (value[b] @ wv + bv)[:, g * value_size : (g + 1) * value_size]
            e = q @ k.T / math.sqrt(size)
            if bias is not None:
                e = e + bias[b, n]
            if mask is not None:
                e = np.where(mask[b, n], e, -np.inf)
            a = np.array([softmax(row) for row in e])
            mixed.append(a @ v)
            rows.append(a)
        outputs.append(np.concatenate(mixed, axis=1) @ wo + bo)
        scores.append(rows)
    return np.array(outputs), np.array(scores)


def layer_norm(x, gamma, beta, epsilon):
    """Over the last axis (Ba et al. 2016)."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return gamma * centred / np.sqrt(x.var(axis=-1, keepdims=True) + epsilon) + beta


def gelu(x):
    """`x Φ(x)`, exactly."""
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def relu(x):
    """`max(x, 0)`."""
    return np.where(x > 0, x, 0)


def sigmoid(x):
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


def gru_step(x, state, kernel, recurrent, bias):
    """Keras' GRU cell, `reset_after`: gates in the order update, reset, candidate."""
    z_x, r_x, n_x = np.split(x @ kernel + bias[0], 3, axis=-1)
    z_h, r_h, n_h = np.split(state @ recurrent + bias[1], 3, axis=-1)
    update, reset = sigmoid(z_x + z_h), sigmoid(r_x + r_h)
    candidate = np.tanh(n_x + reset * n_h)
    return update * state + (1 - update) * candidate


def lstm_step(x, state, carry, kernel, recurrent, bias):
    """An LSTM cell: gates in the order input, forget, candidate, output."""
    i, f, g, o = np.split(x @ kernel + state @ recurrent + bias, 4, axis=-1)
    carry = sigmoid(f) * carry + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(carry), carry


def sinusoid(position, dim, wavelength=10_000):
    """One position's sines and cosines (Vaswani et al. 2017, 3.5)."""
    return [
        (math.sin if i % 2 == 0 else math.cos)(
            position / wavelength ** ((i - i % 2) / dim)
        )
        for i in range(dim)
    ]


def array_of(variable):
    """The value of a Keras variable as an array, without NumPy's warning."""
    return np.asarray(variable.value)


def weights_of(layer) -> dict[str, Any]:
    """A built layer's weights by their paths inside it, in float64."""
    start = f"{layer.path}/"
    return {
        w.path.removeprefix(start): array_of(w).astype("float64") for w in layer.weights
    }


def multi_head_weights(layer):
    """`wq, bq, wk, bk, wv, bv, wo, bo` of a `MultiHeadAttention`.

    The columns of the fused kernel are those of queries, keys and values, in order.
    """
    by_name = weights_of(layer)
    size, groups = layer.key_dim, layer.num_key_value_heads
    ends = [layer.num_heads * size, (layer.num_heads + groups) * size]

    def parts(name, zeros):
        if f"query_key_value/{name}" in by_name:
            return np.split(by_name[f"query_key_value/{name}"], ends, axis=-1)
        found = [by_name.get(f"{part}/{name}") for part in ("query", "key", "value")]
        return [zeros if part is None else part for part in found]

    kernels = [*parts("kernel", None), by_name["output/kernel"]]
    if layer.use_bias:
        biases = [*parts("bias", None), by_name["output/bias"]]
    else:
        biases = [np.zeros(kernel.shape[1]) for kernel in kernels]
    return [one for pair in zip(kernels, biases, strict=True) for one in pair]
