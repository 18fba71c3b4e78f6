"""FLOPs and memory of plans, against equations and published figures."""

import math

import keras
import pytest
from backend import skip_module_without_tensorflow
from model_cases import DECODERS, GRAPHS, TINY, tiny
from model_contract import few_of
from model_family import D

from keras_attn import models
from keras_attn.kernels import lean_attention as lean
from keras_attn.models import plan

pytestmark = pytest.mark.compiled

skip_module_without_tensorflow("plan reads TensorFlow's graphs")

B, T = 2, 5


def block(width, mlp, length):
    """FLOPs per token of self-attention over `length` tokens and of the network."""
    return 2 * (4 * width**2 + 2 * length * width + 2 * width * mlp)


def layers_of(name, **options):
    """Plans of a model with two and with three layers."""
    return [plan(name, num_layers=count, **options) for count in (2, 3)]


def extrapolated(name, layers, field, **options):
    """A figure of the whole model, whose layers all cost the same."""
    two, three = (getattr(found, field) for found in layers_of(name, **options))
    return two + (layers - 2) * (three - two)


@pytest.mark.parametrize("name", few_of(GRAPHS))
def test_every_model_has_a_plan(name):
    model = tiny(name)
    has_sequence = any(tensor.shape[1:2] == (None,) for tensor in model.inputs)
    length = {"sequence": T} if has_sequence else {}
    found = plan(name, batch=B, **length, **TINY[name])
    assert found.parameters == model.count_params()
    assert found.weights == 4 * sum(w.size for w in model.get_weights())
    trainable = sum(math.prod(w.shape) for w in model.trainable_weights)
    assert found.gradients == 4 * trainable
    # AdamW keeps two numbers per trainable parameter, and a few scalars.
    assert 0 <= found.optimizer_state - 2 * found.gradients < 64
    # The backward pass has two products for each one of the forward pass, or one where
    # an input needs no gradient.
    assert 2.5 < found.training_flops / found.forward_flops <= 3
    # At least the features of each token; the narrowest model has 7 units.
    assert found.activations > 4 * B * T * 7
    assert (found.cache is None) == (name not in DECODERS)


def test_flops_follow_the_equations():
    sizes = {"batch": B, "sequence": T}
    found = plan("bert_base", **sizes, **TINY["bert_base"])
    pooler = 2 * B * D * D
    assert found.forward_flops == B * T * 2 * block(D, 37, T) + pooler
    found = plan("gpt2_small", **sizes, **TINY["gpt2_small"])
    assert found.forward_flops == B * T * (2 * block(D, 37, T) + 2 * D * 19)
    assert found.forward_flops_per_token == found.forward_flops / (B * T)
    assert found.training_flops_per_token == 3 * found.forward_flops_per_token
    found = plan("transformer_base", **sizes, **TINY["transformer_base"])
    cross = 2 * (4 * D**2 + 2 * T * D)
    expected = B * T * (4 * block(D, 37, T) + 2 * cross + 2 * D * 19)
    assert found.forward_flops == expected
    # A gate of the decoder reads [x; c] and s; the encoder's has half the units.
    found = plan("seq2seq_sutskever", **sizes, **TINY["seq2seq_sutskever"])
    units, embedding = 7, 11
    gates = 4 * 2 * ((embedding + units) * units + (units + units) * units)
    assert found.forward_flops == B * T * (2 * gates + 2 * units * 19)


def test_tensorflow_profiler_agrees():
    import tensorflow as tf
    from tensorflow.python.profiler import model_analyzer, option_builder

    model = models.create("bert_tiny", vocabulary_size=101)
    specs = {t.name: tf.TensorSpec((B, 64), t.dtype, name=t.name) for t in model.inputs}
    graph = tf.function(model).get_concrete_function(specs).graph
    options = option_builder.ProfileOptionBuilder(
        option_builder.ProfileOptionBuilder.float_operation()
    )
    options = options.with_empty_output().build()
    counted = model_analyzer.profile(graph, options=options).total_float_ops
    found = plan("bert_tiny", batch=B, sequence=64, vocabulary_size=101).forward_flops
    # The profiler also counts biases, norms and residuals.
    assert 1 < counted / found < 1.06


