"""ResNet of basic blocks and of bottlenecks."""

from model_family import CLASSES, Graph, dense

TINY = {"image_size": (18, 26), "stem_dim": 5, "num_blocks": (2, 1), **CLASSES}


def basic_resnet(*num_blocks, norm=2):
    """Without a top; blocks of two 3 × 3 convolutions, the first without a shortcut."""
    count, inputs = 7 * 7 * 3 * 64 + norm * 64, 64
    for stage, blocks in enumerate(num_blocks):
        outputs = 64 * 2**stage
        if stage:
            count += inputs * outputs + norm * outputs
        for _ in range(blocks):
            count += 9 * (inputs + outputs) * outputs + 2 * norm * outputs
            inputs = outputs
    return count


def resnet(*num_blocks, norm=2):
    """Without a top; a norm has two vectors, four with its mean and variance."""
    count, inputs = 7 * 7 * 3 * 64 + norm * 64, 64
    for stage, blocks in enumerate(num_blocks):
        inner = 64 * 2**stage
        outputs = 4 * inner
        count += inputs * outputs + norm * outputs  # The shortcut of the first.
        for _ in range(blocks):
            count += inputs * inner + 9 * inner * inner + inner * outputs
            count += norm * (2 * inner + outputs)
            inputs = outputs
    return count


GRAPHS = [
    Graph(
        "resnet18",
        TINY,
        {
            "resnet18": basic_resnet(2, 2, 2, 2, norm=4) + dense(512, 1000),
            "resnet34": basic_resnet(3, 4, 6, 3, norm=4) + dense(512, 1000),
        },
        attends=False,
    ),
    Graph(
        "resnet50",
        TINY,
        {
            "resnet50": resnet(3, 4, 6, 3, norm=4) + dense(2048, 1000),
            "resnet101": resnet(3, 4, 23, 3, norm=4) + dense(2048, 1000),
            "resnet152": resnet(3, 8, 36, 3, norm=4) + dense(2048, 1000),
        },
        options={
            "any_size_features": {"image_size": None, "include_top": False},
            "dilated": {"dilated_stages": (1,), "frozen_norms": True, "num_frozen": 1},
        },
        attends=False,
    ),
]
