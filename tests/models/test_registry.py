"""The registry: names, cards, and published numbers of parameters (a long table)."""

import dataclasses
import resource
import sys
from pathlib import Path

import numpy as np
import pytest
from model_cases import (
    CASES,
    GRAPH_OF,
    SEQ2SEQ,
    SOURCE_V,
    TINY,
    A,
    E,
    M,
    U,
    V,
    logits_of,
    make_inputs,
    tiny,
)

from keras_attn import models
from keras_attn.models import gpt as gpt_family
from keras_attn.models.parts import registry

RECURRENT = 64_032_000


def test_every_model_has_a_tiny_size():
    assert models.list_models() == sorted(TINY), "add the new name to GRAPHS"


def test_list_models_takes_a_pattern():
    assert models.list_models("rnnsearch_*") == ["rnnsearch_30", "rnnsearch_50"]
    assert models.list_models("nothing*") == []


@pytest.mark.parametrize("name", TINY)
def test_cards_are_complete_and_match_the_model(name):
    card = models.describe(name)
    assert card.name == name
    for field in ("title", "paper", "task", "notes"):
        assert getattr(card, field).strip(), field
    # OpenAI published these two on its own site.
    assert "arXiv:" in card.paper or name.startswith(("gpt_", "gpt2_"))
    assert str(card.year) in card.paper
    root = Path(models.__file__).parent
    assert (root / f"{card.family}.py").is_file()
    assert hash(card) == hash(models.describe(name))
    with pytest.raises(dataclasses.FrozenInstanceError):
        card.year = 1
    model = tiny(GRAPH_OF[name])
    assert set(card.inputs) == {tensor.name for tensor in model.inputs}
    outputs = model.output
    if not isinstance(outputs, dict):
        outputs = {"images" if card.task == "image generation" else "logits"}
    assert set(card.outputs) == set(outputs)


def test_misspelt_names_suggest_similar_ones():
    for function in (models.describe, models.create, models.count_parameters):
        with pytest.raises(
            ValueError,
            match=r"`name` must be a registered model: did you mean rnnsearch_.*"
            r"`list_models\(\)` lists them. Received: name='rnnsearch50'",
        ):
            function("rnnsearch50")
    with pytest.raises(ValueError, match=r"model: `list_models\(\)` lists them"):
        models.describe("qqqqqq")


def test_a_misspelt_override_is_a_type_error():
    with pytest.raises(TypeError, match="hiden_dim"):
        models.create("rnnsearch_50", hiden_dim=3)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already. Received: name='rnns"):
        registry.register(models.describe("rnnsearch_50"), models.build_rnnsearch, "")


def test_unknown_variants_list_the_known_ones():
    with pytest.raises(
        ValueError, match="`variant` must be one of '30', '50'. Received: variant='40'"
    ):
        models.build_rnnsearch("40")
    with pytest.raises(
        ValueError, match="`score` must be one of 'additive', 'dot'.*score='cosine'"
    ):
        models.build_rnnsearch(score="cosine")  # pyright: ignore[reportArgumentType]


def test_the_folder_is_imported_by_one_name_only():
    code = Path(models.__file__).read_text()
    with pytest.raises(ImportError, match="import it by that name.*here as `models`"):
        exec(code, {"__name__": "models"})


# Numbers of parameters from the equations of the papers, with biases. A gate of a
# recurrent unit has the weights of `W x + R h + b`.


def gate(inputs, units):
    return units * (inputs + units + 1)


def dense(inputs, outputs):
    return (inputs + 1) * outputs


def sutskever(source, target, e, u, layers):
    """LSTMs of four gates; the first layer reads embeddings, the others states."""
    stack = 4 * gate(e, u) + (layers - 1) * 4 * gate(u, u)
    return (source + target) * e + 2 * stack + dense(u, target)


def readout(state, e, context, m, target):
    """Maxout over 2m units of [state; embedding; context], then the vocabulary."""
    return dense(state + e + context, 2 * m) + dense(m, target)


