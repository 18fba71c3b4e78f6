"""Opening what a user calls a model: a `.keras` file, a run folder or a checkpoint.

Imports are where they are used, because `keras-attn --help` needs none of them.
"""

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_attn.cli.terminal import naming_options, note, say, working
from keras_attn.files.hub import local_folder
from keras_attn.files.hub_names import get_hub_name, is_hub_name, with_hub_names

if TYPE_CHECKING:
    import keras
    import numpy as np

    from keras_attn.translator import Translator

_KINDS = (
    "a `.keras` file that `model.save` wrote, the folder of a training run, or a "
    "checkpoint folder (config.json, *.safetensors)"
)


@dataclass(frozen=True)
class OpenedModel:
    """A model and where it was read from.

    Attributes:
        path: The file or folder.
        model: The Keras model.
        translator: The model with its two tokenizers, for a `keras-attn train` run.
    """

    path: Path
    model: "keras.Model"
    translator: "Translator | None" = None

    @property
    def inputs(self) -> Any:
        """The symbolic inputs, in the structure that the model is called with."""
        from keras_attn.models.parts.functional import input_structure

        return input_structure(_declared(self.model, self.path))

    @property
    def input_names(self) -> set[str]:
        """Names of the inputs; empty for a model that takes a single tensor."""
        return set(self.inputs) if isinstance(self.inputs, dict) else set()

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer may be beside the model: a single file has none."""
        return self.path.is_dir()

    def encode(
        self, texts: list[str], length: int | None = None
    ) -> dict[str, "np.ndarray"]:
        """Encodes texts as inputs of the model, padded to `length` or the longest."""
        import numpy as np

        if self.translator is not None:
            return _translator_inputs(self.translator, texts, length)
        tokenizer = load_folder_tokenizer(self.path)
        names = self.input_names
        if "token_ids" not in names:
            raise ValueError(
                "MODEL must be a text model if texts are given. Received: a model "
                f"with the inputs {', '.join(sorted(names)) or 'images'}"
            )
        if is_text_tokenizer(tokenizer):
            batch = tokenizer.encode_batch(
                texts, max_length=length, pad_to_max_length=length is not None
            )
        else:
            token_ids = tokenizer.encode_batch(texts, length)
            token_ids = _pad(token_ids, length)
            mask = token_ids != tokenizer.pad_token_id
            batch = {
                "token_ids": token_ids,
                "padding_mask": mask,
                "segment_ids": np.zeros_like(token_ids),
            }
        return {name: array for name, array in batch.items() if name in names}


def local_model(name: str, option: str = "MODEL") -> Path:
    """The path of a model on this machine; one on the hub is downloaded.

    Args:
        name: A path, or `hf://owner/name[@revision]`.
        option: What it is the value of.

    Raises:
        ValueError, OSError: As `local_folder`, with the option for its argument.
    """
    with naming_options(folder=option):
        return local_folder(name)


def shown_name(path: Path) -> str:
    """How a model is called: its name on the hub, or that of its file or folder."""
    return get_hub_name(path) or path.resolve().name


def open_model(path: Path, task: str | None = None) -> OpenedModel:
    """Opens a `.keras` file, the folder of a training run or a checkpoint folder.

    Args:
        path: The file or folder.
        task: The head to build from a checkpoint folder. Default: what its
            `config.json` says.

    Raises:
        ValueError: If it is none of the three, or if `task` is given for a saved model.
    """
    if is_checkpoint(path):
        return OpenedModel(path, open_checkpoint(path, task))
    file = _keras_file(path, task)
    if is_translator(path):
        from keras_attn.translator import Translator

        translator = Translator.load(path)
        return OpenedModel(path, translator.model, translator)
    from keras_attn.models.parts.keras_file import load_keras_file

    with working("Loading the model"):
        return OpenedModel(path, load_keras_file(file))


def build_model(path: Path, task: str | None = None) -> "keras.Model":
    """The model that `open_model` opens, built from its sizes: no weights are read.

    Call it where variables take no memory: in a `tf.Graph`, or `without_allocating`.
    """
    from keras_attn.models.checkpoints.loading import build_from_checkpoint
    from keras_attn.models.parts.keras_file import build_from_keras_file

    if is_checkpoint(path):
        return build_from_checkpoint(path, task)
    return _declared(build_from_keras_file(_keras_file(path, task)), path)


def find_model(name: str, task: str | None) -> Path | None:
    """The path that a MODEL argument means, unless it is a name of `keras-attn list`.

    Args:
        name: A path, a name on the hub, or a name; a path of that name is `./name`.
        task: The value of `--task`, which only applies to paths.

    Returns:
        The path; None for a name of `keras-attn list`.

    Raises:
        ValueError: If it is neither (the message lists similar names), or if `task` is
            given for a name.
    """
    from keras_attn import models
    from keras_attn.checks.arguments import did_you_mean

    if is_hub_name(name):
        return local_model(name)
    known = models.list_models()
    if name not in known:
        if Path(name).exists():
            return Path(name)
        raise ValueError(
            "MODEL is not a path that exists, nor a name from `keras-attn list`; "
            f"{did_you_mean(name, known)}Received: {name!r}"
        )
    if task is not None:
        raise ValueError(
            "--task is for a checkpoint folder; a name from `keras-attn list` "
            f"includes the head. Received: {name!r}"
        )
    return None


def warn_of_random_weights(name: str) -> None:
    """Says that a name of `keras-attn list` has no weights to begin with."""
    say(
        f"  {name} is a name from `keras-attn list`: its weights are random, not "
        "pre-trained. For weights to fine-tune, pass the folder of a checkpoint.",
        "yellow",
    )


def is_translator(path: Path) -> bool:
    """Whether a folder is a run folder of `keras-attn train`."""
    return (path / "translator.json").exists()


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is a checkpoint of a known layout, and not a run folder."""
    names = ("config.json", "open_clip_config.json")
    return any((path / name).exists() for name in names) and not is_translator(path)


