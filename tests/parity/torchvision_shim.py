"""Makes `import torchvision` work beside a PyTorch for which it was not built.

The package index has torchvision for CUDA only, whose operators a CPU build of PyTorch
cannot load. Then even `import torchvision` fails, and `import transformers` where it is
installed. So `make` installs it into a folder of its own, with timm,
segmentation-models-pytorch and open_clip, which import it; only this module adds the
folder to the path. If its operators are missing, those that the import and the
detectors need are declared here: `nms` in PyTorch; `roi_align` has a form in Python in
torchvision itself. transformers may be imported before or after.
"""

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(sys.prefix) / "torchvision"
_LIBRARIES = []  # Operators live as long as the object that declares them.


def is_installed(name: str = "torchvision") -> bool:
    """Whether a package is in the folder or anywhere on the path."""
    _add_folder()
    return importlib.util.find_spec(name) is not None


def _add_folder():
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))


def _nms(boxes, scores, iou_threshold):
    """The indices of the boxes that no better box overlaps by more, the best first."""
    import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.

    order = torch.argsort(scores, descending=True, stable=True)
    boxes = boxes[order]
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    low = torch.maximum(boxes[:, None, :2], boxes[None, :, :2])
    high = torch.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = (high - low).clamp(min=0).prod(2)
    # One matrix, and a loop in NumPy: benchmarks compare with this, too.
    overlaps = shared > iou_threshold * (areas[:, None] + areas - shared)
    overlaps = overlaps.numpy()
    is_kept = np.ones(len(overlaps), bool)
    for row, others in enumerate(overlaps):
        if is_kept[row]:
            is_kept[row + 1 :] &= ~others[row + 1 :]
    return order[torch.from_numpy(is_kept)]


@functools.cache
def load_torchvision() -> Any:
    """The package `torchvision`."""
    import torch  # pyright: ignore[reportMissingImports]

    _add_folder()
    try:
        return importlib.import_module("torchvision")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        for name in [x for x in sys.modules if x.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
    library = torch.library.Library("torchvision", "DEF")
    _LIBRARIES.append(library)
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float iou) -> Tensor")
    library.impl("nms", _nms, "CPU")
    package = importlib.import_module("torchvision")
    package.ops.boxes._assert_has_ops = lambda: None
    return package
