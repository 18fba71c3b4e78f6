"""Opening a CLIP or a SigLIP with its tokenizer, for `search` and `classify`."""

from typing import Annotated, Any

from keras_attn.cli.opened_model import given_tokenizer, local_model, open_model
from keras_attn.cli.options import Panel, model_with_weights

_OPTIONS = Panel()

PairsModel = Annotated[
    str,
    _OPTIONS.option(
        "A CLIP or a SigLIP: a folder of transformers or open_clip with its weights, "
        "tokenizer and preprocessing, or its name, hf://owner/name; or a "
        "`.keras` file, with --tokenizer.",
        metavar="PATH",
        callback=model_with_weights,
    ),
]
TokenizerOfPairs = Annotated[
    str | None,
    _OPTIONS.folder_or_name(
        "Folder of the tokenizer, if it is not in the folder of --model."
    ),
]


def open_pairs_model(name: str, tokenizer: str | None) -> tuple[Any, Any]:
    """A model of images and texts, and its tokenizer.

    Raises:
        ValueError: If it is a different model, or has no tokenizer or preprocessing.
    """
    from keras_attn.models.parts.dual_encoder import DualEncoder

    path = local_model(name)
    # Before the model, which takes longer to load.
    text_tokenizer = given_tokenizer(path, tokenizer)
    model = open_model(path).model
    if not isinstance(model, DualEncoder):
        raise ValueError(
            "--model must be a CLIP or a SigLIP, a model of images and texts. "
            f"Received: --model {str(path)!r}, a {type(model).__name__}"
        )
    if model.preprocessing is None:
        raise ValueError(
            "--model must say how its images are prepared: a folder by its "
            "preprocessor_config.json, a `.keras` file by the `preprocessing` that the "
            f"model had when it was saved. Received: --model {str(path)!r}"
        )
    return model, text_tokenizer
