"""Layers with LoRA weights and quantized weights."""

from pathlib import Path

import keras
import numpy as np
import pytest
from adaptation_cases import REFUSED, REFUSED_MODELS, draw_updates, refused_in
from keras import ops
from layer_cases import ALL
from layer_contract import assert_close, built, flat, functional, randomize, tensors

from keras_attn.layers import Conv2D, Dense
from keras_attn.layers.adaptation.kernel_layer import kernel_layers
from keras_attn.layers.adaptation.low_rank import LowRankUpdate
from keras_attn.layers.adaptation.quantized import QuantizedKernel

RANK = 2


def adapt(layer, names=("first",), seed=0):
    """Gives each kernel an update of each name, with random numbers."""
    for name in names:
        for each in kernel_layers(layer):
            rank = min(RANK, *each.adapted_kernel.shape[-2:])
            each.add_update(LowRankUpdate(rank, 0.5, name=name))
    draw_updates(layer, seed, 0.3)


def updates(layer):
    return [x for x in layer._flatten_layers() if isinstance(x, LowRankUpdate)]


# Products of query and key alone.
WITHOUT_KERNEL = "-dot", "-scaled_dot"
ADAPTABLE = [
    (name, case)
    for name, case in ALL
    if name.split("-")[0]
    in set(
        """
    AdditiveAttention AdditiveAttention2D AttentionPooling AttentionRNN AttentionSpeller
    CaptionEmbedding CoAttentionBlock CodeProjection Conv2D Dense DotProductAttention
    Embedding FeaturePyramid FeedForward FrameAttentionRNN GlimpseAttention
    HardAttentionRNN ImageCodeEmbedding MLPDotAttention MultiHeadAttention
    PatchEmbedding PatchMerging ProbePooling Projection RegionProposal
    RelativeMultiHeadAttention SwinBlock
    TokenEmbedding TransformerDecoderBlock TransformerEncoderBlock WindowAttention
    XLNetBlock
""".split()
    )
    and not name.endswith(WITHOUT_KERNEL)
]
# What does not depend on the options of a layer.
FIRST = {name.split("-")[0]: case for name, case in ADAPTABLE[::-1]}


def of_each(cases, always):
    """All cases; those of these names always, and the others as variations."""
    marks = [() if name in always else pytest.mark.variation for name, _ in cases]
    params = zip(cases, marks, strict=True)
    return pytest.mark.parametrize(
        "case", [pytest.param(case, id=name, marks=m) for (name, case), m in params]
    )


every_case = of_each(ADAPTABLE, [n for n, case in ADAPTABLE if case in FIRST.values()])
# One of each kind of kernel: of a product, of filters, of a table, of several products,
# and of a layer that is called in a loop.
KINDS = ("Dense", "Conv2D", "Embedding", "MultiHeadAttention", "AttentionRNN")
each_layer = of_each(FIRST.items(), KINDS)


def test_every_weight_is_of_a_kernel_or_listed_with_a_reason():
    found, kinds = set(), set()
    for name, case in ALL:
        layer = case.make()
        call(layer, case)
        kinds |= {name.split("-")[0]} if kernel_layers(layer) else set()
        reached = [each.adapted_kernel for each in kernel_layers(layer)]
        found |= set(refused_in(layer, reached=reached))
    assert kinds == {*FIRST}
    # Of Keras' layers some are inside models alone.
    names = {name for names in REFUSED.values() for name in names}
    assert {x for x in names if not x.startswith("keras.")} <= found


def call(layer, case):
    return layer(**tensors(case), **case.static)


@each_layer
def test_an_update_of_zero_changes_nothing_and_fixes_the_kernel(case):
    layer = built(case)
    before = flat(call(layer, case))
    for each in kernel_layers(layer):
        each.enable_lora(min(RANK, *each.adapted_kernel.shape[-2:]))
    for one, other in zip(flat(call(layer, case)), before, strict=True):
        np.testing.assert_array_equal(one, other)
    trained = {id(weight) for weight in layer.trainable_variables}
    for each in kernel_layers(layer):
        kernel = each.adapted_kernel
        assert id(kernel.base) not in trained
        (update,) = kernel.updates.values()
        assert {id(w) for w in (*update.a_kernels, *update.b_kernels)} <= trained


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_enable_lora_of_a_layer_computes_what_keras_does(alpha):
    inputs = np.random.default_rng(0).normal(size=(2, 5)).astype("float32")
    outputs = []
    for kind in (Dense, keras.layers.Dense):
        layer = kind(7, kernel_initializer="ones")
        layer.build((None, 5))
        layer.enable_lora(
            4, lora_alpha=alpha, a_initializer="ones", b_initializer="ones"
        )
        outputs.append(ops.convert_to_numpy(layer(inputs)))
    np.testing.assert_allclose(*outputs, rtol=0, atol=1e-5)


