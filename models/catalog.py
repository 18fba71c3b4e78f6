"""What is published about each model, by its name in the registry.

Each variant has the number of parameters in the paper, or None, and a score or another
figure; see `ModelCard`. Translation and text, then images and their regions. One table
of all models, hence its length.
"""

from typing import Any

from keras_attn.models.ask_attend_answer import build_vqa_ask_attend_answer
from keras_attn.models.bert import build_bert
from keras_attn.models.convnext import build_convnext
from keras_attn.models.deconvnet import build_deconvnet
from keras_attn.models.detection import (
    build_faster_rcnn,
    build_faster_rcnn_vgg16,
    build_mask_rcnn,
)
from keras_attn.models.fcn import build_fcn_resnet, build_fcn_vgg
from keras_attn.models.gpt import build_gpt
from keras_attn.models.listen_attend_spell import build_listen_attend_spell
from keras_attn.models.listen_attend_walk import build_listen_attend_walk
from keras_attn.models.mae import build_mae
from keras_attn.models.parts.registry import register_variants
from keras_attn.models.resnet import build_resnet
from keras_attn.models.rnnsearch import build_rnnsearch
from keras_attn.models.roberta import build_roberta
from keras_attn.models.sagan import (
    build_cnn_self_attention,
    build_sagan_discriminator,
    build_sagan_generator,
)
from keras_attn.models.segnet import build_segnet
from keras_attn.models.seq2seq import build_seq2seq_context, build_seq2seq_sutskever
from keras_attn.models.show_and_tell import build_caption_show_and_tell
from keras_attn.models.show_ask_attend_answer import build_vqa_show_ask_attend_answer
from keras_attn.models.show_attend_interact import build_show_attend_interact
from keras_attn.models.show_attend_read import build_show_attend_read
from keras_attn.models.show_attend_tell import build_caption_show_attend_tell
from keras_attn.models.swin import build_swin
from keras_attn.models.transformer import build_transformer
from keras_attn.models.transformer_captioners import (
    build_caption_cnn_transformer,
    build_caption_vit_transformer,
)
from keras_attn.models.unet import build_unet
from keras_attn.models.vgg import build_vgg
from keras_attn.models.vit import build_deit3, build_vit, build_vit_hybrid
from keras_attn.models.xlm import build_xlm
from keras_attn.models.xlnet import build_xlnet

_PADDING_MASK = "(B, T) bool, True = a real token"
_IMAGES = "(B, H, W, 3) float, red, green, blue; "
# The normalizations of images that published checkpoints were trained with.
_UNIT = "in [0, 1]"
_HALF = "in [0, 1], normalized to [-1, 1] by mean and standard deviation 0.5"
_IMAGENET = (
    "in [0, 1], normalized by the mean (0.485, 0.456, 0.406) and the standard "
    "deviation (0.229, 0.224, 0.225)"
)
_MAP = "(B, h, w, C) float, a map of a network; with a backbone `images`"
_TRANSLATOR: dict[str, Any] = {
    "task": "translation",
    "inputs": {
        "token_ids": "(B, S) int32, the source",
        "padding_mask": "(B, S) bool, True = a real source token",
        "decoder_token_ids": "(B, T) int32, the target after its start token",
    },
    "outputs": {"logits": "(B, T, V), before the softmax"},
}
_LANGUAGE_MODEL: dict[str, Any] = {
    "task": "language model",
    "inputs": {"token_ids": "(B, T) int32", "padding_mask": _PADDING_MASK},
    "outputs": {"logits": "(B, T, V), of the next token at every position"},
}


def _encoder(pooled_output: str, **further_inputs: str) -> dict[str, Any]:
    """A text encoder, how it pools, and its inputs after token ids and mask."""
    inputs = {"token_ids": "(B, T) int32", "padding_mask": _PADDING_MASK}
    return {
        "task": "encoder",
        "inputs": {**inputs, **further_inputs},
        "outputs": {
            "sequence_output": "(B, T, D), one vector per token",
            "pooled_output": f"(B, D), {pooled_output}",
        },
    }


