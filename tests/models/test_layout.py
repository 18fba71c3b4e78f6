"""`models.layout_map`: patterns, errors, and checkpoints that are read in parts.

The meshes need four devices, which XLA makes of one processor if this is in the
environment before JAX starts: XLA_FLAGS=--xla_force_host_platform_device_count=4
"""

import re
from typing import Any

import keras
import numpy as np
import pytest
from model_cases import create, given, inputs_for, numpy

from keras_attn import layers, models
from keras_attn.models.checkpoints.tensors import TensorFile
from keras_attn.models.parts.keras_state import undone

ON_JAX = keras.backend.backend() == "jax"
with_devices = pytest.mark.skipif(
    not ON_JAX or keras.distribution.get_device_count() < 4,
    reason="needs JAX with four devices",
)
# Sizes that four devices can share, and an odd vocabulary.
SHARED: dict[str, Any] = {
    "hidden_dim": 24,
    "num_heads": 4,
    "mlp_dim": 40,
    "num_layers": 2,
}
GPT: dict[str, Any] = {**SHARED, "vocabulary_size": 29, "max_sequence_length": 31}


def mesh_of(*shape, names=("batch", "model")):
    return keras.distribution.DeviceMesh(shape, names)


@pytest.mark.skipif(ON_JAX, reason="JAX has layouts")
def test_other_backends_are_refused():
    with pytest.raises(RuntimeError, match="needs Keras' JAX backend.*no effect"):
        models.layout_map("gpt2_small", None)


@with_devices
def test_a_map_has_one_pattern_for_all_blocks():
    layout = models.layout_map("gpt2_small", mesh_of(1, 4), **GPT)
    attention, mlp = r"block_\d+/self_attention/", r"block_\d+/feed_forward/"
    assert {pattern: each.axes for pattern, each in layout.items()} == {
        attention + "query_key_value/kernel": ("model", None),
        # Not variables: how the layer divides the parts of its kernel.
        attention + "query_key_value/kernel/query": (None, "model"),
        attention + "query_key_value/kernel/key": (None, "model"),
        attention + "query_key_value/kernel/value": (None, "model"),
        attention + "output/kernel": ("model", None),
        mlp + "expand/kernel": (None, "model"),
        mlp + "expand/bias": ("model",),
        mlp + "contract/kernel": ("model", None),
        # 29 tokens are not a multiple of 4, 24 columns are.
        "token_embedding/embeddings": (None, "model"),
    }


@with_devices
def test_a_model_a_function_and_a_folder_have_the_map_of_their_name(tmp_path):
    mesh = mesh_of(2, 2)
    expected = models.layout_map("gpt2_small", mesh, **GPT)
    model = models.create("gpt2_small", **GPT)
    models.save_checkpoint(model, tmp_path / "saved")
    for given_as in (
        model,
        lambda: models.create("gpt2_small", **GPT),
        tmp_path / "saved",
        str(tmp_path / "saved"),
    ):
        found = models.layout_map(given_as, mesh)
        assert {k: v.axes for k, v in found.items()} == {
            k: v.axes for k, v in expected.items()
        }


@with_devices
def test_a_rule_replaces_the_layout_of_what_it_matches():
    layout = models.layout_map(
        "gpt2_small",
        mesh_of(2, 2),
        rules={
            "block_1/feed_forward/.*": None,
            "position_embedding/embeddings": (None, "batch"),
        },
        **GPT,
    )
    assert layout["position_embedding/embeddings"].axes == (None, "batch")
    assert layout["block_0/feed_forward/expand/kernel"].axes == (None, "model")
    assert layout["block_1/feed_forward/expand/kernel"] is None
    assert layout["block_1/feed_forward/contract/kernel"] is None


WRONG_RULES = {
    "no variable": ({"blok_0/.*": None}, "matches none.*Similar paths: block_0"),
    "not a pattern": ({"block_(": None}, "must have regular expressions"),
    "twice": (
        {"block_0/feed_forward/.*": None, ".*/expand/bias": None},
        "must match a variable once.*block_0/feed_forward/expand/bias",
    ),
    "rank": ({".*/expand/kernel": ("model",)}, r"each axis.*shape \(24, 40\)"),
    "no axis of the mesh": (
        {".*/expand/kernel": (None, "data")},
        "must name axes of the mesh.*'batch', 'model'",
    ),
    "one axis twice": ({".*/expand/kernel": ("model", "model")}, "each at most once"),
    "rest": (
        {"token_embedding/embeddings": ("model", None)},
        "without a rest: 29 is not a multiple of 2, the size of the mesh's axis 'mod",
    ),
}


