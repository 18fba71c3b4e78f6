"""Where the published weights of a model are, by the name of its card.

None of these folders was fetched by us. Their names were compared with those in the
sources of transformers 4.39.3 and 5.23, timm 1.0.31, open_clip 3.3 and torchvision
0.29.1, except those in `_FROM_MEMORY`, which stand in none of these. What a library
saves in each layout is compared with ours in `tests/parity/`. Licenses and terms are
their owners'.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PublicWeights:
    """Weights that somebody has published.

    Attributes:
        place: A name for `load_checkpoint`, `hf://owner/name`; or the model of a
            library whose weights have to be saved first (docs/checkpoints.md), such as
            `"torchvision: resnet50"`.
        source: Whose they are, and what they were trained on, if models of one name
            differ.
        layout: What the keys and the configuration are named like.
        is_checked: Whether the name stands in the source of a library that reads it.
    """

    place: str
    source: str
    layout: str
    is_checked: bool


# No library's source at hand has the names of these cards' weights.
_FROM_MEMORY = {
    *("bert_tiny", "bert_mini", "bert_small", "bert_medium"),
    *("vit_base_patch32", "vit_large_patch16", "vit_large_patch32", "vit_huge_patch14"),
    *("mae_vit_large", "mae_vit_huge", "swin_small", "swin_base", "swin_large"),
    *("convnext_small", "convnext_base", "convnext_large", "convnext_xlarge"),
    *("clip_vit_base_patch16", "clip_vit_large_patch14", "caption_vit_transformer"),
}


def _of(
    owner: str, layout: str, source: str, names: dict[str, str]
) -> dict[str, PublicWeights]:
    """Folders of one owner on the hub, by the names of the cards."""
    return {
        card: PublicWeights(
            f"hf://{owner}/{name}", source, layout, card not in _FROM_MEMORY
        )
        for card, name in names.items()
    }


def _of_torchvision(names: dict[str, str]) -> dict[str, PublicWeights]:
    """Weights of torchvision, `model:weights`, by the names of the cards."""
    found = {}
    for card, name in names.items():
        model, weights = name.split(":")
        source = f"torchvision's {weights}"
        place = f"torchvision: {model}"
        found[card] = PublicWeights(place, source, "torchvision", is_checked=True)
    return found


_GOOGLE_BERT = "Google's, in transformers' layout"
_AUTHORS = "the authors', in transformers' layout"
_TIMM = "in timm's layout, which names the training"
PUBLIC_WEIGHTS: dict[str, PublicWeights] = {
    **_of(
        "google-bert",
        "bert",
        _GOOGLE_BERT,
        {"bert_base": "bert-base-uncased", "bert_large": "bert-large-uncased"},
    ),
    **_of(
        "google",
        "bert",
        _GOOGLE_BERT,
        {
            "bert_tiny": "bert_uncased_L-2_H-128_A-2",
            "bert_mini": "bert_uncased_L-4_H-256_A-4",
            "bert_small": "bert_uncased_L-4_H-512_A-8",
            "bert_medium": "bert_uncased_L-8_H-512_A-8",
        },
    ),
    **_of(
        "FacebookAI",
        "roberta",
        _AUTHORS,
        {"roberta_base": "roberta-base", "roberta_large": "roberta-large"},
    ),
    **_of(
        "FacebookAI",
        "xlm",
        _AUTHORS,
        {"xlm_mlm_tlm_xnli15": "xlm-mlm-tlm-xnli15-1024"},
    ),
    **_of(
        "xlnet",
        "xlnet",
        _AUTHORS,
        {"xlnet_base": "xlnet-base-cased", "xlnet_large": "xlnet-large-cased"},
    ),
    **_of("openai-community", "gpt", _AUTHORS, {"gpt_117m": "openai-gpt"}),
    **_of(
        "openai-community",
        "gpt2",
        _AUTHORS,
        {
            "gpt2_small": "gpt2",
            "gpt2_medium": "gpt2-medium",
            "gpt2_large": "gpt2-large",
            "gpt2_xl": "gpt2-xl",
        },
    ),
    **_of(
        "google",
        "vit",
        "the authors', of the image size and the data in its name",
        {
            "vit_base_patch16": "vit-base-patch16-224",
            "vit_base_patch32": "vit-base-patch32-384",
            "vit_large_patch16": "vit-large-patch16-224",
            "vit_large_patch32": "vit-large-patch32-384",
            "vit_huge_patch14": "vit-huge-patch14-224-in21k",
        },
    ),
    **_of(
        "timm",
        "timm",
        _TIMM,
        {
            "vit_tiny_patch16": "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
            "vit_small_patch16": "vit_small_patch16_224.augreg_in21k_ft_in1k",
            "vit_small_patch32": "vit_small_patch32_224.augreg_in21k_ft_in1k",
            "vit_hybrid_r50_base_patch16": "vit_base_r50_s16_384.orig_in21k_ft_in1k",
            "deit3_small": "deit3_small_patch16_224.fb_in1k",
            "deit3_medium": "deit3_medium_patch16_224.fb_in1k",
            "deit3_base": "deit3_base_patch16_224.fb_in1k",
            "deit3_large": "deit3_large_patch16_224.fb_in1k",
            "deit3_huge": "deit3_huge_patch14_224.fb_in1k",
        },
    ),
    **_of(
        "facebook",
        "mae",
        _AUTHORS,
        {
            "mae_vit_base": "vit-mae-base",
            "mae_vit_large": "vit-mae-large",
            "mae_vit_huge": "vit-mae-huge",
        },
    ),
    **_of(
        "microsoft",
        "swin",
        _AUTHORS,
        {
            "swin_tiny": "swin-tiny-patch4-window7-224",
            "swin_small": "swin-small-patch4-window7-224",
            "swin_base": "swin-base-patch4-window7-224",
            "swin_large": "swin-large-patch4-window7-224",
        },
    ),
    **_of(
        "facebook",
        "convnext",
        _AUTHORS,
        {
            "convnext_tiny": "convnext-tiny-224",
            "convnext_small": "convnext-small-224",
            "convnext_base": "convnext-base-224",
            "convnext_large": "convnext-large-224",
            "convnext_xlarge": "convnext-xlarge-224-22k-1k",
        },
    ),
    **_of(
        "openai",
        "clip",
        _AUTHORS,
        {
            "clip_vit_base_patch32": "clip-vit-base-patch32",
            "clip_vit_base_patch16": "clip-vit-base-patch16",
            "clip_vit_large_patch14": "clip-vit-large-patch14",
            "clip_vit_large_patch14_336": "clip-vit-large-patch14-336",
        },
    ),
    **_of(
        "timm",
        "openclip",
        "OpenAI's, in open_clip's layout",
        {
            "clip_rn50": "resnet50_clip.openai",
            "clip_rn101": "resnet101_clip.openai",
        },
    ),
    **_of(
        "google",
        "siglip",
        _AUTHORS,
        {"siglip_base_patch16_224": "siglip-base-patch16-224"},
    ),
    **_of(
        "nlpconnect",
        "captioner",
        "nlpconnect's, not of a paper",
        {"caption_vit_transformer": "vit-gpt2-image-captioning"},
    ),
    **_of_torchvision(
        {
            "resnet18": "resnet18:IMAGENET1K_V1",
            "resnet34": "resnet34:IMAGENET1K_V1",
            "resnet50": "resnet50:IMAGENET1K_V2",
            "resnet101": "resnet101:IMAGENET1K_V2",
            "resnet152": "resnet152:IMAGENET1K_V2",
            "vgg16": "vgg16:IMAGENET1K_V1",
            "fcn_resnet50": "fcn_resnet50:COCO_WITH_VOC_LABELS_V1",
            "fcn_resnet101": "fcn_resnet101:COCO_WITH_VOC_LABELS_V1",
            "faster_rcnn_resnet50": "fasterrcnn_resnet50_fpn:COCO_V1",
            "mask_rcnn_resnet50": "maskrcnn_resnet50_fpn:COCO_V1",
        }
    ),
}
