"""What `gpu.py` times on JAX: our attention and models, and `jax.nn`'s attention.

Legend: B batch, N heads, T tokens, H head size.
"""

import importlib.util
import time
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
from gpu_inputs import (
    Prepared,
    attention_inputs,
    compared,
    images_and_labels,
    tokens,
)
from jax import numpy as jnp

import keras_attn
from keras_attn import models
from keras_attn.decoding import generate
from keras_attn.ops import causal_mask, scaled_dot_product_attention


def describe():
    """The device and the versions."""
    device = jax.devices()[0].device_kind
    versions = f"JAX {jax.__version__}, Keras {keras.__version__}"
    return {"text": f"{device}, {versions}"}


def free():
    """Lets go of models and compiled programs."""
    keras.backend.clear_session()
    jax.clear_caches()
    return {}


def prepare(sizes, row, dtype, name):
    """A contestant of a row."""
    what, *details = row.split()
    if what in ("causal", "padding"):
        length, work = details
        return attention(sizes, what, length, work, dtype, name)
    keras.config.set_dtype_policy(dtype)
    keras.utils.set_random_seed(0)
    if "generation" in row:
        return generation(sizes, int(details[-1]))
    if "forward" in row:
        return forward(sizes, what)
    return training(sizes, what, name)


def timed(call, calls, per_call=1):
    """Milliseconds of a call, of several that are queued together."""

    def measured():
        outputs, start = None, time.perf_counter()
        for _ in range(calls):
            outputs = call()
        jax.block_until_ready(outputs)
        return {"ms": 1000 * (time.perf_counter() - start) / calls / per_call}

    return measured


def peak(compiled):
    """Bytes of arguments, results and temporaries."""
    found = compiled.memory_analysis()
    if found is None:
        return None
    return (
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        - found.alias_size_in_bytes
        + found.temp_size_in_bytes
    )


def attention(sizes, mask, length, work, dtype, name):
    """Attention alone, by one of the functions of `FUNCTIONS`."""
    function, is_heads_first = FUNCTIONS[name]
    tensors, lengths = attention_inputs(sizes, int(length))
    tensors = [jnp.asarray(x, dtype) for x in tensors]
    is_reference = name == "reference"
    *inputs, upstream = (x.astype("float32") if is_reference else x for x in tensors)
    if not is_heads_first:
        *inputs, upstream = (jnp.swapaxes(x, 1, 2) for x in (*inputs, upstream))

    def call(query, key, value, upstream, lengths):
        def attend(*inputs):
            return function(*inputs, None if mask == "causal" else lengths)  # pyright: ignore[reportCallIssue]

        with jax.default_matmul_precision("highest" if is_reference else None):
            if work == "forward":
                return (attend(query, key, value),)
            outputs, pull = jax.vjp(attend, query, key, value)
            return (outputs, *pull(upstream))

    arguments = (*inputs, upstream, jnp.asarray(lengths))
    compiled = jax.jit(call).lower(*arguments).compile()
    results = compiled(*arguments)
    places = compared(results[0].size)
    values = []
    for result in results:
        result = result if is_heads_first else jnp.swapaxes(result, 1, 2)
        values.append(np.asarray(result.ravel()[places], "float32").tolist())
    del results
    return Prepared(
        timed(lambda: compiled(*arguments), sizes.calls), peak(compiled), values
    )


def padding_mask(length, lengths):
    """(B, 1, 1, T), True = a real key."""
    return (jnp.arange(length) < lengths[:, None])[:, None, None]


def ours(query, key, value, lengths):
    """`ops.scaled_dot_product_attention`, causal if there are no lengths."""
    length = query.shape[2]
    if lengths is None:
        mask = causal_mask(length, length)
    else:
        mask = padding_mask(length, lengths)
    return scaled_dot_product_attention(query, key, value, mask=mask)[0]


def xla(query, key, value, lengths):
    """`jax.nn.dot_product_attention`, by XLA's own operations."""
    options: Any
    if lengths is None:
        options = {"is_causal": True}
    else:
        options = {"mask": padding_mask(query.shape[1], lengths)}
    return jax.nn.dot_product_attention(
        query, key, value, implementation="xla", **options
    )


def cudnn(query, key, value, lengths):
    """The same by cuDNN's fused attention, which takes lengths."""
    options: Any
    if lengths is None:
        options = {"is_causal": True}
    else:
        options = {"key_value_seq_lengths": lengths}
    return jax.nn.dot_product_attention(
        query, key, value, implementation="cudnn", **options
    )


