"""SAGAN's generator and discriminator, and a classifier with its attention."""

from model_family import A, C, E, Graph, M, dense

TINY = {"image_size": 16, "base_dim": 8, "attention_size": 8, "num_classes": C}


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


GRAPHS = [
    Graph(
        "sagan_generator_128",
        {**TINY, "latent_dim": M},
        {"sagan_generator_128": sagan_generator()},
    ),
    Graph(
        "sagan_discriminator_128",
        TINY,
        {"sagan_discriminator_128": sagan_discriminator()},
    ),
    Graph(
        "cnn_self_attention",
        {"image_size": (14, 18), "hidden_dims": (E, A), "num_classes": C},
        {"cnn_self_attention": cnn()},
    ),
]
