"""ViT, the hybrid on a ResNet, and DeiT III."""

from families.gpt import gpt
from families.resnet import resnet
from model_family import CLASSES, HEADS, MLP, D, Graph, dense

TINY = {
    "image_size": (14, 21),
    "patch_size": 7,
    "num_layers": 2,
    "hidden_dim": D,
    "num_heads": HEADS,
    "mlp_dim": MLP,
}


def vit(width, layers, patch, token_has_position=True, scales=False):
    """For images of 224 pixels and 1,000 classes."""
    patches = (224 // patch) ** 2
    # Like a GPT without tokens, with a class token.
    body = gpt(0, patches + token_has_position, width, layers) + width
    body += dense(patch * patch * 3, width) + dense(width, 1000)
    return body + 2 * layers * width * scales


def hybrid():
    """The first three stages of a ResNet-50, then a ViT."""
    return resnet(3, 4, 9) + vit(768, 12, 16) - dense(768, 768) + dense(1024, 768)


GRAPHS = [
    Graph(
        "vit_base_patch16",
        {**TINY, **CLASSES},
        {
            "vit_tiny_patch16": vit(192, 12, 16),
            "vit_small_patch16": vit(384, 12, 16),
            "vit_small_patch32": vit(384, 12, 32),
            "vit_base_patch16": 86_567_656,  # Counted by `transformers`.
            "vit_base_patch32": vit(768, 12, 32),
            "vit_large_patch16": vit(1024, 24, 16),
            "vit_large_patch32": vit(1024, 24, 32),
            "vit_huge_patch14": vit(1280, 32, 14),
        },
        options={
            "features": {"include_top": False},
            "mean": {"pooling": "mean", "class_token": False},
            "stem": {"stem_dims": (5, 11), "patch_size": 4, "image_size": (8, 12)},
            "no_qkv_bias": {"qkv_bias": False},
        },
        layers={
            "vit_large_patch16": 24,
            "vit_large_patch32": 24,
            "vit_huge_patch14": 32,
        },
    ),
    Graph(
        "vit_hybrid_r50_base_patch16",
        {
            **{name: size for name, size in TINY.items() if name != "patch_size"},
            **CLASSES,
            "image_size": (32, 48),
            "num_blocks": (1, 2, 1),
            "stem_dim": 32,
        },
        {"vit_hybrid_r50_base_patch16": hybrid()},
        smaller={"num_layers": 1, "num_blocks": (2, 1)},
    ),
    Graph(
        "deit3_base",
        {**TINY, **CLASSES},
        {
            "deit3_small": vit(384, 12, 16, False, True),
            "deit3_medium": vit(512, 12, 16, False, True),
            "deit3_base": vit(768, 12, 16, False, True),
            "deit3_large": vit(1024, 24, 16, False, True),
            "deit3_huge": vit(1280, 32, 14, False, True),
        },
        layers={"deit3_large": 24, "deit3_huge": 32},
    ),
]
