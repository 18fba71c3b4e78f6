"""Layer normalization by every kernel, against the formula."""

import keras
import numpy as np
import pytest
from attention_reference import layer_norm
from keras import ops

from keras_attn.kernels.layer_norm import has_onednn
from keras_attn.kernels.runtime import is_tensorflow_on_cpu
from keras_attn.layers import LayerNormalization

D = 37
GAMMA, BETA = np.random.default_rng(0).normal(size=(2, D)).astype("float32")


def normal(*shape):
    return np.random.default_rng(1).normal(3, 2, (*shape, D)).astype("float32")


def built(shape=(None, None, D), **options):
    layer = LayerNormalization(**options)
    layer.build(shape)
    layer.set_weights([GAMMA, BETA])
    return layer


def expected(inputs, epsilon=1e-3):
    return layer_norm(inputs.astype("float64"), GAMMA, BETA, epsilon)


def as_numpy(tensor):
    return ops.convert_to_numpy(ops.cast(tensor, "float32"))


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-12])
@pytest.mark.parametrize("shape", [(5,), (3, 5), (3, 1), (1, 1), (2, 3, 5)])
@pytest.mark.parametrize("training", [False, True])
def test_it_computes_the_formula(shape, epsilon, training):
    layer = built((*shape, D), epsilon=epsilon)
    found = as_numpy(layer(normal(*shape), training=training))
    np.testing.assert_allclose(found, expected(normal(*shape), epsilon), atol=2e-5)


@pytest.mark.parametrize("training", [False, True])
def test_half_precision_has_a_few_rounding_errors_at_most(training):
    for policy in ("bfloat16", "mixed_bfloat16", "float16"):
        inputs = ops.cast(normal(3, 5), policy.replace("mixed_", ""))
        layer = built(dtype=policy)
        found = layer(inputs, training=training)
        assert found.dtype == inputs.dtype
        rounding = 2.0**-10 if policy == "float16" else 2.0**-7
        error = np.abs(as_numpy(found) - expected(as_numpy(inputs)))
        assert error.max() < 4 * rounding


# Rows with a mean of up to 3,000 deviations, and constant rows, (6, 5, D).
FAR_ROWS = np.array([100, 1000, -3000, 12.3, -1e3, 0])[:, None, None] + np.array(
    [1, 1, 1, 0, 0, 0]
)[:, None, None] * np.random.default_rng(2).normal(size=(6, 5, D))


def assert_normed(found, inputs, epsilon):
    """Compares with the formula in float64, at the rounding of the means in float32."""
    exact = expected(as_numpy(inputs), epsilon)
    mean = np.abs(as_numpy(inputs)).mean(-1, keepdims=True)
    deviation = np.sqrt(as_numpy(inputs).astype("float64").var(-1, keepdims=True))
    rounding = 8 * mean * 2.0**-24 / np.sqrt(deviation**2 + epsilon)
    tolerance = np.abs(GAMMA) * (rounding + 1e-6) + 1e-6
    if keras.backend.standardize_dtype(found.dtype) == "bfloat16":
        tolerance = tolerance + 2.0**-6 * np.abs(exact).max()
    assert (np.abs(as_numpy(found) - exact) <= tolerance).all()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("training", [False, True])
def test_rows_with_a_large_mean_are_accurate(policy, training):
    layer = built(dtype=policy, epsilon=1e-5)
    inputs = ops.cast(FAR_ROWS, layer.compute_dtype)
    assert_normed(layer(inputs, training=training), inputs, 1e-5)


