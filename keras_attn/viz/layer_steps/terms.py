"""Terms of the scores of an attention layer: named numbers, whose sum a score is.

    product   e_nts = Σ_a f_na · l_na · r_na          f: a scale
    tanh      e_nts = Σ_a f_na · tanh(l_na + r_na)    f: the vector v of additive scores
    relu      e_nts = Σ_a f_na · max(l_na + r_na, 0)
    number    e_nts itself, such as a bias

l is a row of the query and r one of the key, unless `left_rows` or `right_rows` say
which row belongs to a pair: relative positions have a row for each distance.

Legend: N heads, T queries, S keys, A units that are summed over, L and R rows.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

_OF_A_SUM = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


@dataclass(frozen=True, eq=False)
class Term:
    """One term of the scores, and the numbers whose sum it is.

    Attributes:
        name: Its name, such as `q · k / √H`.
        function: How the numbers are made; see the top of this file.
        values: (N, T, S), the term itself.
        left: (N, L, A), rows of the queries; None for `number`, like the next two.
        right: (N, R, A), rows of the keys.
        factor: (N, A).
        left_rows: Which row of `left` a pair has, integers (T, S). None = row t.
        right_rows: Which row of `right` a pair has, integers (T, S). None = row s.
    """

    name: str
    function: Literal["product", "tanh", "relu", "number"]
    values: np.ndarray
    left: np.ndarray | None = None
    right: np.ndarray | None = None
    factor: np.ndarray | None = None
    left_rows: np.ndarray | None = None
    right_rows: np.ndarray | None = None

    def parts(self, head: int, query: int, key: int) -> np.ndarray:
        """The numbers whose sum is the term of one pair, (A,); one for `number`.

        Args:
            head: Number of the head.
            query: t.
            key: s.
        """
        if self.left is None or self.right is None or self.factor is None:
            return self.values[head, query, key][None]
        row = query if self.left_rows is None else self.left_rows[query, key]
        column = key if self.right_rows is None else self.right_rows[query, key]
        left, right = self.left[head, row], self.right[head, column]
        return self.factor[head] * _combine(self.function, left, right)

    def of_heads(self, heads: list[int]) -> "Term":
        """The term of some of the heads.

        Args:
            heads: Their numbers.
        """
        names = ("values", "left", "right", "factor")
        arrays = {name: getattr(self, name) for name in names}
        own = {x: y[heads] for x, y in arrays.items() if y is not None}
        return dataclasses.replace(self, **own)


def number(name: str, values, shape: tuple[int, int, int]) -> Term:
    """A term that is one number for each pair.

    Args:
        name: Its name.
        values: Broadcastable to (N, T, S).
        shape: (N, T, S).
    """
    return Term(name, "number", np.broadcast_to(as_float64(values), shape))


def product(
    name: str, left, right, scale: float = 1.0, *, left_rows=None, right_rows=None
) -> Term:
    """A scaled dot product of rows.

    Args:
        name: Its name.
        left: (N, L, A).
        right: (N, R, A).
        scale: Factor of each product.
        left_rows: (T, S), or None.
        right_rows: (T, S), or None.
    """
    left, right = as_float64(left), as_float64(right)
    factor = np.full((len(left), left.shape[-1]), float(scale))
    return _term(name, "product", left, right, factor, left_rows, right_rows)


def activated(
    name: str, function: Literal["tanh", "relu"], left, right, factor
) -> Term:
    """A weighted sum of activations of the sum of two rows.

    Args:
        name: Its name.
        function: The activation.
        left: (N, T, A).
        right: (N, S, A).
        factor: (N, A).
    """
    left, right, factor = as_float64(left), as_float64(right), as_float64(factor)
    return _term(name, function, left, right, factor, None, None)


def as_float64(values) -> np.ndarray:
    """An array of numbers in float64, in which the steps are computed."""
    return np.asarray(values, "float64")


def _term(name, function, left, right, factor, left_rows, right_rows) -> Term:
    if function == "product" and left_rows is None and right_rows is None:
        values = (left * factor[:, None]) @ right.swapaxes(1, 2)
    else:
        queries, keys = left.shape[1], right.shape[1]
        rows = np.arange(queries)[:, None] if left_rows is None else left_rows
        columns = np.arange(keys)[None] if right_rows is None else right_rows
        # A head at a time: (T, S, A) of all heads need not fit into memory.
        values = np.stack(
            [
                _combine(function, own_left[rows], own_right[columns]) @ own_factor
                for own_left, own_right, own_factor in zip(
                    left, right, factor, strict=True
                )
            ]
        )
    return Term(name, function, values, left, right, factor, left_rows, right_rows)


def _combine(function, left, right):
    if function == "product":
        return left * right
    return _OF_A_SUM[function](left + right)
