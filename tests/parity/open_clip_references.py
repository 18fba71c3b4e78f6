"""Tiny checkpoints of open_clip, with a ViT and with a ResNet, by its own functions.

`python tests/parity/open_clip_references.py` writes their folders in a few seconds.

Needs PyTorch and `open_clip_torch`; `make` installs it beside torchvision. NumPy
samples all weights and inputs with fixed seeds, so the cases are reproducible.
"""

import copy
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch_models import pixels_of, randomize_state
from torchvision_shim import load_torchvision
from write_folders import write

load_torchvision()
import open_clip  # noqa: E402  # pyright: ignore[reportMissingImports]
from open_clip.push_to_hf_hub import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    save_for_hf,
)

B, T, VOCABULARY, END = 4, 13, 97, 61
_TEXT = {"context_length": T, "vocab_size": VOCABULARY, "width": 12, "layers": 2}
CASES: dict[str, dict[str, Any]] = {
    # The end token is the largest id of a text.
    "openclip_resnet": {
        "embed_dim": 17,
        "quick_gelu": True,
        "vision_cfg": {
            "image_size": 64,
            "layers": [2, 1, 1, 1],
            "width": 2,
            "patch_size": None,
            "head_width": 8,
        },
        "text_cfg": {**_TEXT, "heads": 3},
    },
    "openclip_vit": {
        "embed_dim": 17,
        "vision_cfg": {
            "image_size": [14, 21],
            "layers": 2,
            "width": 10,
            "patch_size": 7,
            "head_width": 5,
            "mlp_ratio": 1.7,
        },
        "text_cfg": {
            **_TEXT,
            "heads": 2,
            "mlp_ratio": 1.75,
            "pool_type": "eos",
            "eos_id": END,
        },
    },
}
_PREPROCESSING = {
    "mean": (0.5, 0.4, 0.3),
    "std": (0.1, 0.2, 0.3),
    "interpolation": "bicubic",
}


class _NoTokenizer:
    """In place of a tokenizer: the library's function saves one, too."""

    def save_pretrained(self, folder):
        """Writes nothing."""


def make_cases():
    """The cases of `write`."""
    return {name: _case(config) for name, config in CASES.items()}


def _case(config):
    model = open_clip.CLIP(**copy.deepcopy(config)).eval()
    size = config["vision_cfg"]["image_size"]
    is_square = not isinstance(size, list)
    open_clip.model.set_model_preprocess_cfg(
        model,
        {
            **_PREPROCESSING,
            "size": size,
            "resize_mode": "shortest" if is_square else "squash",
        },
    )
    randomize_state(model, rounded=False, long=4)
    rng = np.random.default_rng(19)
    rows, columns = (size, size) if is_square else size
    # Rounded, so that the file is small.
    images = rng.normal(size=(B, rows, columns, 3)).round(1).astype("float32")
    ids = rng.integers(1, VOCABULARY, (B, T)).astype("int32")
    ids[:, 4] = ids[:2, 6] = END
    arrays = {"input_images": images, "input_token_ids": ids, **run(model, images, ids)}

    def save(folder):
        save_for_hf(model, _NoTokenizer(), config, folder, safe_serialization=True)

    return save, arrays


def run(model, images, token_ids):
    """The outputs of a model of open_clip by our names."""
    with torch.no_grad():
        image, text, scale = model(
            pixels_of(images), torch.from_numpy(token_ids).long()
        )
        logits = scale * image @ text.T
        loss = open_clip.ClipLoss()(image, text, scale)
    return {
        "output_image_embeddings": image.numpy(),
        "output_text_embeddings": text.numpy(),
        "output_logits": logits.numpy(),
        "output_loss": loss.numpy(),
    }


def load(folder):
    """The model of a folder, by the library's own function."""
    return open_clip.create_model(f"local-dir:{folder}").eval()


if __name__ == "__main__":
    write(make_cases())