# By contestant, and whether heads come before tokens, (B, N, T, H).
FUNCTIONS = {
    "ours": (ours, True),
    "reference": (ours, True),
    "xla": (xla, False),
    "cudnn": (cudnn, False),
}


def forward(sizes, name):
    """A forward pass of a model."""
    model, inputs, _ = model_and_data(sizes, name, is_training=False)

    def call(trainable, others, inputs):
        return model.stateless_call(trainable, others, inputs, training=False)[0]

    arguments = (
        [x.value for x in model.trainable_variables],
        [x.value for x in model.non_trainable_variables],
        inputs,
    )
    compiled = jax.jit(call).lower(*arguments).compile()
    return Prepared(
        timed(lambda: compiled(*arguments), sizes.calls), peak(compiled), None
    )


def training(sizes, name, contestant):
    """A training step of a model, or of one with LoRA weights."""
    model, inputs, labels = model_and_data(sizes, name, is_training=True)
    if contestant == "lora":
        enable_lora()(model, 8, also_train="classifier")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-5), loss, metrics=[])
    if contestant == "fit":
        return fit(sizes, model, inputs, labels)
    model.optimizer.build(model.trainable_variables)
    # As in `fit`, whose step is compiled here, so that its memory is known.
    model._symbolic_build(data_batch=(inputs, labels, None))
    state = model._get_jax_state(
        trainable_variables=True,
        non_trainable_variables=True,
        optimizer_variables=True,
        metrics_variables=True,
    )
    step = jax.jit(model.train_step, donate_argnums=0)
    compiled = step.lower(state, (inputs, labels, None)).compile()

    def call():
        nonlocal state
        logs, state = compiled(state, (inputs, labels, None))
        return logs

    return Prepared(timed(call, sizes.calls), peak(compiled), None)


def fit(sizes, model, inputs, labels):
    """A step of `fit`, in an epoch of ten."""
    steps = 10
    repeated = keras.tree.map_structure(
        lambda x: np.concatenate([np.asarray(x)] * steps), (inputs, labels)
    )

    def call():
        model.fit(*repeated, batch_size=len(labels), verbose=0)
        return model.optimizer.iterations.value

    return Prepared(timed(call, 1, per_call=steps), None, None)


def enable_lora():
    """`training.enable_lora`, without TensorFlow, which other parts of `training` need.

    A machine with a GPU for JAX need not have it.
    """
    path = Path(keras_attn.__file__).parent / "training" / "lora.py"
    spec = importlib.util.spec_from_file_location("keras_attn_lora", path)
    module = importlib.util.module_from_spec(spec)  # pyright: ignore[reportArgumentType]
    spec.loader.exec_module(module)  # pyright: ignore[reportOptionalMemberAccess]
    return module.enable_lora


def generation(sizes, rows):
    """Greedy generation by GPT-2."""
    model = models.create("gpt2_small", **sizes.blocks)
    prompt, new = sizes.generation
    inputs = {"token_ids": np.ones((rows, prompt), "int32")}

    def call():
        return generate(model, inputs, new).token_ids

    return Prepared(timed(call, 1), None, None)


def model_and_data(sizes, name, is_training):
    """A model, its inputs and its labels, on the device.

    Args:
        sizes: `gpu.Sizes`.
        name: The first word of a row.
        is_training: Whether BERT gets a classifier.
    """
    if name in ("vit", "swin"):
        blocks = sizes.blocks if name == "vit" else sizes.swin
        name = {"vit": "vit_base_patch16", "swin": "swin_tiny"}[name]
        model = models.create(name, image_size=sizes.side, **blocks)
        inputs, labels = images_and_labels(sizes)
    else:
        token_ids = tokens(sizes, name)
        inputs = {
            "token_ids": token_ids,
            "padding_mask": np.ones(token_ids.shape, bool),
        }
        if name == "gpt2":
            model = models.create("gpt2_small", **sizes.blocks)
            labels = np.roll(token_ids, -1, axis=1)
        else:
            inputs["segment_ids"] = np.zeros_like(token_ids)
            model = models.create("bert_base", **sizes.blocks)
            if is_training:
                model = models.build_bert_classifier(model, num_classes=2)
            labels = np.zeros(len(token_ids), "int32")
    inputs, labels = keras.tree.map_structure(jnp.asarray, (inputs, labels))
    return model, inputs, labels