@with_devices
@pytest.mark.parametrize("wrong", WRONG_RULES)
def test_wrong_rules_are_errors(wrong):
    rules, message = WRONG_RULES[wrong]
    with pytest.raises(ValueError, match=message):
        models.layout_map("gpt2_small", mesh_of(2, 2), rules=rules, **GPT)


@with_devices
def test_a_kernel_is_not_divided_where_its_convolution_slides():
    rules = {"stem_conv/kernel": (None, "model", None, None)}
    with pytest.raises(ValueError, match="axis 1 of a kernel.*wrong numbers"):
        models.layout_map("resnet18", mesh_of(1, 4), rules=rules, stem_dim=8)


@with_devices
def test_heads_and_hidden_units_must_be_shared_evenly():
    mesh = mesh_of(1, 4)
    sizes: Any = GPT | {"num_heads": 6, "mlp_dim": 48}
    with pytest.raises(ValueError, match="`num_heads` of block_0/self_attention") as at:
        models.layout_map("gpt2_small", mesh, **sizes)
    message = str(at.value)
    assert "has the shape (24, 72) for 6 heads" in message
    assert "size 2 or 3, or keep" in message
    rules: Any = {r"block_\d+/self_attention/.*": None}
    assert f"rules={rules!r}" in message
    layout = models.layout_map("gpt2_small", mesh, rules=rules, **sizes)
    assert not [pattern for pattern in layout if "attention" in pattern]
    sizes = GPT | {"mlp_dim": 42}
    with pytest.raises(ValueError, match="`mlp_dim` of block_0/feed_forward/expand"):
        models.layout_map("gpt2_small", mesh, **sizes)


@with_devices
def test_some_layers_keep_heads_that_others_divide():
    sizes: dict[str, Any] = {
        "image_size": (18, 26),
        "patch_size": 2,
        "num_classes": 8,
        "hidden_dim": 12,
    }
    sizes |= {"window_size": 4, "num_blocks": (1, 1), "num_heads": (3, 6)}
    with pytest.raises(ValueError, match="for 3 heads. Keep") as error:
        models.layout_map("swin_tiny", mesh_of(2, 2), **sizes)
    rules = {"stage_0_block_0/attention/.*": None}
    assert f"rules={rules!r}" in str(error.value)
    layout = models.layout_map("swin_tiny", mesh_of(2, 2), rules=rules, **sizes)
    found = {pattern for pattern in layout if pattern.endswith("output/kernel")}
    assert found == {"stage_1_block_0/attention/output/kernel"}


@with_devices
def test_what_cannot_be_divided_is_named():
    with pytest.warns(UserWarning, match=r"stay whole.*logits/kernel \(7, 19\)"):
        sizes: dict[str, Any] = {"hidden_dim": 7, "target_vocabulary_size": 19}
        models.layout_map("rnnsearch_50", mesh_of(1, 4), maxout_dim=7, **sizes)


@with_devices
def test_meshes_and_models_are_checked():
    with pytest.raises(TypeError, match="must be a `keras.distribution.DeviceMesh`"):
        models.layout_map("gpt2_small", (1, 4))
    with pytest.raises(ValueError, match="`model_parallel_dim_name` must be an axis"):
        models.layout_map("gpt2_small", mesh_of(1, 4, names=("batch", "heads")))
    with pytest.raises(ValueError, match="`data_parallel_dim_name` must be an axis"):
        models.layout_map("gpt2_small", mesh_of(4, names=("model",)))
    with pytest.raises(ValueError, match="must be two axes"):
        models.layout_map("gpt2_small", mesh_of(4, 1), data_parallel_dim_name="model")
    with pytest.raises(TypeError, match="Arguments of a builder.*num_layers"):
        models.layout_map(lambda: None, mesh_of(4, 1), num_layers=2)
    with pytest.raises(TypeError, match="a function that returns a NoneType"):
        models.layout_map(lambda: None, mesh_of(4, 1))