def context(source, target, e, u, m):
    return (
        (source + target) * e
        + 3 * gate(e, u)  # the encoder
        + dense(u, u)  # s_0
        + 3 * gate(e + u, u)  # the decoder reads [y; c]
        + readout(u, e, u, m, target)
    )


def rnnsearch(source, target, e, u, a, m, score="additive"):
    annotation = u if score in ("dot", "scaled_dot") else 2 * u
    attention = {
        "additive": u * a + annotation * a + a,
        "general": u * annotation,
        "linear": u + annotation,
    }.get(score, 0)
    return (
        (source + target) * e
        + 2 * 3 * gate(e, u)
        + dense(u, u)
        + attention
        + 3 * gate(e + annotation, u)
        + readout(u, e, annotation, m, target)
    )


def test_sutskever_has_384_million_parameters_of_which_64_recurrent():
    assert 2 * 4 * 4 * gate(1000, 1000) == RECURRENT
    assert sutskever(160_000, 80_000, 1000, 1000, 4) == 384_112_000
    assert round(384_112_000, -6) == models.describe("seq2seq_sutskever").parameters


def memory_in_use():
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()
    return 0


def test_counting_allocates_nothing_and_restores_the_state():
    models.count_parameters("rnnsearch_50", **TINY["rnnsearch_50"])  # imports
    before = memory_in_use()
    assert models.count_parameters("seq2seq_sutskever") == 384_112_000
    assert memory_in_use() - before < 200e6  # The weights would be 1,536e6.
    # The next model has real weights, not placeholders.
    model = models.create("rnnsearch_50", **TINY["rnnsearch_50"], dropout=0.5)
    assert all(isinstance(w, np.ndarray) for w in model.get_weights())
    assert np.isfinite(logits_of(model, make_inputs())).all()


def test_published_sizes_follow_the_formulas():
    count = models.count_parameters
    assert count("rnnsearch_50") == rnnsearch(30_000, 30_000, 620, 1000, 1000, 500)
    assert count("rnnsearch_30") == count("rnnsearch_50") == 80_442_000
    assert count("seq2seq_context") == context(15_000, 15_000, 100, 1000, 500)
    larger = count("rnnsearch_50", hidden_dim=1009, source_vocabulary_size=9)
    assert larger == rnnsearch(9, 30_000, 620, 1009, 1000, 500)


# Counted by `transformers` for the same model; for the largest sizes, summed over the
# shapes of the weights.
COUNTS = {
    "bert_base": 109_482_240,
    "bert_large": 335_141_888,
    "roberta_base": 124_645_632,
    "roberta_large": 355_359_744,
    "xlnet_base": 116_718_336,
    "xlnet_large": 360_268_800,
    "xlm_mlm_tlm_xnli15": 248_976_384,
    "gpt_117m": 116_534_784,
    "gpt2_small": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "vit_base_patch16": 86_567_656,
    "swin_tiny": 28_288_354,
    "swin_small": 49_606_258,
    "swin_base": 87_768_224,
    "swin_large": 196_532_476,
    "vgg16": 138_357_544,
    "convnext_tiny": 28_589_128,
    "convnext_small": 50_223_688,
    "convnext_base": 88_591_464,
    "convnext_large": 197_767_336,
    "convnext_xlarge": 350_196_968,
}


def transformer(vocabulary, width, mlp, layers):
    """Encoder and decoder blocks on one embedding; norms have two vectors each."""
    attention = 4 * dense(width, width)
    network = dense(width, mlp) + dense(mlp, width)
    encoder = attention + network + 2 * 2 * width
    decoder = 2 * attention + network + 3 * 2 * width
    return vocabulary * width + layers * (encoder + decoder)


def gpt(vocabulary, positions, width, layers, heads=None, norms=True):
    """`heads` is the width of all heads together. Default: the width of the model."""
    heads = heads or width
    attention = 3 * dense(width, heads) + dense(heads, width)
    network = dense(width, 4 * width) + dense(4 * width, width)
    blocks = layers * (attention + network + 2 * 2 * width)
    return (vocabulary + positions) * width + blocks + 2 * width * norms


