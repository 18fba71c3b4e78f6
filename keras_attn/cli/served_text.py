"""The tokenizer of MODEL's folder, which `keras-attn export` puts into a SavedModel.

Legend: B batch, T length.
"""

import importlib.util
from typing import Any

from keras_attn.cli.opened_model import OpenedModel, load_folder_tokenizer
from keras_attn.cli.terminal import say

_INPUTS = {"token_ids", "padding_mask", "segment_ids"}


def tokenizer_to_include(opened: OpenedModel) -> Any:
    """The tokenizer of a model of texts; None, with a note, if it is not included.

    Args:
        opened: The model.
    """
    if not opened.has_tokenizer or "token_ids" not in opened.input_names:
        return None
    reason = _why_not(opened)
    if reason is None:
        try:
            tokenizer = load_folder_tokenizer(opened.path)
        except (ValueError, ImportError) as error:
            reason = f"it cannot be read ({error})"
        else:
            from keras_attn.data.text.graph_tokenizer import GraphTokenizer

            if isinstance(tokenizer, GraphTokenizer):
                say("The tokenizer of the folder is included: `serve` takes `text`.")
                return tokenizer
            name = type(tokenizer).__name__
            reason = f"a {name} does not run in TensorFlow's graphs"
    say(f"The tokenizer is not included: {reason}; texts are encoded before.", "yellow")
    return None


def served_length(opened: OpenedModel) -> int | None:
    """The tokens per row with which a run learned; None if unknown."""
    from keras_attn.cli.finetuning.result import read_result

    result = read_result(opened.path) if opened.path.is_dir() else None
    return None if result is None else result.max_length


def takes_text(runner: Any) -> bool:
    """Whether an artefact has a tokenizer."""
    return any("text" in info.inputs for info in runner.signatures.values())


def _why_not(opened: OpenedModel) -> str | None:
    """The reason why no tokenizer can be included; None if one can."""
    if hasattr(opened.model, "incremental"):
        return "a decoder takes and returns tokens one by one"
    if not opened.input_names <= _INPUTS:
        others = ", ".join(sorted(opened.input_names - _INPUTS))
        return f"the model also takes {others}"
    if importlib.util.find_spec("tensorflow_text") is None:
        return "tensorflow-text is not installed (keras-attn[text])"
    return None