def _classifier(pixels: str) -> dict[str, Any]:
    """A classifier of images with the given range or normalization of pixels."""
    return {
        "task": "image classification",
        "inputs": {"images": _IMAGES + pixels},
        "outputs": {"logits": "(B, C) float32, one score per class"},
    }


def _segmenter(pixels: str, **further_outputs: str) -> dict[str, Any]:
    """A segmenter of images with the given range or normalization of pixels."""
    logits = "(B, H, W, C) float32, one score per pixel and class"
    return {
        "task": "semantic segmentation",
        "inputs": {"images": _IMAGES + pixels},
        "outputs": {"logits": logits, **further_outputs},
    }


def _captioner(**image: str) -> dict[str, Any]:
    """The fields of a card that all captioners share."""
    return {
        "task": "image captioning",
        "inputs": {
            **image,
            "decoder_token_ids": "(B, T) int32, the caption after its start token",
        },
        "outputs": {"logits": "(B, T, V), before the softmax"},
    }


def _answerer(grid: str) -> dict[str, Any]:
    """A model that answers questions about images, from a map of these features."""
    return {
        "task": "visual question answering",
        "inputs": {
            "features": grid,
            "token_ids": "(B, T) int32, the question",
            "padding_mask": _PADDING_MASK,
        },
        "outputs": {"logits": "(B, A) float32, one score per answer"},
    }


def _detector(**further_outputs: str) -> dict[str, Any]:
    """A detector of objects."""
    return {
        "task": "object detection",
        "inputs": {"images": _IMAGES + _IMAGENET},
        "outputs": {
            "boxes": "(B, K, 4) float32, left, top, right, bottom in pixels",
            "scores": "(B, K) float32, in [0, 1]",
            "classes": "(B, K) int32, torchvision's label minus 1; -1 = padding",
            "num_detections": "(B,) int32",
            **further_outputs,
        },
    }


register_variants(
    build_seq2seq_context,
    {
        "base": (
            None,
            "used to score phrase pairs: En-Fr BLEU 33.30 to 33.87 with a phrase table",
        )
    },
    name="seq2seq_context",
    title="GRU encoder-decoder with one fixed context",
    paper="Cho et al. 2014, arXiv:1406.1078",
    **_TRANSLATOR,
)
register_variants(
    build_seq2seq_sutskever,
    {
        "base": (
            384_000_000,
            "WMT'14 En-Fr: BLEU 30.59 (beam 12), 34.81 with an ensemble of five",
        )
    },
    name="seq2seq_sutskever",
    title="Stacked LSTMs, the last states handed over, the source reversed",
    paper="Sutskever, Vinyals, Le 2014, arXiv:1409.3215",
    **_TRANSLATOR,
)
register_variants(
    build_rnnsearch,
    {
        "30": (
            None,
            "WMT'14 En-Fr: BLEU 21.50, trained on sentences of up to 30 words",
        ),
        "50": (
            None,
            "WMT'14 En-Fr: BLEU 26.75, trained on sentences of up to 50 words",
        ),
    },
    family="seq2seq",
    title="Bidirectional GRU with additive attention",
    paper="Bahdanau, Cho, Bengio 2015, arXiv:1409.0473",
    **_TRANSLATOR,
)
register_variants(
    build_transformer,
    {
        "base": (
            65_000_000,
            "WMT'14: BLEU En-De 27.3, En-Fr 38.1 (beam of 4, length penalty 0.6)",
        ),
        "big": (
            213_000_000,
            "WMT'14: BLEU En-De 28.4, En-Fr 41.8 (beam of 4, length penalty 0.6)",
        ),
    },
    title="Transformer {variant}, an encoder-decoder of attention alone",
    paper="Vaswani et al. 2017, arXiv:1706.03762",
    **_TRANSLATOR,
)

