"""Byte-pair encoding inside a TensorFlow graph.

Legend: U different words, n symbols of all words together, M merges.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf


class BytePairMerges:
    """Joins the symbols of words, pair by pair, in the order of the merges.

    In each word, the pair of neighbors that comes first in the list of merges is
    joined, the leftmost if it occurs several times, until no pair of neighbors is in
    the list. All words take a step at once, so the loop has as many steps as the word
    that needs most. It consists of TensorFlow's own operations and constants: a
    SavedModel with it needs no tables.

    Args:
        pairs: Ids of the symbols to join, int (M, 2), by priority; of equal pairs the
            last counts.
        joined: The id of each joined symbol, int (M,).
        num_ids: Number of ids, more than any of them.
    """

    def __init__(
        self, pairs: Sequence[Sequence[int]], joined: Sequence[int], num_ids: int
    ):
        table = np.asarray(pairs, np.int64).reshape(-1, 2)
        keys = table[:, 0] * num_ids + table[:, 1]
        # From the back, so that `unique` keeps the last of equal pairs.
        keys, last = np.unique(keys[::-1], return_index=True)
        self._num_ids = num_ids
        self._num_merges = len(table)
        with tf.init_scope(), tf.device("CPU"):
            # The largest key ends the list, so that a search never runs past it.
            self._keys = tf.constant([*keys, np.iinfo(np.int64).max], tf.int64)
            ranks = [*(len(table) - 1 - last), len(table)]
            self._ranks = tf.constant(ranks, tf.int64)
            self._joined = tf.constant([*joined, 0], tf.int32)

    def __call__(self, symbols: tf.Tensor, words: tf.Tensor) -> tuple:
        """Joins the symbols of all words.

        Args:
            symbols: Ids of the symbols, word by word, int32 (n,).
            words: The word of each symbol, int32 (n,), ascending.

        Returns:
            The ids that remain, int32 (m,), and the word of each, int32 (m,).
        """
        vector = tf.TensorShape([None])
        symbols, words, _ = tf.while_loop(
            lambda symbols, words, ranks: tf.reduce_any(ranks < self._num_merges),
            self._step,
            (symbols, words, self._rank(symbols, words, tf.range(tf.size(symbols)))),
            shape_invariants=(vector, vector, vector),
        )
        return symbols, words

    def _step(self, symbols, words, ranks) -> tuple:
        count = tf.size(ranks, tf.int64)
        # Ordered by rank, and from left to right where ranks are equal.
        order = ranks * count + tf.range(count)
        first = tf.math.segment_min(order, words)
        joins = (order == tf.gather(first, words)) & (ranks < self._num_merges)
        left = tf.cast(tf.where(joins)[:, 0], tf.int32)  # (k,)
        new = tf.gather(self._joined, tf.gather(ranks, left))
        symbols = tf.tensor_scatter_nd_update(symbols, left[:, None], new)
        # The right one of each pair is dropped.
        kept = tf.logical_not(tf.concat([[False], joins[:-1]], 0))
        symbols, words, ranks = (
            tf.boolean_mask(each, kept) for each in (symbols, words, ranks)
        )
        # Only the pairs of a new symbol with its neighbors have changed.
        left -= tf.range(tf.size(left))
        changed = tf.concat([left, tf.maximum(left - 1, 0)], 0)
        new = self._rank(symbols, words, changed)
        ranks = tf.tensor_scatter_nd_update(ranks, changed[:, None], new)
        return symbols, words, ranks

    def _rank(self, symbols: tf.Tensor, words: tf.Tensor, at: tf.Tensor) -> tf.Tensor:
        """The merges of the pairs that begin `at` (k,), int64 (k,); M for none."""
        after = tf.minimum(at + 1, tf.size(symbols) - 1)
        is_pair = (after > at) & (tf.gather(words, at) == tf.gather(words, after))
        first, second = (
            tf.cast(tf.gather(symbols, each), tf.int64) for each in (at, after)
        )
        keys = first * self._num_ids + second
        found = tf.searchsorted(self._keys, keys)
        is_merge = is_pair & (tf.gather(self._keys, found) == keys)
        return tf.where(is_merge, tf.gather(self._ranks, found), self._num_merges)
