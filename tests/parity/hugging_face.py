"""What the scripts that write tiny checkpoints of transformers share.

Needs PyTorch and transformers. Everything is drawn from fixed seeds by NumPy, so that
the same cases can be made again.
"""

import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]

CHECKPOINTS = Path(__file__).parent / "checkpoints"
B, T = 4, 11
# Real tokens all along, on the right, on the left, and here and there.
PADDING = np.array(
    [[1] * 11, [0] * 4 + [1] * 7, [1] * 6 + [0] * 5, [1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]],
    bool,
)
SPREAD = 0.3


def make_model(name, config):
    """A model with far larger weights than a fresh one's: scores differ, as do tokens.

    Args:
        name: Of the class in transformers.
        config: Its configuration.
    """
    model = getattr(transformers, name)(config).eval()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            # The weight of a norm is around one.
            is_scale = weight.ndim == 1 and key.endswith(".weight")
            drawn = rng.normal(0, SPREAD, weight.shape) + is_scale
            weight.copy_(torch.from_numpy(drawn.astype("float32")))
    return model


def run(model, padding=None, **inputs):
    """What a model gives for NumPy inputs: outputs by transformers' names.

    Args:
        model: Of transformers.
        padding: True = real.
        **inputs: By transformers' names.
    """
    return _run(model, padding, inputs)


def run_from_first_token(model, padding, **inputs):
    """As `run`, with each row rolled to begin with its first real token.

    transformers' BERT, XLM and Marian count positions from the first column, and take
    the column's token for the first one, so padding on the left changes what they say
    of the same text. Ours count from the first real token: what they say of a row
    that is padded on the right.

    Args:
        model: Of transformers.
        padding: True = real, (B, T).
        **inputs: By transformers' names; those (B, T) are rolled, and outputs (B, T)
            or (B, T, D) rolled back.
    """
    firsts = padding.argmax(1)

    def rolled(arrays, sign):
        return {
            name: np.stack(
                [
                    np.roll(row, sign * n, 0)
                    for row, n in zip(array, firsts, strict=True)
                ]
            )
            if array.shape[:2] == padding.shape
            else array
            for name, array in arrays.items()
        }

    (padding,) = rolled({"": padding}, -1).values()
    return rolled(_run(model, padding, rolled(inputs, -1)), 1)


def _run(model, padding, inputs):
    given = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    if padding is not None:
        given["attention_mask"] = torch.from_numpy(padding).float()
    with torch.no_grad():
        return {
            name: tensor.float().numpy()
            for name, tensor in model(**given).items()
            if isinstance(tensor, torch.Tensor)
        }


def write(cases, parent=CHECKPOINTS):
    """Writes a folder a case, as `save_pretrained` has it, with `expected.npz`.

    Args:
        cases: Name to the model, the arrays, and arguments of `save_pretrained`.
        parent: Where the folders go.
    """
    for name, (model, arrays, options) in cases.items():
        folder = parent / name
        if folder.exists():
            for file in folder.iterdir():
                file.unlink()
        model.save_pretrained(folder, **options)
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "expected.npz", **arrays)
        size = sum(file.stat().st_size for file in folder.iterdir())
        sys.stdout.write(f"{name}: {size} bytes\n")
