"""Test cases of Keras' layers whose kernels may be adapted."""

from layer_contract import KNOWN, UNITS, B, Case, D, E, S, T

from keras_attn import layers

MAP = (B, T, S, D)

CASES = {
    "Projection": {
        "plain": Case(lambda: layers.Projection(UNITS), {"inputs": (B, T, D)}),
        "parts_no_bias": Case(
            lambda: layers.Projection(
                {"query": UNITS, "key": 3},
                use_bias=False,
                kernel_initializer="he_normal",
            ),
            {"inputs": (B, D)},
        ),
    },
    "Dense": {
        "plain": Case(lambda: layers.Dense(UNITS), {"inputs": (B, T, D)}),
        "activation_no_bias": Case(
            lambda: layers.Dense(
                UNITS, activation="tanh", use_bias=False, kernel_initializer="he_normal"
            ),
            {"inputs": (B, D)},
        ),
    },
    "Conv2D": {
        "plain": Case(lambda: layers.Conv2D(UNITS, 3, padding="same"), {"inputs": MAP}),
        "strides_same_activation": Case(
            lambda: layers.Conv2D(
                UNITS,
                (3, 2),
                strides=2,
                padding="same",
                activation="relu",
                kernel_initializer="he_normal",
            ),
            {"inputs": (B, 2 * T, KNOWN, D)},
        ),
        "dilated_no_bias": Case(
            lambda: layers.Conv2D(
                UNITS, 2, dilation_rate=2, padding="same", use_bias=False
            ),
            {"inputs": MAP},
        ),
    },
    "Embedding": {
        "plain": Case(
            lambda: layers.Embedding(E, UNITS), {"inputs": (B, T)}, ids_below=E
        )
    },
}
