"""Text in: a model behind its tokenizer, both in one graph.

What is shipped takes strings, so that no other program has to cut them the same way.

Legend: B batch, T the longest row of the batch, in tokens.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from keras_attn.data.graph_tokenizer import GraphTokenizer
from keras_attn.export.signatures import SERVE, Signature, signatures_of

SERVE_PAIR = "serve_pair"
TEXT, TEXT_PAIR = "text", "text_pair"
# What a tokenizer gives.
_PACKED = ("token_ids", "padding_mask", "segment_ids")


def with_tokenizer(
    model: Any,
    tokenizer: Any,
    format: str,
    sequence_length: int | Mapping[str, int] | None,
) -> list[Signature]:
    """The signatures of a model that takes texts.

    Args:
        model: A functional model.
        tokenizer: In whose ids the model was trained.
        format: To ship in.
        sequence_length: Tokens that every row is cut and padded to. None pads to the
            longest of the batch, and cuts where the model's positions end.

    Returns:
        `serve`, from `text` (B,); and where the model tells segments apart,
        `serve_pair`, from `text` and `text_pair`.

    Raises:
        ValueError: for a tokenizer that is no graph, a format without strings, a model
            that takes more than tokens or has too few of them.
    """
    if not isinstance(tokenizer, GraphTokenizer):
        raise ValueError(
            "`tokenizer` must be one that works inside a graph, a `WordPieceTokenizer` "
            "or a `SentencePieceTokenizer`; ship a model of another one without it, "
            f"and encode its texts outside. Received: tokenizer={tokenizer!r}"
        )
    if format != "saved_model":
        raise ValueError(
            "`tokenizer` goes with a SavedModel alone: LiteRT and ONNX have no "
            "tokenizer's operators. Leave it out, and feed `tokenizer.encode_batch`. "
            f"Received: tokenizer of type {type(tokenizer).__name__}, format={format!r}"
        )
    if isinstance(model, keras.Model) and not getattr(model, "inputs", None):
        raise ValueError(
            "`model` must be functional to stand behind a `tokenizer`, so that its "
            f"inputs have names. Received: model={model!r}"
        )
    serve = signatures_of(model)[0]
    unknown = sorted(set(serve.inputs) - set(_PACKED))
    if serve.name != SERVE or "token_ids" not in serve.inputs or unknown:
        raise ValueError(
            f"`tokenizer` must give all that `model` takes, of {', '.join(_PACKED)}; "
            "for the forward graph of a generative model pass "
            "`keras.Model(model.inputs, model.outputs)`. "
            f"Received: signature `{serve.name}` with the inputs {sorted(serve.inputs)}"
        )
    _check_vocabulary(serve.model, tokenizer)
    if isinstance(sequence_length, Mapping):
        raise ValueError(
            "`sequence_length` must be one number where a `tokenizer` is shipped: the "
            f"tokens of a row. Received: sequence_length={dict(sequence_length)}"
        )
    positions = _positions(serve.model)
    if sequence_length and positions and sequence_length > positions:
        raise ValueError(
            f"`sequence_length` must be at most {positions}, the positions of the "
            f"model. Received: sequence_length={sequence_length}"
        )
    most = sequence_length or positions
    pads = sequence_length is not None
    texts: list[tuple[str, tuple[str, ...]]] = [(SERVE, (TEXT,))]
    if "segment_ids" in serve.inputs:
        texts.append((SERVE_PAIR, (TEXT, TEXT_PAIR)))
    _check_room(tokenizer, len(texts), most)
    return [
        _reading(serve, name, inputs, tokenizer, most, pads) for name, inputs in texts
    ]


def _reading(serve, name, inputs, tokenizer, max_length, pads) -> Signature:
    def arrange(tensors: dict) -> Any:
        packed = tokenizer.pack(
            *(tensors[key] for key in inputs),
            max_length=max_length,
            pad_to_max_length=pads,
        )
        return serve.arrange({key: packed[key] for key in serve.inputs})

    specs = {key: tf.TensorSpec([None], tf.string, name=key) for key in inputs}
    return replace(serve, name=name, inputs=specs, arrange=arrange, index_ranges={})


def _check_room(tokenizer, num_texts, max_length) -> None:
    try:
        tokenizer.encode_batch(*([["a"]] * num_texts), max_length=max_length)
    except ValueError as error:
        raise ValueError(
            "`sequence_length` must leave room for a token of each text besides the "
            f"special ones. Received: sequence_length={max_length}"
        ) from error


def _layer(model: keras.Model, name: str):
    return next((layer for layer in model.layers if layer.name == name), None)


def _positions(model: keras.Model) -> int | None:
    return getattr(_layer(model, "position_embedding"), "max_sequence_length", None)


def _check_vocabulary(model: keras.Model, tokenizer: GraphTokenizer) -> None:
    embedding = _layer(model, "token_embedding")
    size = getattr(embedding, "input_dim", None)
    if size is not None and tokenizer.vocabulary_size > size:
        raise ValueError(
            "`tokenizer` must not have more tokens than `model`: it is not the one the "
            f"model was trained with. Received: {tokenizer.vocabulary_size} tokens for "
            f"a model of {size}"
        )
