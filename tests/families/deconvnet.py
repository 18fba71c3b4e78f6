"""DeconvNet."""

from families.segnet import unpooling
from model_family import CLASSES, E, Graph, M, U, dense


def deconvnet(classes):
    between = ((7, 512, 4096), (1, 4096, 4096), (7, 4096, 512))
    return unpooling(4, *between) + dense(64, classes)


GRAPHS = [
    Graph(
        "deconvnet_vgg16",
        {
            "image_size": (19, 27),
            "hidden_dims": (5, U),
            "num_convs": (1, 2),
            "fully_connected_dims": (E, M),
            "fully_connected_size": 3,
            **CLASSES,
        },
        {"deconvnet_vgg16": deconvnet(21)},
        options={"any_size": {"image_size": None}},
        attends=False,
    )
]
