"""Writes tiny checkpoints, and what the models of their libraries compute."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def write(cases, parent=CHECKPOINTS):
    """Writes one folder per case.

    Args:
        cases: Name to a function that writes a model into a folder, and the inputs and
            outputs, `input_*` and `output_*` by our names.
        parent: The parent of the folders.
    """
    for name, (save, arrays) in cases.items():
        folder = parent / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        save(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        np.savez_compressed(folder / "expected.npz", **arrays)
        size = sum(file.stat().st_size for file in folder.iterdir())
        sys.stdout.write(f"{name}: {size} bytes\n")


def saving(tensors, config):
    """A function that writes tensors and a configuration that we make up ourselves."""

    def save(folder):
        save_file(tensors, folder / "model.safetensors")
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (folder / "config.json").write_text(text)

    return save
