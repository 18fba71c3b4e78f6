"""MODEL of `keras-attn generate` as an exported file, which a runner decodes with.

Imports are in the functions that need them, so that `keras-attn --help` starts quickly.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_attn.cli.opened_model import is_checkpoint

if TYPE_CHECKING:
    from keras_attn.export import Runner


@dataclass(frozen=True)
class ExportedDecoder:
    """A decoder that was exported.

    Attributes:
        path: The file or folder.
        runner: It, loaded.
    """

    path: Path
    runner: "Runner"

    @property
    def translates(self) -> bool:
        """Whether it reads a source besides the text that it continues."""
        return "decoder_token_ids" in self.runner.signatures["prefill"].inputs

    def continuing(self, task: str | None) -> "Runner":
        """The runner of a model that continues a text.

        Args:
            task: The value of `--task`.

        Raises:
            ValueError: If it needs more than a text, or `task` is given.
        """
        if task is not None:
            raise ValueError(
                "--task is for a checkpoint folder; an exported model has its head. "
                f"Received: --task {task!r}, --model {str(self.path)!r}"
            )
        names = set(self.runner.signatures["prefill"].inputs)
        if not {"token_ids"} <= names <= {"token_ids", "padding_mask"}:
            raise ValueError(
                "--model must be a model that continues a text, such as GPT-2. "
                f"Received: {str(self.path)!r}, with the inputs "
                f"{', '.join(sorted(names))}"
            )
        return self.runner


def find_exported(path: Path) -> ExportedDecoder | None:
    """The exported decoder at a path; None for a model of Keras.

    Raises:
        ValueError: If it was exported, but is not a decoder.
    """
    from keras_attn.export import load_runner
    from keras_attn.export.formats import format_at

    is_run = is_checkpoint(path) or (path / "model.keras").is_file()
    if is_run or format_at(path) is None:
        return None
    runner = load_runner(path)
    if not {"prefill", "step"} <= set(runner.signatures):
        raise ValueError(
            "--model must be exported from a generative model, with the signatures "
            "prefill and step; `keras-attn export` writes them for a model of "
            f"causal_lm. Received: {str(path)!r}, with the signatures "
            f"{', '.join(runner.signatures)}"
        )
    return ExportedDecoder(path, runner)
