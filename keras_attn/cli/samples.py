"""The inputs that `export` and `verify` compare on: `--samples`."""

from pathlib import Path
from typing import Any

from keras_attn.cli.opened_model import OpenedModel


def read_samples(
    path: Path | None, opened: OpenedModel, length: int | None, tokenizer: Any
) -> dict[str, Any] | None:
    """Reads sample inputs, by name.

    Args:
        path: An `.npz` of one array per input, or a text file with one text per line.
            None: no samples.
        opened: The model that the inputs are for.
        length: Tokens per row of inputs made from texts. Default: the longest.
        tokenizer: That of `--tokenizer`: then the texts themselves are the inputs.
    """
    import numpy as np

    if path is None:
        return None
    if tokenizer is not None:
        return {"text": path.read_text(encoding="utf-8").splitlines()}
    if path.suffix == ".npz":
        import zipfile

        try:
            return dict(np.load(path))
        except (ValueError, OSError, zipfile.BadZipFile) as error:
            raise ValueError(
                f"--samples must be a valid `.npz` of plain arrays ({error}). "
                f"Received: {str(path)!r}"
            ) from error
    if not opened.has_tokenizer:
        raise ValueError(
            "--samples must be an `.npz` with one array per input if MODEL is a "
            f"`.keras` file. Received: {str(path)!r}"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return opened.encode([line for line in lines if line.strip()], length)


def fixed_length(runner) -> int | None:
    """Tokens per row that an artefact takes; None if it takes any number."""
    for signature in runner.signatures.values():
        if "token_ids" in signature.inputs:
            shape = signature.inputs["token_ids"].shape
            # The signature `step` takes one token per row, (B,).
            if len(shape) == 2:
                return shape[1] if isinstance(shape[1], int) else None
    return None
