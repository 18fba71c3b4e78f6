"""The kernels of accelerators compute what all scores at once do; on JAX, on a CPU."""

import functools
import types
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_attn.kernels import cudnn_attention as cudnn
from keras_attn.kernels import lean_attention as lean
from keras_attn.kernels.splash_attention import splash_attention
from keras_attn.ops import scaled_dot_product_attention

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="kernels of JAX"
)
B, N, H = 2, 4, 16


def inputs_of(queries, keys, groups=N, value_size=H, dtype="float32"):
    shapes = (B, N, queries, H), (B, groups, keys, H), (B, groups, keys, value_size)
    random = np.random.default_rng(0)
    return [ops.cast(random.normal(size=shape), dtype) for shape in shapes]


def padding_of(keys):
    """Of the first example every third key and the first two are padding."""
    columns = np.arange(keys)
    return np.stack([(columns % 3 > 0) & (columns > 1), columns < keys])


def plain(query, key, value, **options):
    outputs, _ = scaled_dot_product_attention(query, key, value, scale=0.3, **options)
    return outputs


def check(function, inputs, atol=1e-5, **options: Any):
    """Compares outputs, and the gradients of a random combination of them."""
    import jax

    def results(form):
        def loss(inputs):
            outputs = form(*inputs, **options)
            weights = np.random.default_rng(1).normal(size=outputs.shape)
            return ops.sum(ops.cast(outputs, "float32") * weights), outputs

        compute = jax.jit(jax.value_and_grad(loss, has_aux=True))
        (_, outputs), gradients = compute(inputs)
        return [outputs, *gradients]

    for one, other in zip(results(function), results(plain), strict=True):
        assert one.dtype == other.dtype
        one, other = (np.asarray(ops.cast(x, "float32")) for x in (one, other))
        largest = max(1.0, np.abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=atol * largest)


splash = functools.partial(splash_attention, scale=0.3, interpret=True)


@pytest.mark.parametrize(
    ("queries", "keys", "groups", "value_size", "is_causal", "is_padded"),
    [
        (197, 60, 4, 24, False, True),
        (40, 530, 2, 16, True, False),
        pytest.param(128, 128, 4, 16, False, False, marks=pytest.mark.variation),
        pytest.param(130, 129, 1, 16, True, True, marks=pytest.mark.variation),
        pytest.param(1, 1, 1, 16, False, False, marks=pytest.mark.variation),
    ],
)
def test_splash(queries, keys, groups, value_size, is_causal, is_padded):
    inputs = inputs_of(queries, keys, groups, value_size)
    padding = padding_of(keys) if is_padded else None
    check(splash, inputs, padding_mask=padding, is_causal=is_causal)


def test_splash_gives_zeros_without_keys():
    padding = np.zeros((B, 130), "bool")
    padding[1, 5:] = True
    for is_causal in (False, True):
        outputs = splash(
            *inputs_of(140, 130), padding_mask=padding, is_causal=is_causal
        )
        assert not np.any(outputs[0]) and np.all(np.any(outputs[1, :, 5:], axis=-1))
        assert np.any(outputs[1, :, :5]) != is_causal


def test_splash_in_half_precision():
    check(splash, inputs_of(130, 130, dtype="bfloat16"), atol=2e-2, is_causal=True)


@pytest.fixture
def cudnn_on_cpu(monkeypatch):
    monkeypatch.setattr(cudnn, "_IMPLEMENTATION", "xla")
    return functools.partial(cudnn.cudnn_attention, scale=0.3)


@pytest.mark.parametrize(("queries", "keys", "groups"), [(5, 7, 4), (9, 3, 2)])
@pytest.mark.parametrize("masks", ["none", "causal", "padding"])
def test_cudnn(cudnn_on_cpu, queries, keys, groups, masks):
    padding = padding_of(keys) if masks == "padding" else None
    inputs = inputs_of(queries, keys, groups)
    check(cudnn_on_cpu, inputs, padding_mask=padding, is_causal=masks == "causal")


def test_cudnn_gives_zeros_without_keys(cudnn_on_cpu):
    padding = np.arange(6) < [[0], [2]]
    check(cudnn_on_cpu, inputs_of(5, 6), padding_mask=padding)
    assert not np.any(cudnn_on_cpu(*inputs_of(5, 6), padding_mask=padding)[0])


def on_gpu(monkeypatch, capability):
    import jax

    device = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])


def test_what_cudnn_takes(monkeypatch):
    def takes(padding_mask=None, is_causal=False, dtype="bfloat16", value_size=H):
        inputs = inputs_of(5, 5, value_size=value_size, dtype=dtype)
        masks = {"padding_mask": padding_mask, "is_causal": is_causal}
        return cudnn.cudnn_attends_to(*inputs, **masks)

    assert not takes()  # On a CPU.
    for capability, is_new in (("7.5", False), ("gfx942", False), ("10.0", True)):
        on_gpu(monkeypatch, capability)
        assert takes() == is_new
    padding = np.ones((B, 5), "bool")
    assert takes() and takes(is_causal=True) and takes(padding)
    assert not takes(dtype="float32") and not takes(value_size=8)
    assert not takes(padding, is_causal=True)


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    [("tpu", "splash_attention", "float32"), ("gpu", "cudnn_attention", "bfloat16")],
)
def test_an_accelerator_uses_its_kernel(monkeypatch, kind, name, dtype):
    calls = []

    def kernel(query, key, value, **options):
        calls.append(options)
        return value

    on_gpu(monkeypatch, "8.0")
    monkeypatch.setattr(lean, "platform", lambda: kind)
    monkeypatch.setattr(lean, name, kernel)
    monkeypatch.setattr(lean, "_SPLASH_PAIRS", 17**2)
    monkeypatch.setattr(lean, "_CUDNN_PAIRS", 17**2)

    def attend(length=17, return_weights=False, **options):
        inputs = inputs_of(length, length, dtype=dtype)
        options = {"return_weights": return_weights, **options}
        scaled_dot_product_attention(*inputs, **options)
        found = len(calls)
        calls.clear()
        return bool(found)

    assert attend() and attend(is_causal=True)
    assert attend(padding_mask=np.ones((B, 17), "bool"))
    bias = ops.zeros((1, 1, 1, 17), dtype)
    assert not attend(length=16) and not attend(return_weights=True)
    assert not attend(bias=bias) and not attend(mask=ops.ones((1, 1, 17, 17), "bool"))
    assert not attend(dropout=lambda weights: weights)
    with lean.whole_scores():
        assert not attend()
    # What the kernel does not have is computed in blocks, if it is long.
    monkeypatch.setattr(lean, "blocked_attention", kernel)
    assert not attend(bias=bias)
    monkeypatch.setattr(lean, "_ACCELERATOR_PAIRS", 17**2)
    assert attend(bias=bias) and attend(mask=ops.ones((1, 1, 17, 17), "bool"))
    assert not attend(length=16, bias=bias[..., :16])
    assert not attend(dropout=lambda weights: weights)