@pytest.mark.parametrize(
    "machine, option, expected",
    [
        ("x86_64", None, True),
        ("AMD64", None, True),
        ("arm64", None, False),
        ("aarch64", "1", False),
        ("x86_64", "0", False),
        ("x86_64", "False", False),
    ],
)
def test_onednn_is_on_x86_alone(machine, option, expected, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS", raising=False)
    if option is not None:
        monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", option)
    assert has_onednn() == (expected and is_tensorflow_on_cpu())


@pytest.mark.parametrize(
    "options", [{"axis": 1}, {"scale": False}, {"center": False}, {"axis": [1, 2]}]
)
def test_other_options_use_keras_own(options):
    inputs = normal(3, 5)
    ours, theirs = (
        LayerNormalization(**options),
        keras.layers.LayerNormalization(**options),
    )
    np.testing.assert_array_equal(as_numpy(ours(inputs)), as_numpy(theirs(inputs)))


@pytest.mark.skipif(
    not LayerNormalization().use_fused, reason="for TensorFlow with oneDNN on a CPU"
)
class TestInAGraph:
    @pytest.mark.each_value
    @pytest.mark.parametrize("jit_compile", [False, True])
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("shape", [(None, None, D), (3, 5, D), (None, 5, D)])
    def test_values_and_gradients(self, shape, training, jit_compile):
        import tensorflow as tf

        layer, inputs = built(), normal(3, 5)

        @tf.function(
            jit_compile=jit_compile,
            input_signature=[tf.TensorSpec(shape, tf.float32)],
        )
        def both(inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = layer(inputs, training=training)
                loss = tf.reduce_sum(outputs**2)
            return outputs, *tape.gradient(loss, [inputs, *layer.trainable_variables])

        found = both(inputs)
        np.testing.assert_allclose(found[0], expected(inputs), atol=2e-5)
        layer.use_fused = False
        with tf.GradientTape() as tape:
            tensor = tf.constant(inputs)
            tape.watch(tensor)
            loss = tf.reduce_sum(layer(tensor) ** 2)
        plain = tape.gradient(loss, [tensor, *layer.trainable_variables])
        for one, other in zip(
            map(as_numpy, found[1:]), map(as_numpy, plain), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("jit_compile", [False, True])
    def test_rows_with_a_large_mean_are_accurate(self, jit_compile, training, policy):
        import tensorflow as tf

        layer = built(dtype=policy, epsilon=1e-5)
        inputs = tf.cast(FAR_ROWS, layer.compute_dtype)
        call = tf.function(
            lambda inputs: layer(inputs, training=training), jit_compile=jit_compile
        )
        assert_normed(call(inputs), inputs, 1e-5)

    def test_xla_gets_no_batch_norm(self):
        import tensorflow as tf

        operations = []

        def call(inputs):
            outputs = layer(inputs)
            graph = tf.compat.v1.get_default_graph()
            operations.append({node.type for node in graph.get_operations()})
            return outputs

        layer, inputs = built(), tf.constant(normal(3, 5))
        tf.function(call)(inputs)
        tf.function(call, jit_compile=True)(inputs)
        tf.function(
            lambda inputs: tf.map_fn(tf.function(call), inputs), jit_compile=True
        )(inputs)
        assert ["FusedBatchNormV3" in kinds for kinds in operations] == [
            True,
            False,
            False,
        ]
        model = keras.Sequential([keras.Input((None, D)), layer])
        for jit_compile in (False, True):
            model.compile(jit_compile=jit_compile)
            found = model.predict(inputs, verbose=0)
            np.testing.assert_allclose(found, expected(normal(3, 5)), atol=2e-5)

    @pytest.mark.parametrize("training", [False, True])
    def test_empty_inputs(self, training):
        import tensorflow as tf

        layer = built()

        def call(inputs):
            return layer(inputs, training=training)

        for shape, given in (((0, 5), None), ((3, 0), None), ((0, 5), 5)):
            specification = tf.TensorSpec((None, given, D))
            graph = tf.function(call, input_signature=[specification])
            assert graph(normal(*shape)).shape == (*shape, D)

    def test_the_gradient_has_a_gradient(self):
        import tensorflow as tf

        layer, inputs = built(), normal(3, 5)

        def formula(inputs):
            # Keras' own treats the mean as a constant, which only changes second
            # derivatives.
            centred = inputs - tf.reduce_mean(inputs, -1, keepdims=True)
            variance = tf.reduce_mean(centred**2, -1, keepdims=True)
            normed = centred / tf.sqrt(variance + layer.epsilon)
            return normed * layer.gamma + layer.beta

        @tf.function(input_signature=[tf.TensorSpec((None, 5, D))] * 2)
        def curvatures(inputs, direction):
            found = []
            for norm in (formula, lambda inputs: layer(inputs, training=True)):
                with tf.GradientTape() as outer:
                    outer.watch(inputs)
                    with tf.GradientTape() as inner:
                        inner.watch(inputs)
                        loss = tf.reduce_sum(norm(inputs) ** 3)
                    slope = inner.gradient(loss, inputs)
                    along = tf.reduce_sum(slope * direction)
                found.append(outer.gradient(along, [inputs, *layer.trainable_weights]))
            return found

        for one, other in zip(*curvatures(inputs, normal(3, 5)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-2)

    def test_half_precision_has_the_gradients_of_float32(self):
        import tensorflow as tf

        @tf.function
        def gradients(layer, inputs):
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                loss = tf.reduce_sum(tf.cast(layer(inputs, training=True), "float32"))
            return tape.gradient(loss, [inputs, *layer.trainable_weights])

        inputs = tf.cast(normal(3, 5), "bfloat16")
        half = gradients(built(dtype="mixed_bfloat16"), inputs)
        assert [x.dtype for x in half] == [tf.bfloat16, tf.float32, tf.float32]
        exact = gradients(built(), tf.cast(inputs, "float32"))
        for one, other in zip(map(as_numpy, half), map(as_numpy, exact), strict=True):
            np.testing.assert_allclose(one, other, rtol=2.0**-7, atol=2.0**-5)

    def test_in_training_xla_fuses_a_norm_of_known_shape(self):
        import tensorflow as tf

        layer = built()

        trained = tf.function(lambda inputs: layer(inputs, training=True))
        for length, compiled in ((5, True), (None, False)):
            graph = trained.get_concrete_function(tf.TensorSpec((None, length, D)))
            names = {operation.type for operation in graph.graph.get_operations()}
            assert ("Rsqrt" not in names) == compiled

    @pytest.mark.parametrize("shape", [(None, None, D), (3, 5, D)])
    def test_inference_is_one_operation_unless_it_is_exported(self, shape):
        import tensorflow as tf

        from keras_attn.export.portable_layers import portable_layers

        model = keras.Sequential([keras.Input(shape[1:]), built()])

        def operations():
            graph = tf.function(model).get_concrete_function(tf.TensorSpec(shape)).graph
            return {operation.type for operation in graph.get_operations()}

        assert "FusedBatchNormV3" in operations()
        with portable_layers([model]):
            assert "FusedBatchNormV3" not in operations()
        assert "FusedBatchNormV3" in operations()

    def test_a_single_position_uses_keras_own(self):
        import tensorflow as tf

        graph = tf.function(built()).get_concrete_function(tf.TensorSpec((None, 1, D)))
        names = {operation.type for operation in graph.graph.get_operations()}
        assert "FusedBatchNormV3" not in names