def test_gpt3_costs_as_published():
    """Brown et al. 2020, appendix D: 3.14e23 FLOPs for 300 billion tokens."""
    cost = extrapolated("gpt3_175b", 96, "training_flops_per_token")
    training = models.describe("gpt3_175b").training
    assert training is not None and training.tokens == 300e9
    assert training.flops == 3.14e23
    # The paper counts 6 N per token; attention scores add 2.8 %.
    assert cost * 300e9 == pytest.approx(3.14e23, rel=0.03)
    n = models.count_parameters("gpt3_175b", num_layers=2)
    n += 94 * (models.count_parameters("gpt3_175b", num_layers=3) - n)
    assert n == 174_604_259_328


def test_a_vision_transformer_costs_as_published():
    """Dosovitskiy et al. 2021, table 6: 224 exaFLOPs for 7 epochs of JFT-300M."""
    training = models.describe("vit_base_patch16").training
    assert training is not None and training.images is not None
    cost = extrapolated("vit_base_patch16", 12, "training_flops")
    assert cost * training.images == pytest.approx(224e18, rel=0.01)
    assert training.flops == 224e18


def test_the_transformer_counts_less_than_its_hardware_could_do():
    """The published 3.3e18 are of the hardware (test_training_run.py), not counted."""
    training = models.describe("transformer_base").training
    assert training is not None and training.tokens is not None
    cost = extrapolated("transformer_base", 6, "training_flops_per_token")
    assert cost * training.tokens / 3.3e18 == pytest.approx(0.297, abs=0.003)


def test_the_published_dalle_is_planned():
    """12 D² weights a block, and dense masks over all 1,280 positions."""
    d, length, layers = 3968, 256 + 1024, 64
    blocks = layers * 2 * length * (12 * d**2 + 2 * length * d)
    logits = 2 * d * (256 * 16_384 + 1024 * 8192)
    two, three = layers_of("dalle_12b")
    forward = two.forward_flops
    forward += (layers - 2) * (three.forward_flops - two.forward_flops)
    assert forward == blocks + logits
    # Keys and values in float32.
    assert two.cache is not None and three.cache is not None
    assert three.cache - two.cache == 2 * length * d * 4


def test_megatron_costs_as_published():
    """Narayanan et al. 2021 (arXiv:2104.04473), equation 3, without recomputing."""
    b, s, layers, h, v = 4, 1024, 72, 3072, 51_200
    published = 72 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    counted = extrapolated("megatron_8p3b", layers, "training_flops", batch=b)
    assert counted == pytest.approx(published, rel=1e-3)


