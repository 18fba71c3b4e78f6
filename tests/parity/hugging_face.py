"""What the scripts that write tiny checkpoints of transformers share.

`python tests/parity/<script>.py` takes a few seconds and writes one folder per case to
`checkpoints/`, as `save_pretrained` does, with an `expected.npz`: our inputs,
`input_*`, and the outputs of transformers, `output_*`, by our names.

Needs PyTorch and transformers. NumPy samples all weights and inputs with fixed seeds,
so the cases are reproducible.
"""

import sys
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]

CHECKPOINTS = Path(__file__).parent / "checkpoints"
B, T = 4, 11
# Rows without padding, padded left, padded right, and padded in between.
PADDING = np.array(
    [[1] * 11, [0] * 4 + [1] * 7, [1] * 6 + [0] * 5, [1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]],
    bool,
)
SPREAD = 0.3


def make_model(name, config, spread=SPREAD):
    """A model with weights far larger than initial ones, so that its outputs vary.

    Args:
        name: Name of the class in transformers.
        config: Its configuration.
        spread: Standard deviation of the weights.
    """
    model = getattr(transformers, name)(config).eval()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            # The scales of norms are around one.
            is_scale = weight.ndim == 1 and key.endswith(".weight")
            values = rng.normal(0, spread, weight.shape) + is_scale
            weight.copy_(torch.from_numpy(np.asarray(values, "float32")))
    return model


def run(model, padding=None, **inputs):
    """Calls a model with NumPy inputs; returns its outputs by transformers' names.

    Args:
        model: A model of transformers.
        padding: True = a real token.
        **inputs: By transformers' names.
    """
    return _run(model, padding, inputs)


def run_from_first_token(model, padding, **inputs):
    """As `run`, with each row rolled so that its first real token comes first.

    transformers' BERT, XLM and Marian count positions from the first column, so left
    padding changes their outputs. Ours count from the first real token, which gives
    the outputs of the same row with right padding.

    Args:
        model: A model of transformers.
        padding: True = a real token, (B, T).
        **inputs: By transformers' names; those of shape (B, T) are rolled, and outputs
            (B, T) or (B, T, D) rolled back.
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


def arrays(inputs, outputs, names=None):
    """The content of `expected.npz`.

    Args:
        inputs: Our inputs by name.
        outputs: Outputs of transformers by its names.
        names: transformers' name of an output to ours, where they differ.
    """
    names = names or {}
    return {
        **{f"input_{name}": array for name, array in inputs.items()},
        **{f"output_{names.get(key, key)}": array for key, array in outputs.items()},
    }


def write(cases, parent=CHECKPOINTS):
    """Writes one folder per case, by `save_pretrained`, with `expected.npz`.

    Args:
        cases: Name to the model, the arrays, and arguments of `save_pretrained`.
        parent: The parent of the folders.
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