def bert(width, layers):
    """With 30,522 tokens, 512 positions, 2 segments, and a pooler."""
    blocks = gpt(30_522, 512, width, layers)  # BERT's embeddings norm for the last.
    return blocks + 2 * width + dense(width, width)


def vit(width, layers, patch, token_has_position=True, scales=False):
    """For images of 224 pixels and 1,000 classes."""
    patches = (224 // patch) ** 2
    # Like a GPT without tokens, with a class token.
    body = gpt(0, patches + token_has_position, width, layers) + width
    body += dense(patch * patch * 3, width) + dense(width, 1000)
    return body + 2 * layers * width * scales


def basic_resnet(*num_blocks, norm=2):
    """Without a top; blocks of two 3 × 3 convolutions, the first without a shortcut."""
    count, inputs = 7 * 7 * 3 * 64 + norm * 64, 64
    for stage, blocks in enumerate(num_blocks):
        outputs = 64 * 2**stage
        if stage:
            count += inputs * outputs + norm * outputs
        for _ in range(blocks):
            count += 9 * (inputs + outputs) * outputs + 2 * norm * outputs
            inputs = outputs
    return count


def resnet(*num_blocks, norm=2):
    """Without a top; a norm has two vectors, four with its mean and variance."""
    count, inputs = 7 * 7 * 3 * 64 + norm * 64, 64
    for stage, blocks in enumerate(num_blocks):
        inner = 64 * 2**stage
        outputs = 4 * inner
        count += inputs * outputs + norm * outputs  # The shortcut of the first.
        for _ in range(blocks):
            count += inputs * inner + 9 * inner * inner + inner * outputs
            count += norm * (2 * inner + outputs)
            inputs = outputs
    return count


def fcn_resnet(*num_blocks, norm=2, classes=21):
    """With two heads: a 3 × 3 convolution, a norm, and the scores."""
    count = resnet(*num_blocks, norm=norm)
    for width in (2048, 1024):
        inner = width // 4
        count += 9 * width * inner + norm * inner + dense(inner, classes)
    return count


VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def unpooling(norms, *between):
    """VGG16 and its mirror image, of kernels and norms, without the classifier."""
    encoder, inputs = [], 3
    for width, count in VGG16:
        for _ in range(count):
            encoder.append((inputs, width))
            inputs = width
    # The mirror image of the first convolution keeps the 64 channels.
    decoder = [*encoder[1:], (64, 64)]
    count = sum(9 * one * other for one, other in (*encoder, *decoder))
    count += sum(size * size * one * other for size, one, other in between)
    widths = [width for _, width in encoder] + [one for one, _ in decoder]
    return count + norms * (sum(widths) + sum(other for *_, other in between))


def segnet(classes):
    return unpooling(4) - 9 * 64 * 64 - 4 * 64 + dense(9 * 64, classes)


def deconvnet(classes):
    between = ((7, 512, 4096), (1, 4096, 4096), (7, 4096, 512))
    return unpooling(4, *between) + dense(64, classes)


def unet(channels, classes):
    """Two convolutions per stage; behind each enlargement of half the channels too."""
    count, inputs = dense(64, classes), channels
    for width in (64, 128, 256, 512, 1024):
        count += dense(9 * inputs, width) + dense(9 * width, width)
        inputs = width
    for width in (512, 256, 128, 64):
        count += 4 * 2 * width * width + width
        count += dense(9 * 2 * width, width) + dense(9 * width, width)
    return count


def fcn_vgg(factor, *skips, classes=21):
    """The last enlargement has a kernel of twice its factor, those before of 4 × 4."""
    count = COUNTS["vgg16"] - dense(4096, 1000) + dense(4096, classes)
    count += sum(dense(width, classes) + 16 * classes**2 for width in skips)
    return count + (2 * factor * classes) ** 2


def detector(backbone, width, places, inputs, classes, anchors, head):
    """A proposal network on maps of a width, and two layers on flattened features.

    Args:
        backbone: Parameters of the maps.
        width: Channels of the maps.
        places: Places of the grid inside a box.
        inputs: Channels of the hidden map of the proposal network.
        classes: With the background.
        anchors: At each place.
        head: Units of the two layers.
    """
    proposals = dense(9 * width, inputs) + dense(inputs, 5 * anchors)
    fully_connected = dense(places * width, head) + dense(head, head)
    return backbone + proposals + fully_connected + dense(head, 5 * classes)


def pyramid_detector(*num_blocks, norm=4):
    widths = [256, 512, 1024, 2048]
    pyramid = sum(dense(width, 256) + dense(9 * 256, 256) for width in widths)
    backbone = resnet(*num_blocks, norm=norm) + pyramid
    return detector(backbone, 256, 49, 256, 91, 3, 1024)


def mask_head():
    return 4 * dense(9 * 256, 256) + dense(4 * 256, 256) + dense(256, 91)


def vgg_detector():
    stages = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
    stages += [(256, 256), (256, 512), *[(512, 512)] * 5]
    backbone = sum(dense(9 * one, other) for one, other in stages)
    return detector(backbone, 512, 49, 512, 21, 9, 4096)


def hybrid():
    """The first three stages of a ResNet-50, then a ViT."""
    return resnet(3, 4, 9) + vit(768, 12, 16) - dense(768, 768) + dense(1024, 768)


def mae(width, layers, patch):
    encoder = vit(width, layers, patch) - dense(width, 1000)
    patches = (224 // patch) ** 2
    # The decoder: a projection, a mask token, and 8 blocks of 512 units.
    decoder = gpt(0, patches + 1, 512, 8) + 512 + dense(width, 512)
    return encoder + decoder + dense(512, patch * patch * 3)


def spectral(size, inputs, outputs, use_bias=False):
    """A convolution with its singular vector, and perhaps a bias."""
    return size * size * inputs * outputs + outputs * (1 + use_bias)


def attention_2d(channels):
    inner = channels // 8
    return 3 * spectral(1, channels, inner) + spectral(1, inner, channels) + 1


def sagan_generator():
    widths = [1024, 1024, 512, 256, 128, 64]
    count = spectral(1, 128, 16 * 1024, True) - 16 * 1024 + 16 * 1024
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        count += spectral(3, inputs, outputs) + spectral(3, outputs, outputs)
        count += spectral(1, inputs, outputs)
        # A norm: scale and shift of 1,000 classes, running mean and variance.
        count += (2 * 1000 + 2) * (inputs + outputs)
    return count + attention_2d(256) + 4 * 64 + spectral(3, 64, 3, True)


def sagan_discriminator():
    widths = [3, 64, 128, 256, 512, 1024]
    count = 2 * spectral(3, 1024, 1024, True)  # The last block.
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        count += spectral(3, inputs, outputs, True)
        count += spectral(3, outputs, outputs, True) + spectral(
            1, inputs, outputs, True
        )
    return count + attention_2d(128) + spectral(1, 1024, 1, True) + 1000 * 1024


def cnn():
    count, inputs = dense(256, 10), 3
    for width in (64, 128, 256):
        count += 9 * (inputs + width) * width + 2 * 4 * width
        inputs = width
    return count + 3 * dense(128, 16) + dense(16, 128) + 1


def show_and_tell(vocabulary, e, u, channels):
    lstm = 4 * gate(e, u)
    return dense(channels, e) + vocabulary * e + lstm + dense(u, vocabulary)


def show_attend_tell(vocabulary, e, u, a, initial, channels):
    """With the baseline of REINFORCE, one number."""
    states = dense(channels, initial) + 2 * dense(initial, u)
    attention = u * a + dense(channels, a) + a + dense(u, 1)
    lstm = 4 * gate(e + channels, u)
    readout = dense(u, e) + channels * e + dense(e, vocabulary)
    return states + vocabulary * e + attention + lstm + readout + 1


def lstm(units, inputs):
    """Four gates, each of the input and the last output, with a bias."""
    return 4 * (units * (inputs + units) + units)


def listen_attend_spell():
    """40 filters, 43 characters of 256, LSTMs of 256 a direction and of 512."""
    listener = 2 * lstm(256, 40) + 3 * 2 * lstm(256, 2 * 512)
    speller = 43 * 256 + lstm(512, 256 + 512) + lstm(512, 512)
    return listener + speller + 2 * dense(512, 512) + dense(1024, 512) + dense(512, 43)


def listen_attend_walk(words=524, world=78, actions=4, units=100):
    """One width for everything; the aligner and the readout have no biases."""
    both = 3 * units  # A word, and what both directions of the LSTM make of it.
    encoder = words * units + 2 * lstm(units, units)
    decoder = world * units + lstm(units, units + both)
    aligner = units * units + both * units + units
    return encoder + decoder + aligner + units * (units + both) + units * actions


def ask_attend_answer():
    """Words, three embeddings of places, a sum of 25 positions, and answers."""
    places = 3 * dense(1024, 1000)
    return 7477 * 1000 + places + 25 + 1000 + dense(1000, 1031)


def show_ask_attend_answer():
    """The second convolution has no bias."""
    question = 15_000 * 300 + 4 * dense(300 + 1024, 1024)
    attention = dense(2048 + 1024, 512) + 512 * 2
    return question + attention + dense(2 * 2048 + 1024, 1024) + dense(1024, 3000)


def show_attend_read(characters):
    """A ResNet of kernels and norms, four LSTMs of 512, and 2-D attention."""
    kernels, inputs = [(9, 3, 64), (9, 64, 128)], 128
    for width, blocks in ((256, 1), (256, 2), (512, 5), (512, 3)):
        if inputs != width:  # The shortcut of the first block.
            kernels.append((1, inputs, width))
        kernels.append((9, inputs, width))
        kernels += 2 * blocks * [(9, width, width)]  # The last is that of the stage.
        inputs = width
    count = sum(size * one * other + 4 * other for size, one, other in kernels)
    attention = 9 * 512 * 512 + 512 * 512 + 512
    words = characters * 512 + dense(2 * 512, characters)
    return count + 4 * 4 * gate(512, 512) + attention + words


def show_attend_interact():
    """Two cameras: four convolutions, attention, an LSTM and four actions, of 256."""
    kernels = [(9, 1, 16), (8, 16, 32), (7, 32, 64), (6, 64, 256)]
    count = sum(dense(size * size * one, other) for size, one, other in kernels)
    attention = dense(256, 256) + 256 * 256 + 256
    return 2 * (count + attention + lstm(256, 256) + dense(256, 4))


def vit_gpt2():
    """Without classes; each block of GPT-2 has a second attention and its norm."""
    cross_attention = 4 * dense(768, 768) + 2 * 768
    encoder = vit(768, 12, 16) - dense(768, 1000)
    return encoder + gpt(50_257, 1024, 768, 12) + 12 * cross_attention


FORMULAS = {
    "caption_cnn_transformer": transformer(10_000, 512, 2048, 6) + dense(512, 512),
    "caption_vit_transformer": vit_gpt2(),
    "caption_show_and_tell": show_and_tell(12_000, 512, 512, 2048),
    "caption_show_attend_tell": show_attend_tell(10_000, 512, 1800, 512, 512, 512),
    "listen_attend_spell": listen_attend_spell(),
    "show_attend_interact": show_attend_interact(),
    "listen_attend_walk": listen_attend_walk(),
    "show_attend_read": show_attend_read(98),
    "vit_tiny_patch16": vit(192, 12, 16),
    "vit_small_patch16": vit(384, 12, 16),
    "vit_small_patch32": vit(384, 12, 32),
    "vit_base_patch32": vit(768, 12, 32),
    "vit_large_patch16": vit(1024, 24, 16),
    "vit_large_patch32": vit(1024, 24, 32),
    "vit_huge_patch14": vit(1280, 32, 14),
    "vit_hybrid_r50_base_patch16": hybrid(),
    "deit3_small": vit(384, 12, 16, False, True),
    "deit3_medium": vit(512, 12, 16, False, True),
    "deit3_base": vit(768, 12, 16, False, True),
    "deit3_large": vit(1024, 24, 16, False, True),
    "deit3_huge": vit(1280, 32, 14, False, True),
    "mae_vit_base": mae(768, 12, 16),
    "mae_vit_large": mae(1024, 24, 16),
    "mae_vit_huge": mae(1280, 32, 14),
    "resnet18": basic_resnet(2, 2, 2, 2, norm=4) + dense(512, 1000),
    "resnet34": basic_resnet(3, 4, 6, 3, norm=4) + dense(512, 1000),
    "resnet50": resnet(3, 4, 6, 3, norm=4) + dense(2048, 1000),
    "resnet101": resnet(3, 4, 23, 3, norm=4) + dense(2048, 1000),
    "resnet152": resnet(3, 8, 36, 3, norm=4) + dense(2048, 1000),
    "segnet": segnet(12),
    "deconvnet_vgg16": deconvnet(21),
    "unet": unet(1, 2),
    "fcn32s_vgg16": fcn_vgg(32),
    "fcn16s_vgg16": fcn_vgg(16, 512),
    "fcn8s_vgg16": fcn_vgg(8, 512, 256),
    "fcn_resnet50": fcn_resnet(3, 4, 6, 3, norm=4),
    "fcn_resnet101": fcn_resnet(3, 4, 23, 3, norm=4),
    "faster_rcnn_resnet50": pyramid_detector(3, 4, 6, 3),
    "faster_rcnn_resnet101": pyramid_detector(3, 4, 23, 3),
    "faster_rcnn_vgg16": vgg_detector(),
    "mask_rcnn_resnet50": pyramid_detector(3, 4, 6, 3) + mask_head(),
    "sagan_generator_128": sagan_generator(),
    "sagan_discriminator_128": sagan_discriminator(),
    "cnn_self_attention": cnn(),
    "vqa_ask_attend_answer": ask_attend_answer(),
    "vqa_show_ask_attend_answer": show_ask_attend_answer(),
    "transformer_base": transformer(37_000, 512, 2048, 6),
    "transformer_big": transformer(37_000, 1024, 4096, 6),
    "bert_tiny": bert(128, 2),
    "bert_mini": bert(256, 4),
    "bert_small": bert(512, 4),
    "bert_medium": bert(512, 8),
    # Brown et al. 2020, table 2.1.
    "gpt3_small": gpt(50_257, 2048, 768, 12),
    "gpt3_medium": gpt(50_257, 2048, 1024, 24),
    "gpt3_large": gpt(50_257, 2048, 1536, 24),
    "gpt3_xl": gpt(50_257, 2048, 2048, 24),
    "gpt3_2p7b": gpt(50_257, 2048, 2560, 32),
    "gpt3_6p7b": gpt(50_257, 2048, 4096, 32),
    "gpt3_13b": gpt(50_257, 2048, 5140, 40, heads=5120),
    "gpt3_175b": gpt(50_257, 2048, 12_288, 96),
    # Shoeybi et al. 2019, table 1.
    "megatron_1p2b": gpt(51_200, 1024, 1536, 40),
    "megatron_2p5b": gpt(51_200, 1024, 1920, 54),
    "megatron_4p2b": gpt(51_200, 1024, 2304, 64),
    "megatron_8p3b": gpt(51_200, 1024, 3072, 72),
}
BLOCKS = {**COUNTS, **FORMULAS}
# Number of layers of large models with equal blocks.
LAYERS = {
    **{name: row["num_layers"] for name, row in gpt_family.VARIANTS.items()},
    **dict.fromkeys(("bert_large", "roberta_large", "xlnet_large", "deit3_large"), 24),
    **dict.fromkeys(("vit_large_patch16", "vit_large_patch32"), 24),
    **dict.fromkeys(("vit_huge_patch14", "deit3_huge"), 32),
}


def test_formulas_agree_with_counts_and_publications():
    assert bert(768, 12) == COUNTS["bert_base"]
    assert bert(1024, 24) == COUNTS["bert_large"]
    assert gpt(50_257, 1024, 768, 12) == COUNTS["gpt2_small"]
    assert gpt(40_478, 512, 768, 12, norms=False) == COUNTS["gpt_117m"]
    assert vit(768, 12, 16) == COUNTS["vit_base_patch16"]
    # Published without running means and variances.
    for name, blocks in (("resnet50", (3, 4, 6, 3)), ("resnet101", (3, 4, 23, 3))):
        count = resnet(*blocks) + dense(2048, 1000)
        assert count == models.describe(name).parameters
        card = models.describe(f"fcn_{name}")
        assert card.parameters == fcn_resnet(*blocks)
    for name, count in (
        ("resnet18", basic_resnet(2, 2, 2, 2) + dense(512, 1000)),
        ("resnet34", basic_resnet(3, 4, 6, 3) + dense(512, 1000)),
        ("resnet152", resnet(3, 8, 36, 3) + dense(2048, 1000)),
    ):
        assert count == models.describe(name).parameters
    # Published without norms, which are frozen.
    for name, blocks, more in (
        ("faster_rcnn_resnet50", (3, 4, 6, 3), 0),
        ("faster_rcnn_resnet101", (3, 4, 23, 3), 0),
        ("mask_rcnn_resnet50", (3, 4, 6, 3), mask_head()),
    ):
        count = pyramid_detector(*blocks, norm=0) + more
        assert count == models.describe(name).parameters
    # The published counts are rounded: "117M" and "345M" of GPT-2 leave out parts.
    for name, count in BLOCKS.items():
        published = models.describe(name).parameters
        assert published is None or abs(count / published - 1) < 0.09, name


def test_every_model_has_a_count():
    recurrent = {name for name in TINY if GRAPH_OF[name] in SEQ2SEQ}
    names = set(TINY) - recurrent
    assert set(BLOCKS) == names, "add the new name to COUNTS or FORMULAS"


@pytest.mark.parametrize("name", BLOCKS)
def test_published_sizes_have_the_published_parameters(name):
    layers = LAYERS.get(name)
    if BLOCKS[name] < 2e8 or layers is None:
        counted = models.count_parameters(name)
    else:
        # Layers are equal, and a hundred of them take ten seconds to count.
        one, two = (models.count_parameters(name, num_layers=n) for n in (1, 2))
        counted = one + (layers - 1) * (two - one)
    assert counted == BLOCKS[name]


RECURRENT_FORMULAS = {
    "rnnsearch_50": rnnsearch(SOURCE_V, V, E, U, A, M),
    "rnnsearch_50-dot": rnnsearch(SOURCE_V, V, E, U, A, M, "dot"),
    "rnnsearch_50-general": rnnsearch(SOURCE_V, V, E, U, A, M, "general"),
    "rnnsearch_50-linear": rnnsearch(SOURCE_V, V, E, U, A, M, "linear"),
    "rnnsearch_50-scaled_dot": rnnsearch(SOURCE_V, V, E, U, A, M, "scaled_dot"),
    "rnnsearch_50-scores": rnnsearch(SOURCE_V, V, E, U, A, M),
    "seq2seq_context": context(SOURCE_V, V, E, U, M),
    "seq2seq_sutskever": sutskever(SOURCE_V, V, E, U, 2),
}


@pytest.mark.parametrize("case", SEQ2SEQ)
def test_recurrent_models_have_the_parameters_of_their_formula(case):
    assert tiny(case).count_params() == RECURRENT_FORMULAS[case]


@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case].head])
def test_counting_equals_building(case):
    name, options = CASES[case].name, CASES[case].options
    counted = models.count_parameters(name, **{**TINY[name], **options})
    assert counted == tiny(case).count_params()
    assert counted == sum(w.size for w in tiny(case).get_weights())
