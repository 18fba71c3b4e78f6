"""Signatures that take strings: a tokenizer and a model in one graph.

Legend: B batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from keras_attn.data.text.graph_tokenizer import GraphTokenizer
from keras_attn.export.formats import Format
from keras_attn.export.shapes import Specs
from keras_attn.export.signature_info import SERVE, SERVE_PAIR, TEXT, TEXT_PAIR
from keras_attn.export.signatures import Signature
from keras_attn.models.parts.pair_encoders import attends_to_padding

_LOADING = (
    "plain TensorFlow loads this SavedModel after `import tensorflow_text`, which has "
    "the tokenizer's operators"
)
# Outputs of a tokenizer.
_PACKED = ("token_ids", "padding_mask", "segment_ids")


def check_tokenizer(tokenizer: Any, format: Format, model: Any) -> None:
    """Raises unless a tokenizer can run in the graph of a model.

    Raises:
        ValueError: If it cannot, the format has no strings, or the names of the model's
            inputs are unknown.
    """
    if not isinstance(tokenizer, GraphTokenizer):
        raise ValueError(
            "`tokenizer` must be a `WordPieceTokenizer`, a `SentencePieceTokenizer` or "
            "a `CLIPTokenizer`, which work inside a graph; with any other, export the "
            "model without it and encode texts yourself. A `JSONTokenizer` is what a "
            "folder gives that says more, such as added tokens: its library does not "
            f"work there. Received: tokenizer={tokenizer!r}"
        )
    if not format.takes_strings:
        raise ValueError(
            "`tokenizer` is only for SavedModels: other formats have no tokenizer "
            "operators. Leave it out, and pass what `tokenizer.encode_batch` returns. "
            f"Received: tokenizer of type {type(tokenizer).__name__}, "
            f"format={format.name!r}"
        )
    if isinstance(model, keras.Model) and not getattr(model, "inputs", None):
        raise ValueError(
            "`model` must be functional if a `tokenizer` is given, so that its inputs "
            f"have names. Received: model={model!r}"
        )


def with_tokenizer(
    serve: Signature,
    model: Any,
    tokenizer: GraphTokenizer,
    sequence_length: int | Mapping[str, int] | None,
) -> list[Signature]:
    """The signatures of a model with its tokenizer.

    Args:
        serve: Its signature that takes what a tokenizer returns.
        model: A functional model.
        tokenizer: The tokenizer that the model was trained with.
        sequence_length: Number of tokens that every row is truncated and padded to.
            None pads to the longest row of a batch, for SigLIP's text tower to all
            positions, and truncates to the model's positions, or to the maximum of the
            tokenizer.

    Returns:
        `serve`, which takes `text` (B,); and if the model has `segment_ids`,
        `serve_pair`, which takes `text` and `text_pair`.

    Raises:
        ValueError: If the model has inputs that a tokenizer does not output or a
            smaller vocabulary, or `sequence_length` does not suit it.
    """
    _check_inputs(serve)
    _check_vocabulary(serve, tokenizer)
    positions = _num_positions(serve)
    _check_sequence_length(sequence_length, positions)
    attends = attends_to_padding(model)
    max_length = sequence_length or positions
    if sequence_length is None and not attends and tokenizer.max_length is not None:
        # A folder may read fewer tokens than its model has positions.
        max_length = min(tokenizer.max_length, positions or tokenizer.max_length)
    texts: list[tuple[str, tuple[str, ...]]] = [(SERVE, (TEXT,))]
    if "segment_ids" in serve.inputs:
        texts.append((SERVE_PAIR, (TEXT, TEXT_PAIR)))
    _check_max_length(tokenizer, len(texts), max_length)
    pad = sequence_length is not None or attends
    served = [
        _tokenizing(serve, name, inputs, tokenizer, max_length, pad)
        for name, inputs in texts
    ]
    return [replace(served[0], notes=(*serve.notes, _LOADING)), *served[1:]]


def _check_inputs(serve: Signature) -> None:
    """Raises unless the inputs of a model are outputs of a tokenizer."""
    unknown = sorted(set(serve.inputs) - set(_PACKED))
    if serve.name != SERVE or "token_ids" not in serve.inputs or unknown:
        raise ValueError(
            f"`model` must take only outputs of a tokenizer ({', '.join(_PACKED)}) if "
            "`tokenizer` is given; to export the forward pass of a generative model "
            "pass `keras.Model(model.inputs, model.outputs)`. "
            f"Received: signature `{serve.name}` with the inputs {sorted(serve.inputs)}"
        )


def _check_sequence_length(
    sequence_length: int | Mapping[str, int] | None, positions: int | None
) -> None:
    if isinstance(sequence_length, Mapping):
        raise ValueError(
            "`sequence_length` must be one number if a `tokenizer` is given: the "
            f"tokens per row. Received: sequence_length={dict(sequence_length)}"
        )
    if sequence_length and positions and sequence_length > positions:
        raise ValueError(
            f"`sequence_length` must be at most {positions}, the number of positions "
            f"of the model. Received: sequence_length={sequence_length}"
        )


def _tokenizing(serve, name, inputs, tokenizer, max_length, pad) -> Signature:
    """`serve` with texts as its inputs."""

    def arrange(tensors: dict) -> Any:
        packed = tokenizer.pack(
            *(tensors[key] for key in inputs),
            max_length=max_length,
            pad_to_max_length=pad,
        )
        return serve.arrange({key: packed[key] for key in serve.inputs})

    texts = {key: tf.TensorSpec([None], tf.string, name=key) for key in inputs}
    return replace(
        serve,
        name=name,
        inputs=Specs(texts),
        arrange=arrange,
        index_ranges={},
        length_ranges={},
        structure=None,
    )


def _check_max_length(tokenizer, num_texts, max_length) -> None:
    try:
        tokenizer.encode_batch(*([["a"]] * num_texts), max_length=max_length)
    except ValueError as error:
        raise ValueError(
            "`sequence_length` must leave room for the special tokens and one token of "
            f"each text. Received: sequence_length={max_length}"
        ) from error


def _num_positions(serve: Signature) -> int | None:
    """The maximum number of tokens that the model reads; None if it is unlimited."""
    _, end = serve.length_ranges.get("token_ids", (0, None))
    return None if end is None else end - 1


def _check_vocabulary(serve: Signature, tokenizer: GraphTokenizer) -> None:
    _, size = serve.index_ranges.get("token_ids", (0, None))
    if size is not None and tokenizer.vocabulary_size > size:
        raise ValueError(
            "`tokenizer` must not have more tokens than `model`: pass the one that the "
            "model was trained with. "
            f"Received: {tokenizer.vocabulary_size} tokens for a model of {size}"
        )
