"""Writes the references made of PyTorch's layers: `python tests/parity/generate.py`.

`test_committed.py` and `test_segmenters.py` compare with them. Needs PyTorch
(`pip install torch==2.13.0`; a CPU build is enough) and takes a few seconds. The files,
under 350 kB in total, are committed; `references.py` and `segmenter_references.py`
describe their content.
"""

from pathlib import Path

import numpy as np
import references
import segmenter_references

FOLDERS = {"data": references, "segmenters": segmenter_references}

if __name__ == "__main__":
    for folder, module in FOLDERS.items():
        path = Path(__file__).parent / folder
        path.mkdir(exist_ok=True)
        for old in path.glob("*.npz"):
            # Those have a script of their own.
            if not old.name.startswith("smp_"):
                old.unlink()
        for name, arrays in module.make_cases().items():
            np.savez_compressed(path / f"{name}.npz", **arrays)
        files = sorted(path.glob("*.npz"))
        size = sum(file.stat().st_size for file in files)
        print(f"{len(files)} files, {size} bytes in {path}")