register_variants(
    build_listen_attend_spell,
    {
        "base": (
            None,
            "Google voice search: word error rate 14.1 with sampling (beam of 32), "
            "10.3 rescored by a language model",
        ),
    },
    name="listen_attend_spell",
    title="Speech to characters: a pyramid of bidirectional LSTMs, and a speller",
    paper="Chan et al. 2016, arXiv:1508.01211",
    task="speech recognition",
    inputs={
        "features": "(B, T, 40) float, log-mel filter banks every 10 ms",
        "padding_mask": "(B, T) bool, True = a real frame",
        "decoder_token_ids": "(B, U) int32, the characters after the start token",
    },
    outputs={"logits": "(B, U, V), before the softmax"},
)

register_variants(
    build_listen_attend_walk,
    {
        "sail": (
            None,
            "SAIL: 71.05 % of single sentences followed to the goal, 30.34 % of "
            "paragraphs (beam search, ensemble of 10)",
        ),
    },
    name="listen_attend_walk",
    title="Instructions to actions: a bidirectional LSTM, and an LSTM that attends",
    paper="Mei et al. 2016, arXiv:1506.04089",
    task="navigation",
    inputs={
        "token_ids": "(B, S) int32, the words of the instruction",
        "padding_mask": "(B, S) bool, True = a real word",
        "world_state": "(B, T, 78) float, what is around before each step",
    },
    outputs={"logits": "(B, T, 4), before the softmax"},
)

_BERT = {
    "title": "BERT {variant}, an encoder",
    **_encoder(
        "a tanh layer over the first real token", segment_ids="(B, T) int32, 0 or 1"
    ),
}
register_variants(
    build_bert,
    {
        "base": (110_000_000, "GLUE 79.6; SQuAD 1.1 F1 88.5"),
        "large": (340_000_000, "GLUE 82.1; SQuAD 1.1 F1 90.9"),
    },
    paper="Devlin et al. 2019, arXiv:1810.04805",
    **_BERT,
)
register_variants(
    build_bert,
    {
        "tiny": (4_400_000, "pre-trained, then distilled: GLUE 64.2"),
        "mini": (11_300_000, "pre-trained, then distilled: GLUE 65.8"),
        "small": (29_100_000, "pre-trained, then distilled: GLUE 71.2"),
        "medium": (41_700_000, "pre-trained, then distilled: GLUE 73.5"),
    },
    paper="Turc et al. 2019, arXiv:1908.08962",
    **_BERT,
)
register_variants(
    build_roberta,
    {
        "base": (125_000_000, "MNLI 87.6; SST-2 94.8"),
        "large": (355_000_000, "MNLI 90.2; SST-2 96.4; SQuAD 1.1 F1 94.6"),
    },
    family="bert",
    title="RoBERTa {variant}, an encoder",
    paper="Liu et al. 2019, arXiv:1907.11692",
    **_encoder("a tanh layer over the first real token"),
)
register_variants(
    build_xlm,
    {"mlm_tlm_xnli15": (None, "XNLI, mean of 15 languages: 75.1 (MLM and TLM)")},
    title="XLM, an encoder of 15 languages",
    paper="Lample and Conneau 2019, arXiv:1901.07291",
    **_encoder(
        "the features of the first real token",
        language_ids="(B, T) int32, the language of each token",
    ),
)
register_variants(
    build_xlnet,
    {
        "base": (117_000_000, "the published code's smaller model"),
        "large": (340_000_000, "RACE 85.4; SQuAD 2.0 F1 90.7; MNLI 90.8"),
    },
    title="XLNet {variant}, an encoder",
    paper="Yang et al. 2019, arXiv:1906.08237",
    **_encoder(
        "the features of the last real token",
        segment_ids="(B, T) int32, a number for each segment",
    ),
)
register_variants(
    build_gpt,
    {"gpt_117m": (117_000_000, "SST-2 91.3; RACE 59.0")},
    name="{variant}",
    title="GPT, a causal decoder with post-norm blocks",
    paper="Radford et al. 2018, Generative Pre-Training",
    **_LANGUAGE_MODEL,
)
register_variants(
    build_gpt,
    {
        "gpt2_small": (117_000_000, "WikiText-103 perplexity 37.50, zero-shot"),
        "gpt2_medium": (345_000_000, "WikiText-103 perplexity 26.37, zero-shot"),
        "gpt2_large": (762_000_000, "WikiText-103 perplexity 22.05, zero-shot"),
        "gpt2_xl": (1_542_000_000, "WikiText-103 perplexity 17.48, zero-shot"),
    },
    name="{variant}",
    title="GPT-2, a causal decoder with pre-norm blocks",
    paper="Radford et al. 2019, Unsupervised Multitask Learners",
    **_LANGUAGE_MODEL,
)
register_variants(
    build_gpt,
    {
        "megatron_1p2b": (1_200_000_000, "one model-parallel device"),
        "megatron_2p5b": (2_500_000_000, "two model-parallel devices"),
        "megatron_4p2b": (4_200_000_000, "four model-parallel devices"),
        "megatron_8p3b": (8_300_000_000, "WikiText-103 perplexity 10.81, zero-shot"),
    },
    name="{variant}",
    title="Megatron-LM, GPT-2 at scale",
    paper="Shoeybi et al. 2019, arXiv:1909.08053",
    **_LANGUAGE_MODEL,
)
register_variants(
    build_gpt,
    {
        "gpt3_small": (125_000_000, "batches of 0.5 million tokens"),
        "gpt3_medium": (350_000_000, "batches of 0.5 million tokens"),
        "gpt3_large": (760_000_000, "batches of 0.5 million tokens"),
        "gpt3_xl": (1_300_000_000, "batches of 1 million tokens"),
        "gpt3_2p7b": (2_700_000_000, "batches of 1 million tokens"),
        "gpt3_6p7b": (6_700_000_000, "batches of 2 million tokens"),
        "gpt3_13b": (13_000_000_000, "batches of 2 million tokens"),
        "gpt3_175b": (175_000_000_000, "batches of 3.2 million tokens"),
    },
    name="{variant}",
    title="GPT-3, dense and banded sparse blocks in turn",
    paper="Brown et al. 2020, arXiv:2005.14165",
    **_LANGUAGE_MODEL,
)

