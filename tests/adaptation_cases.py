"""What takes neither LoRA weights nor integers, and checks of all that does."""

import math
import re

import keras
import numpy as np

from keras_attn.layers.adaptation.kernel_layer import KernelLayer, kernel_layers
from keras_attn.layers.adaptation.low_rank import LowRankKernel, LowRankUpdate
from keras_attn.layers.adaptation.paths import get_path
from keras_attn.layers.adaptation.quantized import QuantizedKernel, count_bytes

# Layers with weights of two axes or more that take neither, or single weights of
# layers whose kernels do, by the reason. `docs/fine_tune.md` has this table.
REFUSED = {
    "recurrent cells, which compute with their weights themselves": (
        "keras.layers.GRUCell",
        "keras.layers.LSTMCell",
        "keras.layers.SimpleRNNCell",
    ),
    "transposed convolutions: the last axis of the kernel is the input channels": (
        "TransposedConv2D",
        "keras.layers.Conv2DTranspose",
    ),
    "each channel has its own kernel, not a matrix to factor": (
        "keras.layers.DepthwiseConv2D",
    ),
    "the kernel is normalized before use": (
        "SpectralNormalization",
        "StandardizedConv2D",
    ),
    "layers of Keras, also inside `SelfAttention2D` and SAGAN, where they may be "
    "divided by their spectral norms": (
        "keras.layers.Conv2D",
        "keras.layers.Dense",
        "keras.layers.Embedding",
    ),
    "tables of positions, which are few": (
        "AttentionPooling",
        "CaptionEmbedding.padding_embeddings",
        "CaptionEmbedding.position_embeddings",
        "ImageCodeEmbedding.column_embeddings",
        "ImageCodeEmbedding.row_embeddings",
        "LearnedPositionEmbedding",
        "WindowAttention.position_bias",
    ),
    "single vectors": (
        "AdditiveAttention.score_vector",
        "AdditiveAttention2D.score_vector",
        "AttentionRNN.gate_kernel",
        "ClassToken",
        "HardAttentionRNN.gate_kernel",
        "PatchUnmasking",
        "ProbePooling.probe",
        "TargetEmbedding",
    ),
    "biases, with a row for each head": (
        "RelativeMultiHeadAttention.content_bias",
        "RelativeMultiHeadAttention.position_bias",
        "RelativeMultiHeadAttention.segment_bias",
        "RelativeMultiHeadAttention.segment_embedding",
    ),
    "a factor and a summand of each class": ("ConditionalBatchNormalization",),
}
# Models that have no other kernels.
REFUSED_MODELS = ("sagan_generator_128", "sagan_discriminator_128")
_NAMES = {name for names in REFUSED.values() for name in names}


def refused_in(layer, mode=None, block_size=None, reached=()) -> dict[str, list[str]]:
    """What is a plain weight after all kernels were given updates or integers.

    Args:
        layer: A layer or model.
        mode: Of the integers; None = the kernels have updates.
        block_size: Of the integers.
        reached: Kernels that don't count.

    Returns:
        Names as in `REFUSED`, each with the paths of its layers.

    Raises:
        AssertionError: If a weight of two axes or more is not in `REFUSED`, nor, if
            there is a mode, as small as its integers.
    """
    known = {id(kernel) for kernel in reached}
    found = {}
    for each in layer._flatten_layers():
        if isinstance(each, LowRankUpdate | QuantizedKernel):
            continue
        if mode is None and isinstance(each, KernelLayer):
            kernel = each.adapted_kernel
            known |= {id(kernel.base)} if isinstance(kernel, LowRankKernel) else set()
        kind = type(each).__name__
        if type(each).__module__.startswith("keras."):
            kind = f"keras.layers.{kind}"
        for weight in (*each._trainable_variables, *each._non_trainable_variables):
            size = 4 * math.prod(weight.shape)
            if len(weight.shape) < 2 or id(weight) in known:
                continue
            names = _NAMES & {kind, f"{kind}.{weight.name}"}
            is_small = mode and count_bytes(weight.shape, mode, block_size) >= size
            assert names or is_small, f"{kind}.{weight.name} of {get_path(each)}"
            for name in names:
                found.setdefault(name, []).append(get_path(each))
    return found


def draw_updates(layer, seed=3, scale=0.2):
    """Gives the LoRA weights of a layer or model random numbers."""
    rng = np.random.default_rng(seed)
    for update in layer._flatten_layers():
        if isinstance(update, LowRankUpdate):
            for kernel in (*update.a_kernels, *update.b_kernels):
                kernel.assign(rng.normal(0, scale, kernel.shape))


def assert_only_updates_train(model):
    """Checks that everything but the LoRA weights is fixed."""
    assert model.trainable_variables
    for weight in model.trainable_variables:
        assert re.fullmatch(r"[ab]_\d+", weight.name), weight.path


def num_kernels(layer):
    """How many kernels a layer or model has."""
    return len(kernel_layers(layer))


def cosine(values, others):
    """The cosine of two arrays, over their finite numbers."""
    values, others = (np.asarray(x, "float64").ravel() for x in (values, others))
    finite = np.isfinite(values) & np.isfinite(others)
    values, others = values[finite], others[finite]
    return values @ others / (np.linalg.norm(values) * np.linalg.norm(others))


def weights_of(model):
    """Copies of all weights by path."""
    return {x.path: np.array(keras.ops.convert_to_numpy(x)) for x in model.weights}