def test_memory():
    sizes = {"batch": 4, "sequence": T, **TINY["gpt2_small"]}
    whole = plan("gpt2_small", **sizes)
    n = whole.parameters
    # Rajbhandari et al. 2020, section 3.1: 16 bytes per parameter with Adam.
    state = whole.weights + whole.gradients + whole.optimizer_state
    assert 16 * n <= state < 16 * n + 64
    assert whole.training_memory == state + whole.activations
    # Keys and values of 2 layers; a mask and two numbers per row.
    assert whole.cache == 4 * (2 * 2 * T * D * 4 + T + 2 * 4)
    assert whole.generation_memory == whole.weights + whole.cache
    half = plan("gpt2_small", **sizes, dtype="bfloat16", optimizer="sgd")
    assert (half.weights, half.gradients) == (2 * n, 2 * n)
    assert half.optimizer_state < 64
    assert half.activations < 0.8 * whole.activations
    mixed = plan("gpt2_small", **sizes, dtype="mixed_bfloat16")
    assert mixed.weights == whole.weights
    assert keras.config.dtype_policy().name == "float32"
    shared = plan("gpt2_small", **sizes, devices=4)
    assert shared.weights == -(-whole.weights // 4)
    assert shared.cache == whole.cache / 4
    assert shared.forward_flops == whole.forward_flops
    # Activations belong to the rows, except for a few scalars.
    assert shared.activations == pytest.approx(whole.activations / 4, rel=0.05)
    # The part that does not depend on the rows must not be half-precision weights.
    quarter = plan("gpt2_small", **sizes, dtype="mixed_bfloat16", devices=4)
    constant = (4 * quarter.activations - mixed.activations) / 3
    assert 0 <= constant < 0.15 * (2 * n)
    assert plan("bert_base", **TINY["bert_base"]).generation_memory is None


def test_activations_of_attention_grow_with_the_square_of_the_length():
    options = {**TINY["bert_base"], "max_sequence_length": 400}
    activations = [
        plan("bert_base", sequence=length, **options).activations
        for length in (100, 200, 400)
    ]
    heads, layers = 3, 2
    first, second, third = activations
    square = (third - 2 * second) - (second - 2 * first)
    # For a·T² + b·T + c the difference is 6·10⁴·a.
    per_pair = square / 6e4 / (heads * layers * 4)
    # The softmax of the scores, its dropout and so on, a float each.
    assert 2 <= per_pair <= 6


@pytest.mark.parametrize(
    "name, shortest", [("bert_base", 1024), ("gpt2_small", 512), ("xlnet_base", 1024)]
)
def test_long_sequences_are_attended_to_in_parts(name, shortest, monkeypatch):
    """Their products are counted, and no memory for their scores."""
    options = {**TINY[name], "max_sequence_length": 2048}
    if name == "xlnet_base":
        del options["max_sequence_length"]
    lengths = (shortest, 3 * shortest // 2, 2 * shortest)
    plans = [plan(name, sequence=length, **options) for length in lengths]
    first, second, third = (found.activations for found in plans)
    # Linear in the length, but for masks: with half as many pairs more at each length,
    # at most two bytes for each, not some floats for each of 3 heads in 2 layers.
    assert third - 2 * second + first <= 4 * (shortest / 2) ** 2
    monkeypatch.setattr(lean, "_PAIRS", dict.fromkeys(lean._PAIRS, 10**9))
    monkeypatch.setattr(lean, "_CHUNKED_PAIRS", 10**9)
    at_once = plan(name, sequence=lengths[0], **options)
    assert at_once.activations > 2 * plans[0].activations
    assert at_once.forward_flops == plans[0].forward_flops
    assert at_once.training_flops == plans[0].training_flops


def test_operations_without_a_rule_are_refused():
    import tensorflow as tf

    from keras_attn.models.plans.planning import _flops

    matrix = tf.TensorSpec((3, 5, 7, 2), tf.float32)

    def uncountable(x):
        _, x = tf.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, 2 * x), (0, x))
        return tf.einsum("...ab,...cb->...ac", x, x)

    traced = tf.function(uncountable, autograph=False).get_concrete_function(matrix)
    refused = set()
    for operation in traced.graph.get_operations():
        try:
            _flops(operation)
        except ValueError as error:
            refused.add(str(error).split("`")[1])
    assert refused == {"StatelessWhile", "Einsum"}


@pytest.mark.parametrize(
    "name, billions",
    # Multiply-adds per image: Touvron et al. 2022; Liu et al. 2021, table 1; Liu et al.
    # 2022, table 1.
    [("deit3_base", 17.5), ("swin_tiny", 4.5), ("convnext_tiny", 4.5)],
)
def test_images_cost_as_published(name, billions):
    found = plan(name)
    assert found.sequence == 1
    assert found.forward_flops / 2e9 == pytest.approx(billions, rel=0.02)


def test_images_of_any_size_have_no_plan():
    sizes = TINY["convnext_tiny"]
    with pytest.raises(ValueError, match="`image_size`.*image_size=None"):
        plan("convnext_tiny", **{**sizes, "image_size": None})
    assert plan("convnext_tiny", **sizes).sequence == 1


def test_default_lengths():
    assert plan("gpt2_small", **TINY["gpt2_small"]).sequence == 31
    assert plan("transformer_base", **TINY["transformer_base"]).sequence == 128
    length = TINY["clip_rn50"]["max_sequence_length"]
    assert plan("clip_rn50", **TINY["clip_rn50"]).sequence == length


def test_error_messages(monkeypatch):
    def refuses(message, name="bert_base", error: type = ValueError, **options):
        with pytest.raises(error, match=message):
            plan(name, **{**TINY["bert_base"], **options})

    refuses("`name` must be a registered model: did you mean bert_base", "bert_bas")
    refuses("`dtype` must be one of 'float32', .*dtype='int8'", dtype="int8")
    refuses("`optimizer` must be one of 'adamw'.*='adams'", optimizer="adams")
    refuses("`batch` must be .*batch=0", batch=0)
    refuses("`devices` must be .*devices=-1", devices=-1)
    refuses("`sequence` must be .*sequence=1.5", sequence=1.5)
    refuses("`batch` must be a multiple of `devices`", batch=3, devices=2)
    refuses("`token_ids` must have a length of at most 31", sequence=32)
    refuses("hiden_dim", error=TypeError, hiden_dim=3)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    refuses("`plan` needs Keras' TensorFlow.*backend='jax'", error=RuntimeError)
