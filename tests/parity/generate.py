"""Writes the references made of PyTorch's layers: `python tests/parity/generate.py`.

`test_committed.py` and `test_segmenters.py` compare with them. Needs PyTorch
(`pip install torch==2.13.0`; a CPU build is enough), and for the last of them what
`make install` puts beside torchvision; takes a few seconds. The files, under 350 kB in
total, are committed; the modules describe their content.
"""

import importlib
import sys
from pathlib import Path

import numpy as np

# Name of each module to the folder of its files.
FOLDERS = {
    "references": "data",
    "segmenter_references": "segmenters",
    "smp_references": "segmenters",
}

if __name__ == "__main__":
    for module, folder in FOLDERS.items():
        for name, arrays in importlib.import_module(module).make_cases().items():
            path = Path(__file__).parent / folder / f"{name}.npz"
            np.savez_compressed(path, **arrays)
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
