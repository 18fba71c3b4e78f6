"""U-Net."""

from model_family import CLASSES, Graph, U, dense


def unet(channels, classes):
    """Two convolutions per stage; behind each enlargement of half the channels too."""
    count, inputs = dense(64, classes), channels
    for width in (64, 128, 256, 512, 1024):
        count += dense(9 * inputs, width) + dense(9 * width, width)
        inputs = width
    for width in (512, 256, 128, 64):
        count += 4 * 2 * width * width + width
        count += dense(9 * 2 * width, width) + dense(9 * width, width)
    return count


GRAPHS = [
    Graph(
        "unet",
        {
            "image_size": (18, 22),
            "hidden_dims": (5, U),
            "num_channels": 3,
            "dropout": 0.3,
            **CLASSES,
        },
        {"unet": unet(1, 2)},
        options={"same_any_size": {"image_size": None, "padding": "same"}},
        attends=False,
    )
]
