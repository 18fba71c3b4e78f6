"""Checks of the initial weights of a layer or a model."""

import numpy as np

# Two independent draws do not share this many values, not even up to a factor.
PREFIX = 4


def is_random(values):
    """Whether an initializer sampled the values.

    Constants hold one value, LSTM biases two.
    """
    return len(np.unique(values)) > 2


def assert_independent(weights):
    """No two weights, and no two rows or columns of one, start with the same values.

    The same random numbers may be scaled to another standard deviation, so directions
    are compared.

    Args:
        weights: Name to array.
    """
    random = {name: values for name, values in weights.items() if is_random(values)}
    firsts = {name: values.ravel()[:PREFIX] for name, values in random.items()}
    _assert_directions_differ(firsts)
    for name, values in random.items():
        if values.ndim < 2:
            continue
        matrix = values.reshape(-1, values.shape[-1])
        for kind, vectors in (("row", matrix), ("column", matrix.T)):
            if len(vectors[0]) >= PREFIX:
                _assert_directions_differ(
                    {f"{name} {kind} {i}": v[:PREFIX] for i, v in enumerate(vectors)}
                )


def assert_seed_decides(one, other, fixed=()):
    """Every random weight differs between two seeds.

    Args:
        one: Name to array, after one seed.
        other: The same after another seed.
        fixed: Names of weights that are tables, such as sinusoids.
    """
    assert set(one) == set(other)
    random = {name for name, values in one.items() if is_random(values)}
    same = {name for name in random if np.array_equal(one[name], other[name])}
    assert same == set(fixed)


def _assert_directions_differ(vectors):
    seen = {}
    for name, vector in vectors.items():
        direction = vector / max(np.linalg.norm(vector), 1e-30)
        key = (len(vector), *np.round(direction.astype("float64"), 4) + 0.0)
        assert key not in seen, f"{name} starts as {seen[key]}: {vector}"
        seen[key] = name
