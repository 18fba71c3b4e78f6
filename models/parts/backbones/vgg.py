"""VGG as a backbone: stages of 3 × 3 convolutions, each followed by max pooling.

Legend: B batch, H and W pixels.
Layers: `stage_0_conv_0`, `stage_0_conv_1`, …, `stage_0_pooling`.
"""

from typing import Any

from keras.layers import MaxPooling2D

from keras_attn.checks.arguments import check_same_length
from keras_attn.layers import Conv2D
from keras_attn.layers.initializers import he_normal_fan_out

# Simonyan and Zisserman 2015, table 1, column D: its convolutions, and all of it.
VGG16_STAGES = {
    "hidden_dims": (64, 128, 256, 512, 512),
    "num_convs": (2, 2, 3, 3, 3),
}
VGG16 = {**VGG16_STAGES, "fully_connected_dims": (4096, 4096)}


def vgg(
    images,
    *,
    hidden_dims=VGG16_STAGES["hidden_dims"],
    num_convs=VGG16_STAGES["num_convs"],
    pooling_padding="valid",
) -> dict[str, Any]:
    """The maps of a VGG, by default of VGG16.

    Args:
        images: A tensor (B, H, W, channels); H and W may be unknown.
        hidden_dims: Channels of each stage.
        num_convs: Convolutions of each stage.
        pooling_padding: What pooling does with an odd last row or column: `"valid"`
            drops it, as in PyTorch; `"same"` keeps it, as in Caffe.

    Returns:
        The maps `stage_0`, `stage_1`, …, (B, rows, columns, width), the first of the
        size of the images and each of the others half as large as the one before; and
        after each its pooled map, `pooled_0`, `pooled_1`, …, of half its size.

    Raises:
        ValueError: If `hidden_dims` and `num_convs` differ in length.

    Reference:
        Simonyan and Zisserman 2015 (arXiv:1409.1556).
    """
    check_same_length(hidden_dims=hidden_dims, num_convs=num_convs)
    maps, hidden = {}, images
    for stage, (width, count) in enumerate(zip(hidden_dims, num_convs, strict=True)):
        for index in range(count):
            hidden = Conv2D(
                width,
                3,
                padding="same",
                activation="relu",
                kernel_initializer=he_normal_fan_out(),
                data_format="channels_last",
                name=f"stage_{stage}_conv_{index}",
            )(hidden)
        maps[f"stage_{stage}"] = hidden
        hidden = MaxPooling2D(
            padding=pooling_padding,
            data_format="channels_last",
            name=f"stage_{stage}_pooling",
        )(hidden)
        maps[f"pooled_{stage}"] = hidden
    return maps
