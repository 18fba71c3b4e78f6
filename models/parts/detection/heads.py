"""The heads of all two-stage detectors: of a box, and of the mask inside it.

Legend: B batch, R boxes, O rows and columns of the features inside a box, h and w rows
and columns of a mask, C classes without the background, D units.
"""

from typing import Any

from keras import ops
from keras.layers import Conv2DTranspose

from keras_attn.layers import Conv2D, Dense, Dropout
from keras_attn.layers.initializers import he_normal_fan_out, normal
from keras_attn.models.parts.functional import by_name, numbered
from keras_attn.models.parts.heads import logits_layer


def box_head_layers(head_dim, num_classes, dropout=0.0) -> dict[str, Any]:
    """Two fully connected layers, then logits and deltas, by name."""
    num_logits = num_classes + 1
    layers = [
        *(
            Dense(
                head_dim,
                activation="relu",
                kernel_initializer="he_uniform",
                name=f"fc_{index}",
            )
            for index in range(2)
        ),
        logits_layer(num_logits, "class_logits", kernel_initializer=normal(0.01)),
        logits_layer(4 * num_logits, "box_deltas", kernel_initializer=normal(0.001)),
    ]
    if dropout:
        layers += [Dropout(dropout, name=f"dropout_{index}") for index in range(2)]
    return by_name(layers)


def box_head(layers, pooled, training=None):
    """Features (B, R, D), logits (B, R, 1 + C) and deltas (B, R, 4 (1 + C)) of boxes.

    Args:
        layers: The layers by name.
        pooled: (B, R, O, O, C), features inside the boxes.
        training: Whether dropout is active.
    """
    boxes, size = pooled.shape[1], 1
    for length in pooled.shape[2:]:
        size *= length
    hidden = ops.reshape(pooled, (-1, size))
    for index in range(2):
        hidden = layers[f"fc_{index}"](hidden)
        if f"dropout_{index}" in layers:
            hidden = layers[f"dropout_{index}"](hidden, training=training)
    outputs = (hidden, layers["class_logits"](hidden), layers["box_deltas"](hidden))
    return [ops.reshape(x, (-1, boxes, x.shape[-1])) for x in outputs]


def mask_head_layers(mask_dim, num_layers, num_logits) -> dict[str, Any]:
    """Convolutions, a transposed one that doubles both sides, and logits, by name."""
    options: Any = {
        "data_format": "channels_last",
        "kernel_initializer": he_normal_fan_out(),
    }
    return by_name(
        [
            *(
                Conv2D(
                    mask_dim,
                    3,
                    padding="same",
                    activation="relu",
                    name=f"mask_conv_{index}",
                    **options,
                )
                for index in range(num_layers)
            ),
            Conv2DTranspose(
                mask_dim,
                2,
                strides=2,
                activation="relu",
                name="mask_upsampling",
                **options,
            ),
            # Always in float32, because a sigmoid and a loss follow.
            Conv2D(num_logits, 1, dtype="float32", name="mask_logits", **options),
        ]
    )


def mask_head(layers, pooled):
    """Logits (B, R, h, w, 1 + C) of the masks of boxes.

    Args:
        layers: The layers by name.
        pooled: (B, R, O, O, C), features inside the boxes.
    """
    boxes = pooled.shape[1]
    hidden = ops.reshape(pooled, (-1, *pooled.shape[2:]))
    for convolution in numbered(layers, "mask_conv"):
        hidden = convolution(hidden)
    logits = layers["mask_logits"](layers["mask_upsampling"](hidden))
    return ops.reshape(logits, (-1, boxes, *logits.shape[1:]))
