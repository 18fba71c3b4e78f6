"""Model families: one paper, one file, built by plain functions."""

if __name__ != "keras_attn.models":
    raise ImportError(
        "This folder is the source of `keras_attn.models`; import it by that name. "
        f"A second copy (imported here as `{__name__}`) would register every Keras "
        "class twice."
    )

from keras_attn.models.registry import (  # noqa: E402  the guard comes first
    ModelCard,
    count_parameters,
    create,
    describe,
    list_models,
)
from keras_attn.models.seq2seq import (  # noqa: E402
    build_rnnsearch,
    build_seq2seq_context,
    build_seq2seq_sutskever,
)

__all__ = [
    "ModelCard",
    "build_rnnsearch",
    "build_seq2seq_context",
    "build_seq2seq_sutskever",
    "count_parameters",
    "create",
    "describe",
    "list_models",
]
