"""SegNet."""

from families import vgg
from model_family import CLASSES, Graph, U, dense


def unpooling(norms, *between):
    """VGG16 and its mirror image, of kernels and norms, without the classifier."""
    encoder, inputs = [], 3
    for width, count in vgg.STAGES:
        for _ in range(count):
            encoder.append((inputs, width))
            inputs = width
    # The mirror image of the first convolution keeps the 64 channels.
    decoder = [*encoder[1:], (64, 64)]
    count = sum(9 * one * other for one, other in (*encoder, *decoder))
    count += sum(size * size * one * other for size, one, other in between)
    widths = [width for _, width in encoder] + [one for one, _ in decoder]
    return count + norms * (sum(widths) + sum(other for *_, other in between))


def segnet(classes):
    return unpooling(4) - 9 * 64 * 64 - 4 * 64 + dense(9 * 64, classes)


GRAPHS = [
    Graph(
        "segnet",
        {"image_size": (19, 27), "hidden_dims": (5, U), "num_convs": (2, 1), **CLASSES},
        {"segnet": segnet(12)},
        options={"any_size": {"image_size": None}},
        attends=False,
    )
]
