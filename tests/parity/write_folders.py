"""Writes tiny checkpoints of a library whose configurations we make up ourselves."""

import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CHECKPOINTS = Path(__file__).parent / "checkpoints"


def write(cases):
    """Writes one folder per case: tensors, configuration, inputs and outputs."""
    for name, (tensors, config, arrays) in cases.items():
        folder = CHECKPOINTS / name
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (folder / "config.json").write_text(text)
        np.savez_compressed(folder / "expected.npz", **arrays)
        size = sum(file.stat().st_size for file in folder.iterdir())
        sys.stdout.write(f"{name}: {size} bytes\n")
