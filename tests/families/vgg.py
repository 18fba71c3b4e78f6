"""VGG."""

from model_family import CLASSES, E, Graph, M, U

COUNT = 138_357_544  # Counted by `transformers`.
# Channels and convolutions of each stage of VGG16.
STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))

GRAPHS = [
    Graph(
        "vgg16",
        {
            "image_size": (18, 26),
            "hidden_dims": (U, M),
            "num_convs": (1, 2),
            "fully_connected_dims": (E,),
            **CLASSES,
        },
        {"vgg16": COUNT},
        options={"any_size_features": {"image_size": None, "include_top": False}},
        attends=False,
    )
]
