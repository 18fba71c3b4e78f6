"""Tiny checkpoints of image models from timm, in folders as in `hugging_face.py`.

`python tests/parity/timm_references.py` takes a few seconds.

Needs what `make install` puts beside torchvision; see `torchvision_shim.py`.
"""

import functools

import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
from torch_models import pixels_of, random_images, randomize_parameters
from torchvision_shim import load_torchvision
from write_folders import saving, write

load_torchvision()

import timm  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.layers import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    hybrid_embed,
    std_conv,
)
from timm.models import resnetv2  # noqa: E402  # pyright: ignore[reportMissingImports]

B, CLASSES = 2, 5
_SIZES = {
    "img_size": [14, 21],
    "patch_size": 7,
    "embed_dim": 12,
    "depth": 2,
    "num_heads": 3,
}
# Case to timm's name, its arguments, and further fields of the configuration.
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
    "timm_deit": ("deit_small_patch16_224", {**_SIZES, "qkv_bias": False}, {}),
    "timm_deit_distilled": ("deit_tiny_distilled_patch16_224", _SIZES, {}),
    # Maps of 10, 5 and 3 patches per side: four windows, one, and one larger than the
    # map.
    "timm_swin": (
        "swin_tiny_patch4_window7_224",
        {
            "img_size": 20,
            "patch_size": 2,
            "window_size": 5,
            "embed_dim": 6,
            "depths": [2, 1, 1],
            "num_heads": [2, 1, 3],
            "mlp_ratio": 2.0,
        },
        {"global_pool": "avg"},
    ),
    # Maps of 8 by 16 patches and of 4 by 8.
    "timm_swin_oblong": (
        "swin_small_patch4_window7_224",
        {
            "img_size": [16, 32],
            "patch_size": 2,
            "window_size": 4,
            "embed_dim": 6,
            "depths": [2, 1],
            "num_heads": [2, 3],
            "qkv_bias": False,
        },
        {"global_pool": "avg"},
    ),
    # Patches of 4, then maps of 8 by 17, 4 by 8, 2 by 4 and 1 by 2.
    "timm_convnext": (
        "convnext_tiny",
        {"dims": [5, 7, 6, 8], "depths": [1, 2, 1, 1], "ls_init_value": 0.1},
        {"global_pool": "avg", "pretrained_cfg": {"input_size": [3, 35, 70]}},
    ),
}
# The ResNet: two stages of one block; the published one has 3, 4 and 9 blocks.
RESNET = {"layers": (1, 1), "channels": (128, 256), "stem_chs": 32}


def make_cases():
    """The cases of `write`."""
    return {name: _case(*case) for name, case in CASES.items()}


def _case(architecture, arguments, config):
    options = {**arguments, "num_classes": CLASSES}
    if "global_pool" in config:
        options["global_pool"] = config["global_pool"]
    if "img_size" in arguments:
        size = arguments["img_size"]
    else:
        size = config["pretrained_cfg"]["input_size"][1:]
    size = [size, size] if isinstance(size, int) else size
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
            img_size=tuple(size),
            patch_size=1,
            embed_layer=embed,
            **options,
        )
    else:
        model = timm.create_model(architecture, **options)
    randomize_parameters(model.eval(), rounded=True)
    images = random_images(B, *size, 3)
    with torch.no_grad():
        logits = model(pixels_of(images)).numpy()
    tensors = {
        key: x.numpy().astype("float16") for key, x in model.state_dict().items()
    }
    fields = {
        "architecture": architecture,
        "num_classes": CLASSES,
        "global_pool": "token",
        **config,
        "model_args": arguments,
    }
    return saving(tensors, fields), {"input_images": images, "output_logits": logits}


if __name__ == "__main__":
    write(make_cases())
