"""FCN on VGG16 and on a ResNet."""

from families import vgg
from families.resnet import resnet
from model_family import CLASSES, E, Graph, M, U, dense


def fcn_vgg(factor, *skips, classes=21):
    """The last enlargement has a kernel of twice its factor, those before of 4 × 4."""
    count = vgg.COUNT - dense(4096, 1000) + dense(4096, classes)
    count += sum(dense(width, classes) + 16 * classes**2 for width in skips)
    return count + (2 * factor * classes) ** 2


def fcn_resnet(*num_blocks, norm=2, classes=21):
    """With two heads: a 3 × 3 convolution, a norm, and the scores."""
    count = resnet(*num_blocks, norm=norm)
    for width in (2048, 1024):
        inner = width // 4
        count += 9 * width * inner + norm * inner + dense(inner, classes)
    return count


GRAPHS = [
    Graph(
        "fcn8s_vgg16",
        {
            "skips": (3, 2),
            "image_size": (19, 27),
            "hidden_dims": (3, 5, U, 3, E),
            "num_convs": (1, 1, 1, 1, 1),
            "fully_connected_dims": (M,),
            # Maps have 217 x 225 pixels, whose scores JAX enlarges slowly.
            "num_classes": 5,
        },
        {
            "fcn32s_vgg16": fcn_vgg(32),
            "fcn16s_vgg16": fcn_vgg(16, 512),
            "fcn8s_vgg16": fcn_vgg(8, 512, 256),
        },
        options={"any_size": {"image_size": None, "skips": (3,)}, "32s": {"skips": ()}},
        attends=False,
        tables=("upsampling",),  # Bilinear kernels.
    ),
    Graph(
        "fcn_resnet50",
        {
            "image_size": (19, 27),
            "stem_dim": 5,
            "num_blocks": (1, 2),
            **CLASSES,
            "dilated_stages": (1,),
        },
        {
            "fcn_resnet50": fcn_resnet(3, 4, 6, 3, norm=4),
            "fcn_resnet101": fcn_resnet(3, 4, 23, 3, norm=4),
        },
        options={"any_size": {"image_size": None, "auxiliary_head": False}},
        attends=False,
        tables=("upsampling",),
    ),
]