def is_text_tokenizer(tokenizer: Any) -> bool:
    """Whether a tokenizer is one that adds special tokens: WordPiece, BPE, …."""
    from keras_attn.data import TextTokenizer

    return isinstance(tokenizer, TextTokenizer)


def load_folder_tokenizer(folder: str | Path) -> Any:
    """The tokenizer in a folder: Hugging Face's, or the `tokenizer.json` of a run.

    Args:
        folder: That of a model; or the value of --tokenizer, which may be a name on the
            hub.
    """
    from keras_attn.data import load_text_tokenizer, load_tokenizer

    with naming_options(folder="--tokenizer"):
        path = local_folder(folder, "tokenizer")
    ours = path / "tokenizer.json"
    if ours.is_file() and not (path / "config.json").is_file():
        try:
            return load_tokenizer(ours)
        except ValueError:
            pass  # Hugging Face has a file of the same name.
    with noting_warnings():
        return load_text_tokenizer(path)


def given_tokenizer(path: Path, tokenizer: str | None) -> Any:
    """The tokenizer of --tokenizer, or else of the folder of --model.

    Args:
        path: Of the model.
        tokenizer: The value of --tokenizer; None if it was not given.

    Raises:
        ValueError: If the model is a file and no folder was given.
    """
    if tokenizer is None and path.is_file():
        raise ValueError(
            "--tokenizer, the folder of a tokenizer, must be given if --model is a "
            f"file. Received: --model {str(path)!r}"
        )
    return load_folder_tokenizer(tokenizer or path)


@contextlib.contextmanager
def noting_warnings() -> Iterator[None]:
    """Prints the warnings of what is loaded in the block to stderr, a line each."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for each in caught:
        note(str(each.message))


def _keras_file(path: Path, task: str | None) -> Path:
    """The file of a model that Keras saved, by itself or in a run folder."""
    if task is not None:
        raise ValueError(
            "--task is for a checkpoint folder, with config.json and *.safetensors; a "
            f"model saved by Keras already has its head. Received: {str(path)!r}"
        )
    if not path.is_dir():
        if path.suffix != ".keras":
            raise ValueError(f"MODEL must be {_KINDS}. Received: {str(path)!r}")
        return path
    file = path / "model.keras"
    if not file.exists() and not is_translator(path):
        raise ValueError(
            f"MODEL must be {_KINDS}; this folder has neither config.json nor "
            f"translator.json nor model.keras. Received: {str(path)!r}"
        )
    return file


def _declared(model: "keras.Model", path: Path) -> "keras.Model":
    """The model, unless its configuration lacks the shapes of its inputs."""
    from keras_attn.models.parts.functional import is_declared

    if not is_declared(model):
        raise ValueError(
            "MODEL must be a functional or sequential model, which declares its "
            f"inputs. Received: {str(path)!r}, a {type(model).__name__}"
        )
    return model


def open_checkpoint(path: Path, task: str | None, **arguments: Any) -> "keras.Model":
    """The model of a checkpoint folder; what it warns of is printed.

    Args:
        path: The folder.
        task: The head.
        **arguments: Further arguments of `models.load_checkpoint`.
    """
    from keras_attn import models

    # Printed afterwards: what is printed while it works is hidden.
    with working("Loading the model"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        model = models.load_checkpoint(path, task, **arguments)
    for each in caught:
        say(with_hub_names(str(each.message)), "yellow")
    return model


def _translator_inputs(
    translator: "Translator", texts: list[str], length: int | None
) -> dict[str, "np.ndarray"]:
    import numpy as np

    token_ids = translator.source_tokenizer.encode_batch(
        texts, length or translator.max_length
    )
    token_ids = _pad(token_ids, length)
    start = translator.target_tokenizer.start_token_id
    return {
        "token_ids": token_ids,
        "padding_mask": token_ids != translator.source_tokenizer.pad_token_id,
        "decoder_token_ids": np.full((len(token_ids), 1), start, "int32"),
    }


def _pad(token_ids: "np.ndarray", length: int | None) -> "np.ndarray":
    """Pads (B, T) with zeros to (B, length)."""
    import numpy as np

    missing = max(0, (length or 0) - token_ids.shape[1])
    return np.pad(token_ids, [(0, 0), (0, missing)])