@with_devices
@pytest.mark.compiled
def test_devices_exchange_kernels_and_no_heads():
    """Three parts of the fused kernel by columns, and a sum of the output product."""
    import jax

    def build():
        inputs = keras.Input((None, 24))
        layer = layers.MultiHeadAttention(4, 6, bias_initializer="ones")
        return keras.Model(inputs, layer(inputs))

    parallel = keras.distribution.ModelParallel(
        layout_map=models.layout_map(build, mesh_of(1, 4)), batch_dim_name="batch"
    )
    inputs = np.random.default_rng(0).normal(size=(2, 5, 24)).astype("float32")
    with undone():
        one = build()
    with parallel.scope(), undone():
        four = build()
        four.set_weights(one.get_weights())
        weights = [variable.value for variable in four.trainable_variables]
        call = jax.jit(lambda *given: four.stateless_call(given[0], [], given[1])[0])
        text = str(call.lower(weights, inputs).compile().as_text())
        outputs = call(weights, inputs)
    exchanged = re.findall(r"= (\S+\[.*) (all-\w+(?:-\w+)?|collective-\w+)\(", text)
    assert sorted(kind for _, kind in exchanged) == ["all-reduce", *3 * ["all-to-all"]]
    # A device's rows of a part, for another device: 24 / 4 rows of 24 / 4 columns.
    pieces = {shape.count("f32[6,1,6]") for shape, kind in exchanged if "to" in kind}
    assert pieces == {4}
    np.testing.assert_allclose(outputs, one(inputs), rtol=1e-5, atol=1e-5)


@with_devices
def test_a_checkpoint_is_read_in_parts(tmp_path, monkeypatch):
    """BERT's kernels are transposed, and three are one of ours; GPT-2's are as ours."""
    read: dict[str, int] = {}
    whole = []

    def counted(self, key, *index, original):
        array = original(self, key, *index)
        read[key] = max(read.get(key, 0), array.size)
        whole.extend([] if index else [key])
        return array

    sizes = {**GPT, "vocabulary_size": 32}
    for name, fused in (("gpt2_small", "c_attn"), ("bert_base", "query")):
        saved = create(name, **sizes)
        models.save_checkpoint(saved, tmp_path / name)
        layout = models.layout_map(tmp_path / name, mesh_of(1, 4))
        with (
            keras.distribution.ModelParallel(
                layout_map=layout, batch_dim_name="batch"
            ).scope(),
            monkeypatch.context() as patched,
        ):
            for method in ("read", "read_part"):
                original = getattr(TensorFile, method)
                patched.setattr(
                    TensorFile,
                    method,
                    lambda self, key, *index, original=original: counted(
                        self, key, *index, original=original
                    ),
                )
            loaded = models.load_checkpoint(tmp_path / name)
        for one, other in zip(loaded.weights, saved.weights, strict=True):
            assert one.path == other.path
            np.testing.assert_array_equal(numpy(one), numpy(other))
        # A device's part of a kernel, and nothing more, is in memory.
        (key,) = [key for key in read if "0" in key and f"{fused}.weight" in key]
        width = 24 * (72 if fused == "c_attn" else 24)
        assert read[key] == width // 4 and key not in whole
        tables = [key for key in read if "wte" in key or "word_emb" in key]
        assert [read[key] for key in tables] == [32 * 24 // 4]
        read.clear()
        whole.clear()
        inputs = inputs_for(saved, batch=2)
        np.testing.assert_allclose(
            *(
                keras.tree.flatten(numpy(model(given(model, inputs))))[0]
                for model in (loaded, saved)
            ),
            rtol=1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("index", [(slice(3, 7), slice(None)), (slice(None), slice(5))])
def test_a_part_of_a_tensor_is_that_of_the_whole(index, tmp_path, monkeypatch):
    model = create("gpt2_small")
    models.save_checkpoint(model, tmp_path, dtype="bfloat16")
    # Two rows at a time.
    monkeypatch.setattr("keras_attn.models.checkpoints.tensors._CHUNK_BYTES", 84)
    file = TensorFile(tmp_path / "model.safetensors")
    for key, shape in file.shapes.items():
        part = index[: len(shape)]
        np.testing.assert_array_equal(file.read_part(key, part), file.read(key)[part])
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match="is cut off. Download it again"):
        for key, shape in file.shapes.items():
            file.read_part(key, (slice(None),) * len(shape))
