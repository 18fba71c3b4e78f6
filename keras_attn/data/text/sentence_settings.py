"""The settings for texts in a folder of sentence-transformers.

`sentence_bert_config.json` has the longest row, `config_sentence_transformers.json` the
prompts. `models.load_checkpoint` reads what it says about vectors.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_attn.files.reading import (
    check_file,
    check_values,
    get_flag,
    get_object,
    get_text,
    read_json,
    shown,
)

PROMPTS = "config_sentence_transformers.json"
MODULES = "modules.json"
# What becomes of every key of sentence_bert_config.json: None is applied, a tuple has
# the values that change nothing.
TEXT_KEYS: dict[str, tuple[Any, ...] | None] = {
    "do_lower_case": None,
    "document_length": (None,),
    "max_seq_length": None,
    # Texts go through the model as usual, and it returns the features of its tokens.
    "modality_config": (
        None,
        {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    ),
    "module_output_name": (None, "token_embeddings"),
    "processing_kwargs": (None, {}),
    "query_expansion": (None,),
    "query_length": (None,),
    "transformer_task": (None, "feature-extraction"),
    # Speed only.
    "unpad_inputs": (None, False, True),
}
# Of config_sentence_transformers.json. How vectors are compared changes no vector.
PROMPT_KEYS: dict[str, tuple[Any, ...] | None] = {
    "__version__": None,
    "default_prompt_name": None,
    "model_type": (None, "SentenceTransformer"),
    "prompts": None,
    "similarity_fn_name": (None, "cosine", "dot", "euclidean", "manhattan"),
}


def sentence_settings(
    folder: str | os.PathLike, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of a sentence folder that concern its tokenizer; else none.

    Args:
        folder: The folder.
        settings: Of its `tokenizer_config.json`.

    Returns:
        `model_max_length`, `lower_case_first`, `prompts` and `prompt`.

    Raises:
        ValueError: If a value is of the wrong type or not supported.
    """
    folder = Path(folder)
    found: dict[str, Any] = {}
    # The name has the kind of the model in older folders: sentence_roberta_config.json.
    path = next(iter(sorted(folder.glob("sentence_*_config.json"))), None)
    fields = _read(path, TEXT_KEYS)
    if path is not None and get_flag(
        fields, "do_lower_case", None, path, allow_none=True
    ):
        found["lower_case_first"] = True
    longest = fields.get("max_seq_length")
    if longest is not None and (type(longest) is not int or longest < 1):
        raise ValueError(
            f"`max_seq_length` in {path and path.name} must be a positive integer. "
            f"Received: max_seq_length={shown(longest)} in {str(path)!r}"
        )
    is_sentences = path is not None or (folder / MODULES).exists()
    if longest is None and is_sentences:
        positions = _positions(folder)
        longest = settings.get("model_max_length")
        if positions and (longest is None or longest > positions):
            longest = positions
    if longest is not None:
        found["model_max_length"] = longest
    return found | _prompts(folder / PROMPTS)


def _prompts(path: Path) -> dict[str, Any]:
    """All prompts, and the one that is put before every text."""
    fields = _read(path if path.exists() else None, PROMPT_KEYS)
    if not fields:
        return {}
    prompts = get_object(fields, "prompts", path)
    for name, prompt in prompts.items():
        if prompt is not None and not isinstance(prompt, str):
            raise ValueError(
                f"`prompts` in {path.name} must be texts. Received: {str(path)!r}, "
                f"{shown(name)}: {shown(prompt)}"
            )
    default = get_text(fields, "default_prompt_name", path)
    if default is not None and default not in prompts:
        raise ValueError(
            f"`default_prompt_name` in {path.name} must be one of its prompts, "
            f"{shown(list(prompts))}. Received: {str(path)!r}, "
            f"default_prompt_name={shown(default)}"
        )
    found: dict[str, Any] = {
        "prompts": {name: prompt or "" for name, prompt in prompts.items()}
    }
    if default is not None:
        found["prompt"] = prompts[default]
    return found


def _positions(folder: Path) -> int | None:
    """The number of positions of the model, which then limits its rows."""
    path = folder / "config.json"
    if not path.exists():
        return None
    positions = read_json(path).get("max_position_embeddings")
    return positions if type(positions) is int and positions > 0 else None


def _read(
    path: Path | None, keys: Mapping[str, tuple[Any, ...] | None]
) -> dict[str, Any]:
    if path is None:
        return {}
    check_file(path)
    fields = read_json(path)
    check_values(fields, keys, path, closed=True)
    return fields
