"""CLIP with a ViT and with a ResNet."""

from families.gpt import gpt
from families.vit import TINY
from model_family import HEADS, POSITIONS, E, Graph, V, dense

TEXT = {
    "vocabulary_size": V,
    "max_sequence_length": POSITIONS,
    "text_num_layers": 2,
    "text_hidden_dim": 4 * HEADS,
    "text_num_heads": 2,
    "text_mlp_dim": 41,
}
SMALLER = {"num_layers": 1, "text_num_layers": 1}


def text(width, embedding):
    """A GPT of 12 blocks without logits, and a projection."""
    return gpt(49_408, 77, width, 12) + width * embedding


def blocks(width, layers, patches):
    """Positions and blocks, with a norm."""
    return gpt(0, patches, width, layers)


def vit(width, layers, patch, size=224):
    """Without biases of the patches; a class token, and a norm before the blocks."""
    patches = (size // patch) ** 2
    start = patch * patch * 3 * width + width + 2 * width
    return start + blocks(width, layers, 1 + patches)


def clip(image, text_width, embedding):
    """Both towers, and the temperature."""
    return image + text(text_width, embedding) + 1


def bottlenecks(*num_blocks):
    """The stem of three convolutions, and the stages of a ResNet; norms have means."""
    count = 9 * (3 * 32 + 32 * 32 + 32 * 64) + 4 * (32 + 32 + 64)
    inputs = 64
    for stage, number in enumerate(num_blocks):
        inner = 64 * 2**stage
        count += inputs * 4 * inner + 4 * 4 * inner  # The shortcut of the first.
        for _ in range(number):
            count += inputs * inner + 9 * inner * inner + inner * 4 * inner
            count += 4 * (2 * inner + 4 * inner)
            inputs = 4 * inner
    return count


def resnet(*num_blocks, embedding):
    """The stages, and attention of the mean to itself and 7 × 7 positions."""
    pooling = 50 * 2048 + 3 * dense(2048, 2048) + dense(2048, embedding)
    return bottlenecks(*num_blocks) + pooling


GRAPHS = [
    Graph(
        "clip_vit_base_patch32",
        {**TINY, **TEXT, "embedding_dim": E},
        {
            # Also counted by `transformers`.
            "clip_vit_base_patch32": clip(vit(768, 12, 32) + 768 * 512, 512, 512),
            "clip_vit_base_patch16": clip(vit(768, 12, 16) + 768 * 512, 512, 512),
            "clip_vit_large_patch14": clip(vit(1024, 24, 14) + 1024 * 768, 768, 768),
            "clip_vit_large_patch14_336": clip(
                vit(1024, 24, 14, 336) + 1024 * 768, 768, 768
            ),
        },
        options={"end_token": {"end_token_id": 3, "activation": "gelu"}},
        heads={"clip_image_encoder": {}, "clip_text_encoder": {}},
        exported=(
            "clip_vit_base_patch32-end_token",
            "clip_image_encoder",
            "clip_text_encoder",
        ),
        smaller=SMALLER,
    ),
    Graph(
        "clip_rn50",
        {
            **TEXT,
            "image_size": (16, 24),
            "num_blocks": (2, 1),
            "stem_dim": 6,
            "num_heads": HEADS,
            "embedding_dim": E,
        },
        {
            # Counted by `open_clip`: 102,007,137 and 119,688,033 without the means and
            # variances of the norms.
            "clip_rn50": clip(resnet(3, 4, 6, 3, embedding=1024), 512, 1024),
            "clip_rn101": clip(resnet(3, 4, 23, 3, embedding=512), 512, 512),
        },
        smaller={"text_num_layers": 1, "num_blocks": (1, 1)},
    ),
]
