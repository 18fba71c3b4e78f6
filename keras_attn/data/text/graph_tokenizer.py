"""Base class of the tokenizers that also run inside a TensorFlow graph.

Legend: B batch, T the longest row of the batch, in tokens.
"""

import abc
import functools
from typing import Any

import tensorflow as tf

from keras_attn.data.text.conventions import Vocabulary
from keras_attn.data.text.text_tokenizer import TextTokenizer, truncated_lengths


# Both `tf.Module` and `abc.ABC` have a metaclass; a subclass of both needs one too.
class _GraphMeta(abc.ABCMeta, type(tf.Module)):
    pass


class GraphTokenizer(TextTokenizer, tf.Module, metaclass=_GraphMeta):
    """A tokenizer that also works on string tensors, inside a graph.

    `pack` can be used in a `tf.function`, in `Dataset.map` and in a signature of a
    SavedModel. As an attribute of a `tf.Module` the tokenizer is saved with its tables;
    loading it needs only TensorFlow and tensorflow-text.
    """

    def __init__(self, vocabulary: Vocabulary):
        tf.Module.__init__(self)
        TextTokenizer.__init__(self, vocabulary)
        signature = [tf.TensorSpec([None], tf.string)]
        # In a `partial`, because a function as an attribute would be saved too.
        self._compiled = functools.partial(tf.function(self._ragged, signature))

    @abc.abstractmethod
    def _ragged(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of texts (B,), int32 (B, ragged)."""

    def _tokenize(self, texts: list[str]) -> list[list[int]]:
        return self._compiled(tf.constant(texts)).to_list()

    def pack(
        self,
        texts: tf.Tensor,
        second_texts: tf.Tensor | None = None,
        *,
        max_length: int | None = None,
        pad_to_max_length: bool = False,
    ) -> dict[str, tf.Tensor]:
        """Encodes string tensors into the inputs of a model: `encode_batch` in a graph.

        Args:
            texts: UTF-8 strings (B,).
            second_texts: UTF-8 strings (B,), the second text of each row's pair.
            max_length: As in `encode_batch`.
            pad_to_max_length: As in `encode_batch`; True gives a static length.

        Returns:
            A dictionary of `token_ids` int32 (B, T), `padding_mask` int32 (B, T), 1 =
            a real token, and `segment_ids` int32 (B, T).
        """
        is_pair = second_texts is not None
        max_length = self.max_length if max_length is None else max_length
        room = self._room(is_pair, max_length, pad_to_max_length)
        strings = _as_strings("texts", texts)
        if self.prompt:
            strings = tf.strings.join([self.prompt, strings])
        parts = {"A": self._ragged(strings)}
        if is_pair:
            parts["B"] = self._ragged(_as_strings("second_texts", second_texts))
        if room is not None:
            lengths = {n: tf.cast(p.row_lengths(), tf.int32) for n, p in parts.items()}
            kept = truncated_lengths(lengths, room, tf.minimum, tf.maximum)
            is_left = self.truncation_side == "left"
            parts = {
                name: _truncate(part, kept[name], is_left)
                for name, part in parts.items()
            }
        batch = parts["A"].nrows()
        columns = []
        for role, segment in self._template(is_pair):
            part = parts.get(role)
            if part is None:
                special = tf.fill([batch, 1], self._vocabulary.role(role))
                part = tf.RaggedTensor.from_tensor(special)
            columns.append((part, tf.ones_like(part) * segment))
        ids, segments = (tf.concat(each, axis=1) for each in zip(*columns, strict=True))
        shape = [None, max_length if pad_to_max_length else None]

        def dense(ragged, fill):
            if not self.convention.pad_left:
                return ragged.to_tensor(fill, shape=shape)
            return ragged[:, ::-1].to_tensor(fill, shape=shape)[:, ::-1]

        return {
            "token_ids": dense(ids, self.pad_token_id),
            "padding_mask": dense(tf.ones_like(ids, tf.int32), 0),
            "segment_ids": dense(segments, self.convention.pad_segment),
        }


def _truncate(
    rows: tf.RaggedTensor, count: tf.Tensor, is_left: bool
) -> tf.RaggedTensor:
    """The first `count` (B,) tokens of each row; the last ones if `is_left`."""
    lengths, row = rows.row_lengths(), rows.value_rowids()
    column = tf.cast(tf.ragged.range(lengths).flat_values, tf.int32)
    if is_left:
        column = tf.gather(tf.cast(lengths, tf.int32), row) - 1 - column
    keep = column < tf.gather(count, row)
    return tf.ragged.boolean_mask(rows, rows.with_flat_values(keep))


def _as_strings(name: str, texts: Any) -> tf.Tensor:
    texts = tf.convert_to_tensor(texts)
    if texts.dtype != tf.string or texts.shape.rank != 1:
        raise ValueError(
            f"`{name}` must be strings of shape (B,). Received: {name} of shape "
            f"{texts.shape}, dtype {texts.dtype.name}"
        )
    return texts
