"""Which tensors of a training step a TPU stores, rule by rule."""

import pytest
from backend import skip_module_without_tensorflow

from keras_attn.models.plans.step_memory import StepMemory, is_in, peak_memory
from keras_attn.models.plans.tpu_tiles import map_bytes, tiled_bytes

skip_module_without_tensorflow("plan reads TensorFlow's graphs")

# Whole tiles, so that the sizes are those of the numbers.
B, D, E = 16, 128, 384


def step(network, dtype="float32", shape=(B, D)):
    """The memory of a step of a function of features and a kernel (D, E)."""
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        kernel = tf.Variable(lambda: tf.zeros((D, E), dtype))
        x = tf.compat.v1.placeholder(dtype, shape)
        start = len(graph.get_operations())
        output = network(tf, x, kernel.value())
        seed = tf.compat.v1.placeholder(output.dtype, output.shape)
        tf.gradients(output, [kernel], seed)
        return StepMemory(graph.get_operations()[start:], {seed.op.name: output})


def kept(memory):
    """Types and shapes of what is stored at the peak."""
    _, index = memory.at_peak()
    return sorted(
        (memory._operations[each.birth].type, each.shape, each.width_read)
        for each in memory.stored.values()
        if each.width_read and each.birth <= index <= each.last
    )


@pytest.mark.parametrize("length", [1, 5])
def test_elementwise_operations_are_computed_again(length):
    def network(tf, x, kernel):
        hidden = tf.matmul(x, kernel)
        for _ in range(length):
            hidden = tf.tanh(tf.cast(hidden, "float32") * 3)
        return tf.matmul(hidden, kernel, transpose_b=True)

    memory = step(network)
    # The product, the gradient of the last tanh, and that of the product.
    assert memory.peak == 3 * 4 * B * E
    assert not any(kind == "Tanh" for kind, _, _ in kept(memory))


def test_a_sum_is_stored_instead_of_its_terms():
    def network(tf, x, kernel):
        total = tf.matmul(x, kernel)
        for _ in range(3):
            branch = tf.tanh(
                tf.matmul(tf.matmul(total, kernel, transpose_b=True), kernel)
            )
            total = total + branch
        return total

    # Of each branch what tanh needs, of the sum what the next branch reads.
    found = kept(step(network))
    assert [kind for kind, shape, _ in found if shape == (B, E)].count("AddV2") == 3


def test_what_a_product_reads_with_statistics_is_stored():
    def network(tf, x, kernel):
        hidden = tf.matmul(x, kernel)
        mean = tf.reduce_mean(hidden, axis=-1, keepdims=True)
        return tf.matmul(hidden * tf.math.rsqrt(mean), kernel, transpose_b=True)

    memory = step(network)
    stored = [
        (memory._operations[each.birth].type, each.width_read)
        for each in memory.stored.values()
    ]
    assert ("Mul", 2) in stored


@pytest.mark.parametrize("name, copies", [("erf", 1), ("tanh", 0)])
def test_an_error_function_is_stored_for_the_product(name, copies):
    def network(tf, x, kernel):
        hidden = tf.matmul(x, kernel)
        hidden = hidden * getattr(tf.math, name)(hidden)
        return tf.matmul(hidden, kernel, transpose_b=True)

    found = [each for each in kept(step(network)) if each[1:] == ((B, E), 2)]
    assert len(found) == copies


def test_the_narrowest_type_on_the_way_is_stored():
    def network(tf, x, kernel):
        hidden = tf.cumsum(tf.matmul(x, kernel))
        kernel = tf.cast(kernel, "bfloat16")
        return tf.matmul(tf.cast(hidden, "bfloat16"), kernel, transpose_b=True)

    memory = step(network)
    widths = {
        memory._operations[each.birth].type: each.width_read
        for each in memory.stored.values()
        if each.birth < 8
    }
    assert widths["Cumsum"] == 2


@pytest.mark.parametrize("has_mask", [False, True])
def test_a_softmax_of_a_product_alone_is_computed_again(has_mask):
    def network(tf, x, kernel):
        scores = tf.matmul(x, kernel)
        if has_mask:
            scores += tf.cumsum(x[:, :1] * tf.ones((1, E)), axis=1)
        return tf.matmul(tf.nn.softmax(scores), kernel, transpose_b=True)

    assert (("Softmax", (B, E), 4) in kept(step(network))) == has_mask


@pytest.mark.parametrize("dtype, copies", [("bfloat16", 1), ("float32", 0)])
def test_a_table_that_is_multiplied_by_is_copied_in_16_bits(dtype, copies):
    def network(tf, x, kernel):
        rows = tf.gather(kernel, tf.range(B))
        rows = tf.cast(tf.cumsum(rows), dtype)
        return tf.matmul(rows, tf.cast(kernel, dtype), transpose_b=True)

    shapes = [shape for _, shape, _ in kept(step(network))]
    assert shapes.count((D, E)) == copies


def test_gradients_of_weights_take_nothing():
    # The output and its gradient; that of the kernel, D x E, is used at once.
    memory = step(lambda tf, x, kernel: tf.matmul(x, kernel))
    assert memory.peak == 2 * 4 * B * E


def test_a_loop_keeps_what_its_backward_pass_reads():
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        kernel = tf.Variable(lambda: tf.zeros((D, D)))
        state = tf.compat.v1.placeholder("float32", (B, D))
        for _ in range(7):
            with tf.name_scope("loop"):
                state = tf.tanh(tf.matmul(state, kernel))
        seed = tf.compat.v1.placeholder("float32", state.shape)
        tf.gradients(state, [kernel], seed)
        operations = graph.get_operations()
    tanh = [each for each in operations if each.type == "Tanh"]
    assert all(is_in(each, ["loop"]) and not is_in(each, ["loops"]) for each in tanh)
    seeds = {seed.op.name: state}
    names = {each.outputs[0].name for each in tanh}
    fused, kept = (StepMemory(operations, seeds, each).peak for each in ((), names))
    assert kept >= fused >= 4 * 7 * B * D
    # The vector memory is larger.
    assert peak_memory(operations, seeds, names) == 0


def test_tiles():
    assert tiled_bytes((B, 128), 4) == B * 128 * 4
    # 49 x 49 scores of a window take 56 x 128.
    assert tiled_bytes((3, 49, 49), 2) == 3 * 56 * 128 * 2
    # The longer axis of the last two has the lanes: 197 in 256, or 64 in 128.
    assert tiled_bytes((5, 64, 197), 2) == 5 * 64 * 256 * 2
    assert tiled_bytes((3,), 4) == 128 * 4
    assert tiled_bytes((), 4) == 128 * 4
    # 32 channels in 128 lanes; images of one channel with the rows as lanes.
    assert map_bytes((8, 256, 256, 32), 2) == 8 * 256 * 256 * 128 * 2
    assert map_bytes((8, 256, 256, 1), 2) == 256 * 256 * 128 * 2
    assert map_bytes((32, 224, 224, 3), 2) == 224 * 224 * 4 * 128 * 2
