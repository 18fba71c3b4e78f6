"""What the scripts that write tiny checkpoints of transformers share.

`python tests/parity/<script>.py` takes a few seconds and writes one folder per case to
`checkpoints/`, as `save_pretrained` does, with an `expected.npz`: our inputs,
`input_*`, and the outputs of transformers, `output_*`, by our names.

Needs PyTorch and transformers. NumPy samples all weights and inputs with fixed seeds,
so the cases are reproducible.
"""

import functools

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from torch_models import SPREAD, randomize_parameters

B, T = 4, 11
# Rows without padding, padded left, padded right, and padded in between.
PADDING = np.array(
    [[1] * 11, [0] * 4 + [1] * 7, [1] * 6 + [0] * 5, [1, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0]],
    bool,
)


def make_model(name, config, spread=SPREAD):
    """A model of a class of transformers with random weights."""
    model = getattr(transformers, name)(config).eval()
    randomize_parameters(model, spread)
    return model


def run(model, padding=None, **inputs):
    """Calls a model with NumPy inputs; returns its outputs by transformers' names.

    Args:
        model: A model of transformers.
        padding: True = a real token.
        **inputs: By transformers' names.
    """
    given = {name: torch.from_numpy(array).long() for name, array in inputs.items()}
    if padding is not None:
        given["attention_mask"] = torch.from_numpy(padding).float()
    with torch.no_grad():
        return {
            name: tensor.float().numpy()
            for name, tensor in model(**given).items()
            if isinstance(tensor, torch.Tensor)
        }


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
    return rolled(run(model, padding, **rolled(inputs, -1)), 1)


def case_of(model, inputs, outputs, names=None, **options):
    """A case of `write_folders.write`.

    Args:
        model: A model of transformers.
        inputs: Our inputs by name.
        outputs: Outputs of transformers by its names.
        names: transformers' name of an output to ours, where they differ.
        **options: Arguments of `save_pretrained`.
    """
    names = names or {}
    return functools.partial(model.save_pretrained, **options), {
        **{f"input_{name}": array for name, array in inputs.items()},
        **{f"output_{names.get(key, key)}": array for key, array in outputs.items()},
    }