def test_the_rank_of_a_convolution_may_be_above_its_channels():
    layer = Conv2D(5, 3)
    layer.build((None, 7, 7, 1))
    with pytest.raises(ValueError, match=r"`rank` must be at most .* rank=6"):
        layer.enable_lora(6)
    layer.enable_lora(5)
    shapes = [weight.shape for weight in layer.trainable_variables]
    assert shapes == [(5,), (3, 3, 1, 5), (5, 5)]


@every_case
def test_the_update_is_the_product_of_its_parts(case):
    layer, plain = built(case), built(case)
    adapt(layer, ("first", "second"))
    pairs = zip(kernel_layers(layer), kernel_layers(plain), strict=True)
    for each, other in pairs:
        value = np.array(ops.convert_to_numpy(other.adapted_kernel))
        for update in each.adapted_kernel.updates.values():
            for (start, stop), a, b in zip(
                update.columns, update.a_kernels, update.b_kernels, strict=True
            ):
                a, b = ops.convert_to_numpy(a), ops.convert_to_numpy(b)
                value[..., start:stop] += 0.5 * np.einsum("...r,re->...e", a, b)
        other.adapted_kernel.assign(value)
    expected = flat(call(plain, case))
    assert_close(call(layer, case), expected, atol=3e-5)
    for each in kernel_layers(layer):
        each.merge_kernel()
    assert_close(call(layer, case), expected, atol=3e-5)
    assert [w.shape for w in layer.weights] == [w.shape for w in plain.weights]


@each_layer
@pytest.mark.parametrize(
    "mode",
    [
        pytest.param(None, marks=pytest.mark.variation),
        pytest.param("int8", marks=pytest.mark.variation),
        "int4",
    ],
)
def test_a_saved_layer_keeps_its_updates_and_integers(case, mode, tmp_path):
    model = functional(case, case.make())
    layer = model.layers[-1]
    randomize(layer)
    for each in kernel_layers(layer) if mode else ():
        assert each.quantize_kernel(mode, 32 if mode == "int4" else None)
        assert not each.quantize_kernel(mode)
    adapt(layer)
    expected = flat(model(tensors(case)))
    for name in ("once", "twice"):
        model.save(tmp_path / f"{name}.keras")
        model = keras.saving.load_model(tmp_path / f"{name}.keras")
    for one, other in zip(flat(model(tensors(case))), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    saved = model.layers[-1]
    for weights in ("weights", "trainable_variables"):
        shapes = [[w.shape for w in getattr(x, weights)] for x in (saved, layer)]
        assert shapes[0] == shapes[1]
    integers = [x for x in saved._flatten_layers() if isinstance(x, QuantizedKernel)]
    assert len(integers) == (len(kernel_layers(layer)) if mode else 0)
    # Their numbers, in weights of the same order as before.
    for each in kernel_layers(saved) if mode else ():
        assert each.dequantize_kernel() is not None
        assert each.dequantize_kernel() is None
    assert_close(call(saved, case), expected, atol=3e-5)
    for each in kernel_layers(saved):
        each.merge_kernel()
    plain = built(case)
    assert [w.path.split("/")[-1] for w in saved.weights] == [
        w.path.split("/")[-1] for w in plain.weights
    ]
    assert_close(call(saved, case), expected, atol=3e-5)


def test_the_documentation_lists_what_is_refused():
    text = (Path(__file__).parents[2] / "docs" / "fine_tune.md").read_text("utf-8")
    table = text[text.index("| stays as it is |") :].split("\n\n")[0]
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {reason} |"
        for reason, names in REFUSED.items()
    ]
    assert table.splitlines()[2:] == rows
    for name in REFUSED_MODELS:
        assert f"`{name}`" in text
