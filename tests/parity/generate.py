"""Writes what `test_committed.py` compares with: `python tests/parity/generate.py`.

Needs PyTorch (`pip install torch==2.13.0`; a CPU build is enough) and takes a few
seconds. The files, under 100 kB in total, are committed; `references.py` describes
their content.
"""

from pathlib import Path

import numpy as np
from references import make_cases

DATA = Path(__file__).parent / "data"

if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    for old in DATA.glob("*.npz"):
        old.unlink()
    for name, arrays in make_cases().items():
        np.savez_compressed(DATA / f"{name}.npz", **arrays)
    files = sorted(DATA.glob("*.npz"))
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes in {DATA}")
