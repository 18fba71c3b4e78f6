"""Checkpoints in torchvision's naming: the `state_dict` of a model as safetensors.

`config.json` has a `library`, `"torchvision"`; an `architecture`, the name of a
function of `torchvision.models`; `num_classes`; and, for a model of a different size,
`model_args` with the arguments of our builder.
"""

from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families.torchvision.rcnn import RCNN
from keras_attn.models.checkpoints.families.torchvision.resnet import RESNET
from keras_attn.models.checkpoints.families.torchvision.vgg import VGG
from keras_attn.models.checkpoints.mapping import Family
from keras_attn.models.resnet import VARIANTS as RESNET_VARIANTS

TORCHVISION = (RESNET, VGG, RCNN)
_FAMILIES = {
    **{f"resnet{variant}": RESNET for variant in RESNET_VARIANTS},
    **dict.fromkeys(("fcn_resnet50", "fcn_resnet101"), RESNET),
    "vgg16": VGG,
    **dict.fromkeys(("fasterrcnn_resnet50_fpn", "maskrcnn_resnet50_fpn"), RCNN),
}


def get_torchvision_family(config: Config) -> Family:
    """The family of torchvision's `architecture`.

    Raises:
        ValueError: If the architecture is not supported.
    """
    name = config.get("architecture")
    if not isinstance(name, str) or name not in _FAMILIES:
        known = f"one of {', '.join(_FAMILIES)} for library='torchvision'"
        raise config.error("architecture", known, name)
    return _FAMILIES[name]