register_variants(
    build_vgg,
    {"16": (138_357_544, "ImageNet 71.6 with torchvision's weights")},
    name="vgg{variant}",
    title="VGG{variant}: a deep stack of 3 × 3 convolutions",
    paper="Simonyan and Zisserman 2015, arXiv:1409.1556",
    **_classifier(_IMAGENET),
)
register_variants(
    build_resnet,
    {
        "18": (11_689_512, "ImageNet 69.8 with torchvision's first weights"),
        "34": (21_797_672, "ImageNet 73.3 with torchvision's first weights"),
        "50": (25_557_032, "ImageNet 76.1 with torchvision's first weights"),
        "101": (44_549_160, "ImageNet 77.4 with torchvision's first weights"),
        "152": (60_192_808, "ImageNet 78.3 with torchvision's first weights"),
    },
    name="resnet{variant}",
    title="ResNet-{variant}: residual bottlenecks of convolutions",
    paper="He et al. 2016, arXiv:1512.03385",
    **_classifier(_IMAGENET),
)
register_variants(
    build_vit,
    {
        "tiny_patch16": (5_700_000, "from ImageNet-21k: ImageNet 75.5"),
        "small_patch16": (22_000_000, "from ImageNet-21k: ImageNet 81.4"),
        "small_patch32": (23_000_000, "from ImageNet-21k: ImageNet 76.0"),
    },
    title="ViT {variant}: an image as a sequence of patches",
    paper="Steiner et al. 2022, arXiv:2106.10270",
    **_classifier(_HALF),
)
register_variants(
    build_vit,
    {
        "base_patch16": (86_000_000, "from ImageNet-21k, at 384: ImageNet 83.97"),
        "base_patch32": (88_000_000, "from ImageNet-21k, at 384: ImageNet 81.28"),
        "large_patch16": (307_000_000, "from ImageNet-21k, at 384: ImageNet 85.15"),
        "large_patch32": (306_000_000, "from ImageNet-21k, at 384: ImageNet 80.99"),
        "huge_patch14": (632_000_000, "from ImageNet-21k, at 384: ImageNet 85.13"),
    },
    title="ViT {variant}: an image as a sequence of patches",
    paper="Dosovitskiy et al. 2021, arXiv:2010.11929",
    **_classifier(_HALF),
)
register_variants(
    build_vit_hybrid,
    {"r50_base_patch16": (None, "published as R50+ViT-B/16")},
    title="ViT base on the feature map of a ResNet-50",
    paper="Dosovitskiy et al. 2021, arXiv:2010.11929",
    **_classifier(_HALF),
)
register_variants(
    build_deit3,
    {
        "small": (22_000_000, "ImageNet 81.4 at 224"),
        "medium": (39_000_000, "ImageNet 83.0 at 224"),
        "base": (86_600_000, "ImageNet 83.8 at 224"),
        "large": (304_000_000, "ImageNet 84.9 at 224"),
        "huge": (632_000_000, "ImageNet 85.2 at 224"),
    },
    title="DeiT III {variant}: ViT with LayerScale",
    paper="Touvron et al. 2022, arXiv:2204.07118",
    **_classifier(_IMAGENET),
)
register_variants(
    build_swin,
    {
        "tiny": (28_288_354, "ImageNet 81.3"),
        "small": (49_606_258, "ImageNet 83.0"),
        "base": (87_768_224, "ImageNet 83.5"),
        "large": (196_532_476, "from ImageNet-22k, at 384: ImageNet 87.3"),
    },
    title="Swin {variant}: attention within shifted windows",
    paper="Liu et al. 2021, arXiv:2103.14030",
    **_classifier(_IMAGENET),
)
register_variants(
    build_convnext,
    {
        "tiny": (28_589_128, "ImageNet 82.1"),
        "small": (50_223_688, "ImageNet 83.1"),
        "base": (88_591_464, "ImageNet 83.8"),
        "large": (197_767_336, "ImageNet 84.3"),
        "xlarge": (350_196_968, "from ImageNet-22k: ImageNet 87.0"),
    },
    title="ConvNeXt {variant}: a convolutional network with the design of Swin",
    paper="Liu et al. 2022, arXiv:2201.03545",
    **_classifier(_IMAGENET),
)
register_variants(
    build_mae,
    {
        "base": (111_900_000, "fine-tuned: ImageNet 83.6"),
        "large": (329_500_000, "fine-tuned: ImageNet 85.9"),
        "huge": (657_100_000, "fine-tuned: ImageNet 86.9"),
    },
    name="mae_vit_{variant}",
    title="MAE {variant}: a ViT pre-trained by reconstructing hidden patches",
    paper="He et al. 2022, arXiv:2111.06377",
    task="self-supervised pre-training",
    inputs={
        "images": _IMAGES + _IMAGENET,
        "noise": "(B, T) float, hidden where it is largest; only with noise=True",
    },
    outputs={
        "reconstruction": "(B, T, P) float32, normalized pixels of each patch",
        "hidden": "(B, T) bool, True = hidden from the encoder",
    },
)
register_variants(
    build_sagan_generator,
    {"128": (None, "ImageNet at 128: Inception score 52.52, FID 18.65")},
    title="SAGAN's generator: class-conditional images of {variant} pixels",
    paper="Zhang et al. 2019, arXiv:1805.08318",
    task="image generation",
    inputs={
        "noise": "(B, 128) float, normally distributed",
        "labels": "(B,) int32, one of 1,000 classes",
    },
    outputs={"images": "(B, 128, 128, 3) float32, in [-1, 1]"},
)
register_variants(
    build_sagan_discriminator,
    {"128": (None, "trained at four times the generator's learning rate")},
    title="SAGAN's discriminator: scores how realistic an image of a class is",
    paper="Zhang et al. 2019, arXiv:1805.08318",
    task="adversarial training",
    inputs={
        "images": f"(B, 128, 128, 3) float, red, green, blue; {_HALF}",
        "labels": "(B,) int32, one of 1,000 classes",
    },
    outputs={"logits": "(B, 1) float32, higher for realistic images"},
)
register_variants(
    build_cnn_self_attention,
    {"small": (None, "not from the paper: its attention in a classifier")},
    name="cnn_self_attention",
    title="A small convolutional classifier with self-attention",
    paper="Zhang et al. 2019, arXiv:1805.08318",
    **_classifier(_HALF),
)
register_variants(
    build_show_attend_read,
    {"base": (None, "read without a lexicon: IIIT5K 95.0, SVT 91.2, ICDAR 2015 78.8")},
    name="show_attend_read",
    title="Show, attend and read: a word in an image, character by character",
    paper="Li et al. 2019, arXiv:1811.00751",
    task="text recognition",
    inputs={
        "images": "(B, 48, W, 3) float, red, green, blue; " + _UNIT,
        "widths": "(B,) int32, columns of pixels before the padding",
        "decoder_token_ids": "(B, T) int32, the characters after their start token",
    },
    outputs={"logits": "(B, T, V), before the softmax"},
)
register_variants(
    build_show_attend_interact,
    {
        "base": (
            None,
            "a robot's answers to people, after 14 days of learning among them",
        )
    },
    name="show_attend_interact",
    title="Show, attend and interact: the values of a robot's actions",
    paper="Qureshi et al. 2017, arXiv:1702.08626",
    task="human-robot interaction",
    inputs={
        "gray": "(B, T, 198, 198, 1) float, brightness",
        "depth": "(B, T, 198, 198, 1) float, distance",
    },
    outputs={
        "q_values": "(B, T, 4), of both cameras, shares",
        "gray_q_values": "(B, T, 4), expected sums of rewards",
        "depth_q_values": "(B, T, 4), expected sums of rewards",
    },
)
register_variants(
    build_fcn_vgg,
    {
        "32s": (136_152_917, "VOC 2011 validation: mean IoU 59.4"),
        "16s": (134_815_994, "VOC 2011 validation: mean IoU 62.4"),
        "8s": (134_489_759, "VOC 2011 validation: mean IoU 62.7"),
    },
    name="fcn{variant}_vgg16",
    title="FCN-{variant} on VGG16: a class for every pixel",
    paper="Long et al. 2015, arXiv:1411.4038",
    **_segmenter(_IMAGENET),
)
register_variants(
    build_fcn_resnet,
    {
        "50": (35_322_218, "COCO, classes of VOC: mean IoU 60.5 with torchvision's"),
        "101": (54_314_346, "COCO, classes of VOC: mean IoU 63.7 with torchvision's"),
    },
    name="fcn_resnet{variant}",
    title="FCN on a dilated ResNet-{variant}: a class for every pixel",
    paper="Long et al. 2015, arXiv:1411.4038",
    **_segmenter(
        _IMAGENET,
        auxiliary_logits="(B, H, W, C) float32, those of an earlier map",
    ),
)
register_variants(
    build_deconvnet,
    {"vgg16": (251_788_949, "VOC 2012: mean IoU 69.6; with FCN and a CRF 72.5")},
    title="DeconvNet on VGG16: unpooling and deconvolution",
    paper="Noh et al. 2015, arXiv:1505.04366",
    **_segmenter(_IMAGENET),
)
register_variants(
    build_segnet,
    {"base": (29_441_996, "CamVid, 3.5 K images, 11 classes: mean IoU 60.1")},
    name="segnet",
    title="SegNet: max unpooling by the encoder's indices",
    paper="Badrinarayanan et al. 2017, arXiv:1511.00561",
    **_segmenter(_UNIT),
)
register_variants(
    build_unet,
    {"base": (31_030_658, "ISBI 2012: warping error 0.000353, Rand error 0.0382")},
    name="unet",
    title="U-Net: skips between maps of one size",
    paper="Ronneberger et al. 2015, arXiv:1505.04597",
    task="semantic segmentation",
    inputs={"images": "(B, H, W, 1) float, gray; in [0, 1]"},
    outputs={"logits": "(B, H - 184, W - 184, C) float32, one score per pixel"},
)
register_variants(
    build_faster_rcnn,
    {
        "resnet50": (41_755_286, "COCO box mAP 37.0 with torchvision's weights"),
        "resnet101": (60_695_190, "COCO box mAP 39.4 in Detectron2, schedule 1x"),
    },
    title="Faster R-CNN on {variant} with a feature pyramid",
    paper="Ren et al. 2015, arXiv:1506.01497; Lin et al. 2017, arXiv:1612.03144",
    **_detector(),
)
register_variants(
    build_mask_rcnn,
    {
        "resnet50": (
            44_401_393,
            "COCO box mAP 37.9, mask mAP 34.6 with torchvision's weights",
        ),
    },
    title="Mask R-CNN on {variant} with a feature pyramid",
    paper="He et al. 2017, arXiv:1703.06870",
    **_detector(masks="(B, K, 28, 28) float32, probabilities inside the box"),
)
register_variants(
    build_faster_rcnn_vgg16,
    {"vgg16": (None, "VOC 2007 mAP 69.9")},
    name="faster_rcnn_vgg16",
    title="Faster R-CNN on {variant}, one map, as first published",
    paper="Ren et al. 2015, arXiv:1506.01497",
    **_detector(),
)
register_variants(
    build_caption_show_and_tell,
    {"base": (None, "COCO: BLEU-4 27.7, CIDEr 85.5, beam 20")},
    name="caption_show_and_tell",
    title="Show and Tell: one vector of the image, then an LSTM",
    paper="Vinyals et al. 2015, arXiv:1411.4555",
    **_captioner(features=_MAP),
)
register_variants(
    build_caption_show_attend_tell,
    {"base": (None, "COCO: BLEU-4 24.3 with soft attention, 25.0 with hard")},
    name="caption_show_attend_tell",
    title="Show, Attend and Tell: an LSTM that attends to the image for every word",
    paper="Xu et al. 2015, arXiv:1502.03044",
    **_captioner(features=_MAP),
)
register_variants(
    build_caption_cnn_transformer,
    {"base": (None, "no published size; here the sizes of the base Transformer")},
    name="caption_cnn_transformer",
    title="A Transformer that describes the map of a CNN",
    paper="Vaswani et al. 2017, arXiv:1706.03762",
    **_captioner(features=_MAP),
)
register_variants(
    build_caption_vit_transformer,
    {"base_patch16_gpt2_small": (None, "as in public vision-encoder-decoder models")},
    name="caption_vit_transformer",
    title="ViT-B/16 reads an image, GPT-2 small describes it",
    paper="Dosovitskiy et al. 2021, arXiv:2010.11929; Radford et al. 2019",
    **_captioner(images=_IMAGES + _HALF),
)
register_variants(
    build_vqa_ask_attend_answer,
    {"base": (None, "VQA 1.0 test-standard 58.24")},
    name="vqa_ask_attend_answer",
    title="Ask, attend and answer: words choose locations, then the whole question",
    paper="Xu and Saenko 2016, arXiv:1511.05234",
    **_answerer("(B, 7, 7, 1024) float, GoogLeNet's last map"),
)
register_variants(
    build_vqa_show_ask_attend_answer,
    {"base": (None, "VQA 1.0 test-standard 64.6, VQA 2.0 validation 59.7")},
    name="vqa_show_ask_attend_answer",
    title="Show, ask, attend and answer: an LSTM and two glimpses",
    paper="Kazemi and Elqursh 2017, arXiv:1704.03162",
    **_answerer("(B, 14, 14, 2048) float, ResNet-152's last map"),
)
