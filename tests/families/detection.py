"""Faster R-CNN and Mask R-CNN."""

from families.resnet import resnet
from model_family import A, E, Graph, M, U, dense

# Every anchor and every proposal is a sample, so that no random choice is left.
_ALL = {"num_samples": 10_000, "positive_fraction": 0.5}
_TINY = {
    "num_classes": M,
    "head_dim": A,
    "num_proposals": 19,
    "num_training_proposals": 23,
    "max_detections": E,
    "proposal_options": {**_ALL, "candidates_per_level": 31},
    "detection_options": _ALL,
}
_TINY_PYRAMID = {
    **_TINY,
    "image_size": (51, 79),
    "stem_dim": 3,
    "num_blocks": (1, 1),
    "num_frozen": 0,
    "pyramid_dim": U,
    "anchor_sizes": (7, 13, 29),
}


def detector(backbone, width, places, inputs, classes, anchors, head):
    """A proposal network on maps of a width, and two layers on flattened features.

    Args:
        backbone: Parameters of the maps.
        width: Channels of the maps.
        places: Places of the grid inside a box.
        inputs: Channels of the hidden map of the proposal network.
        classes: With the background.
        anchors: At each place.
        head: Units of the two layers.
    """
    proposals = dense(9 * width, inputs) + dense(inputs, 5 * anchors)
    fully_connected = dense(places * width, head) + dense(head, head)
    return backbone + proposals + fully_connected + dense(head, 5 * classes)


def pyramid_detector(*num_blocks, norm=4):
    widths = [256, 512, 1024, 2048]
    pyramid = sum(dense(width, 256) + dense(9 * 256, 256) for width in widths)
    backbone = resnet(*num_blocks, norm=norm) + pyramid
    return detector(backbone, 256, 49, 256, 91, 3, 1024)


def mask_head():
    return 4 * dense(9 * 256, 256) + dense(4 * 256, 256) + dense(256, 91)


def vgg_detector():
    stages = [(3, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256)]
    stages += [(256, 256), (256, 512), *[(512, 512)] * 5]
    backbone = sum(dense(9 * one, other) for one, other in stages)
    return detector(backbone, 512, 49, 512, 21, 9, 4096)


GRAPHS = [
    Graph(
        "faster_rcnn_resnet50",
        _TINY_PYRAMID,
        {
            "faster_rcnn_resnet50": pyramid_detector(3, 4, 6, 3),
            "faster_rcnn_resnet101": pyramid_detector(3, 4, 23, 3),
        },
        attends=False,
    ),
    Graph(
        "mask_rcnn_resnet50",
        {**_TINY_PYRAMID, "mask_dim": 5, "num_mask_layers": 1},
        {"mask_rcnn_resnet50": pyramid_detector(3, 4, 6, 3) + mask_head()},
        attends=False,
    ),
    Graph(
        "faster_rcnn_vgg16",
        {
            **_TINY,
            "image_size": (37, 53),
            "hidden_dims": (5, U),
            "num_convs": (1, 2),
            "num_frozen": 0,
            "anchor_sizes": (7, 17),
        },
        {"faster_rcnn_vgg16": vgg_detector()},
        attends=False,
    ),
]
