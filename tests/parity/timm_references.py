"""Image models as timm does them: tiny checkpoints, and what comes out.

`python tests/parity/timm_references.py` writes a folder a case to `checkpoints/`; a few
seconds. In `expected.npz` are our inputs, `input_*`, and their outputs, `output_*`.

Needs `pip install timm==1.0.31 torchvision==0.28.0`, in an environment of its own:
beside a torchvision whose binary wants CUDA transformers no longer imports.
"""

import functools
import json
import re
import sys

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from hugging_face import CHECKPOINTS, SPREAD

# torchvision's binary may want CUDA. timm imports it and needs none of its operators.
try:
    import torchvision  # noqa: F401  # pyright: ignore[reportMissingImports]
except RuntimeError:
    for _name in [name for name in sys.modules if name.startswith("torchvision")]:
        del sys.modules[_name]
    _library = torch.library.Library("torchvision", "DEF")
    for _operator in ("nms", "qnms"):
        _library.define(f"{_operator}(Tensor a, Tensor b, float c) -> Tensor")

import timm  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.layers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    hybrid_embed,
    std_conv,
)
from timm.models import resnetv2  # noqa: E402  # pyright: ignore[reportMissingImports]

B, CLASSES = 2, 5
_SIZES = {"img_size": [14, 21], "patch_size": 7, "embed_dim": 12, "depth": 2}
_SIZES = {**_SIZES, "num_heads": 3}
# Case to timm's name, its arguments, and what else its configuration says.
CASES = {
    "timm_vit": ("vit_tiny_patch16_224", _SIZES, {}),
    "timm_vit_mean": (
        "vit_base_patch8_224",
        {**_SIZES, "mlp_ratio": 2.0, "class_token": False},
        {"global_pool": "avg"},
    ),
    "timm_deit3": ("deit3_small_patch16_224", _SIZES, {}),
    "timm_hybrid": (
        "vit_base_r50_s16_224",
        {"img_size": [16, 24], "embed_dim": 12, "depth": 1, "num_heads": 3},
        {},
    ),
}
# Maps of 10, 5 and 3 patches a side: two windows, one, and one that is larger than the
# map, for which transformers (5.23) fails. The layout of the files is transformers'.
SWIN = {
    "image_size": 20,
    "patch_size": 2,
    "window_size": 5,
    "embed_dim": 6,
    "depths": [2, 1, 1],
    "num_heads": [2, 1, 3],
    "mlp_ratio": 2.0,
}
# timm's names of Swin's tensors to those of transformers.
SWIN_NAMES = {
    r"^patch_embed\.proj\.": "swin.embeddings.patch_embeddings.projection.",
    r"^patch_embed\.norm\.": "swin.embeddings.norm.",
    r"^layers\.": "swin.encoder.layers.",
    r"\.norm1\.": ".layernorm_before.",
    r"\.norm2\.": ".layernorm_after.",
    r"\.attn\.proj\.": ".attention.output.dense.",
    r"\.attn\.relative": ".attention.self.relative",
    r"\.attn\.qkv\.": ".attention.self.{}.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
    r"^norm\.": "swin.layernorm.",
    r"^head\.fc\.": "classifier.",
}
# Of the ResNet: two stages of one block, where the published one has 3, 4 and 9.
RESNET = {"layers": (1, 1), "channels": (128, 256), "stem_chs": 32}


def make_cases():
    """Name of every case to its tensors, its configuration and its arrays."""
    cases = {name: _case(*case) for name, case in CASES.items()}
    return {**cases, "timm_swin": _swin_case()}


def _case(architecture, arguments, config):
    options = {**arguments, **config, "num_classes": CLASSES}
    if "r50" in architecture:
        backbone = resnetv2.ResNetV2(
            num_classes=0,
            global_pool="",
            in_chans=3,
            preact=False,
            stem_type="same",
            conv_layer=functools.partial(std_conv.StdConv2dSame, eps=1e-8),
            **RESNET,
        )
        embed = functools.partial(hybrid_embed.HybridEmbed, backbone=backbone)
        del options["img_size"]
        model = timm.models.VisionTransformer(
            img_size=tuple(arguments["img_size"]),
            patch_size=1,
            embed_layer=embed,
            **options,
        )
    else:
        model = timm.create_model(architecture, **options)
    arrays = _drawn(model, arguments["img_size"])
    tensors = {
        key: x.numpy().astype("float16") for key, x in model.state_dict().items()
    }
    said = {
        "architecture": architecture,
        "num_classes": CLASSES,
        "global_pool": "token",
        **config,
        "model_args": arguments,
    }
    return tensors, said, arrays


def _swin_case():
    model = timm.models.SwinTransformer(
        img_size=SWIN["image_size"],
        num_classes=CLASSES,
        **{key: value for key, value in SWIN.items() if key != "image_size"},
    )
    arrays = _drawn(model, (SWIN["image_size"], SWIN["image_size"]))
    tensors = {}
    for key, tensor in model.state_dict().items():
        # timm merges patches before a stage, transformers behind the one before.
        key = re.sub(
            r"^layers\.(\d)\.downsample",
            lambda match: f"layers.{int(match[1]) - 1}.downsample",
            key,
        )
        for pattern, name in SWIN_NAMES.items():
            key = re.sub(pattern, name, key)
        array = tensor.numpy().astype("float16")
        if "bias_table" in key:
            array = _centered(array, 2 * SWIN["window_size"] - 1)
        if "{}" not in key:
            tensors[key] = array
            continue
        parts = np.split(array, 3)
        for name, part in zip(("query", "key", "value"), parts, strict=True):
            tensors[key.format(name)] = np.ascontiguousarray(part)
    said = {
        **SWIN,
        "architectures": ["SwinForImageClassification"],
        "id2label": {str(label): f"LABEL_{label}" for label in range(CLASSES)},
        "model_type": "swin",
        "num_channels": 3,
    }
    return tensors, said, arrays


def _centered(table, side):
    """timm's table for a window cut to the map, in the middle of a whole window's."""
    own = round(len(table) ** 0.5)
    margin = (side - own) // 2
    square = table.reshape(own, own, -1)
    whole = np.pad(square, ((margin, margin), (margin, margin), (0, 0)))
    return whole.reshape(side**2, -1)


def _drawn(model, size):
    """Draws the weights; gives images of that size, and the logits for them."""
    model.eval()
    rng = np.random.default_rng(11)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            is_scale = weight.ndim == 1 and key.endswith((".weight", ".gamma"))
            drawn = rng.normal(0, SPREAD, weight.shape) + is_scale
            # Rounded as the files have it.
            weight.copy_(torch.from_numpy(drawn.astype("float16").astype("float32")))
    images = np.random.default_rng(19).normal(size=(B, *size, 3)).astype("float32")
    with torch.no_grad():
        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).copy())
        logits = model(pixels).numpy()
    return {"input_images": images, "output_logits": logits}


def write(cases):
    """Writes a folder a case."""
    from safetensors.numpy import save_file

    for name, (tensors, config, arrays) in cases.items():
        folder = CHECKPOINTS / name
        folder.mkdir(exist_ok=True)
        save_file(tensors, folder / "model.safetensors")
        text = json.dumps(config, indent=2, sort_keys=True) + "\n"
        (folder / "config.json").write_text(text)
        np.savez_compressed(folder / "expected.npz", **arrays)
        size = sum(file.stat().st_size for file in folder.iterdir())
        sys.stdout.write(f"{name}: {size} bytes\n")


if __name__ == "__main__":
    write(make_cases())
