"""VGG16 in torchvision's naming."""

from keras_attn.models.checkpoints import mapping, tasks
from keras_attn.models.checkpoints.config import Config
from keras_attn.models.checkpoints.families.torchvision import architectures
from keras_attn.models.checkpoints.mapping import Family, Weight, layers_by_name
from keras_attn.models.parts.functional import numbered_names
from keras_attn.models.vgg import VARIANTS, build_vgg

_GETTERS = {
    "image_size": Config.get_image_size,
    "hidden_dims": Config.get_sizes,
    "num_convs": Config.get_depths,
    "fully_connected_dims": Config.get_sizes,
    "num_channels": Config.get_size,
}


def _build(config, task, overrides):
    arguments = {
        **architectures.get_model_args(config, _GETTERS),
        **tasks.top_arguments(
            config, task, lambda config: architectures.get_num_classes(config, 1000)
        ),
    }
    return tasks.call_builders([(build_vgg, arguments)], overrides)


def _find_task(model):
    layers = layers_by_name(model)
    known = ("stage_", "fully_connected_", "classifier")
    if "stage_0_conv_0" not in layers or not mapping.has_only(layers, known):
        return None
    if "flatten" in layers and "classifier" in layers:
        return "classifier"
    is_encoder = isinstance(model.output, dict) and "pooled_output" in model.output
    return "encoder" if is_encoder else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    stages, first = mapping.stages_of(layers, "", "conv"), layers["stage_0_conv_0"]
    size = tuple(model.inputs[0].shape[1:3])
    sizes = {
        "hidden_dims": tuple(layers[names[0]].filters for names in stages),
        "num_convs": tuple(map(len, stages)),
        "num_channels": first.kernel.shape[2],
    }
    if None not in size:
        sizes["image_size"] = size
    config = {"architecture": "vgg16"}
    if "classifier" in layers:
        config["num_classes"] = layers["classifier"].units
        names = numbered_names(layers, "fully_connected_")
        sizes["fully_connected_dims"] = tuple(layers[name].units for name in names)
    published = {**VARIANTS["16"], "num_channels": 3, "image_size": (224, 224)}
    return config | architectures.changed(sizes, published)


def _weights(model) -> list[Weight]:
    layers, weights, index = layers_by_name(model), [], 0
    for names in mapping.stages_of(layers, "", "conv"):
        for name in names:
            weights += mapping.convolution(f"features.{index}", layers[name])
            index += 2  # The activation is also counted.
        index += 1  # The pooling.
    if "classifier" not in layers:
        return weights
    # An activation and a dropout follow each.
    dense = [*numbered_names(layers, "fully_connected_"), "classifier"]
    first, *others = [
        mapping.dense(f"classifier.{3 * number}", layers[name])
        for number, name in enumerate(dense)
    ]
    kernel, bias = first
    first = flattened(kernel, layers["flatten"].input.shape[1:])
    return [*weights, first, bias, *(weight for pair in others for weight in pair)]


def flattened(kernel: Weight, shape) -> Weight:
    """A kernel on the flattened map, which is channels first in torchvision.

    Args:
        kernel: The kernel of a dense layer.
        shape: Rows, columns and channels of the map.
    """
    rows, columns, channels = shape

    def read(array):
        array = array.reshape(-1, channels, rows, columns).transpose(2, 3, 1, 0)
        return array.reshape(rows * columns * channels, -1)

    def write(array):
        array = array.reshape(rows, columns, channels, -1).transpose(3, 2, 0, 1)
        return (array.reshape(-1, channels * rows * columns),)

    return Weight(kernel.keys, kernel.variable, read, write)


VGG = Family(
    model_type="torchvision",
    library="torchvision",
    also_saved_as=dict.fromkeys(tasks.IMAGE_TASKS, "vgg"),
    tasks=tasks.IMAGE_TASKS,
    heads=("classifier.",),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    default_task=lambda config: "classifier",
)
