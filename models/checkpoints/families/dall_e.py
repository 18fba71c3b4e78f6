"""DALL·E's discrete VAE in the naming of its authors' package, `dall-e`.

The package has two modules, published as two files that hold code. A folder has the
tensors of both: the keys of `Encoder` after `encoder.`, of `Decoder` after `decoder.`.
The package has no configurations, so `config.json` has a `library`, `"dall_e"`, and the
arguments of its modules, which count widths and blocks as ours:

```python
tensors = {f"encoder.{key}": x for key, x in encoder.state_dict().items()}
tensors |= {f"decoder.{key}": x for key, x in decoder.state_dict().items()}
safetensors.torch.save_file(tensors, "folder/model.safetensors")
```
"""

from keras_attn.models.checkpoints import tasks
from keras_attn.models.checkpoints.mapping import (
    Family,
    Weight,
    layers_by_name,
    same,
    transposed,
)
from keras_attn.models.dvae import build_dvae
from keras_attn.models.parts.functional import numbered_names


def _build(config, task, overrides):
    arguments = {
        "image_size": config.get_image_size("image_size", 256),
        "vocabulary_size": config.get_size("vocab_size", 8192),
        "num_groups": config.get_num_blocks("group_count", 4),
        "num_blocks": config.get_num_blocks("n_blk_per_group", 2),
        "base_dim": config.get_size("n_hid", 256),
        "code_dim": config.get_size("n_init", 128),
        "num_channels": config.get_size("input_channels", 3),
    }
    return tasks.call_builders([(build_dvae, arguments)], overrides)


def _find_task(model):
    layers = layers_by_name(model)
    is_dvae = {"relaxation", "decoder_input", "encoder_output"} <= layers.keys()
    return "autoencoder" if is_dvae else None


def _config(model) -> dict:
    layers = layers_by_name(model)
    groups = numbered_names(layers, "encoder_group_", "_block_0_conv_0")
    blocks = numbered_names(layers, "encoder_group_0_block_", "_conv_0")
    return {
        "library": "dall_e",
        "image_size": list(model.inputs[0].shape[1:3]),
        "vocab_size": layers["decoder_input"].vocabulary_size,
        "group_count": len(groups),
        "n_blk_per_group": len(blocks),
        "n_hid": layers["encoder_input"].filters,
        "n_init": layers["decoder_input"].units,
        "input_channels": model.inputs[0].shape[3],
    }


def _weights(model) -> list[Weight]:
    layers, weights = layers_by_name(model), []
    for side in ("encoder", "decoder"):
        blocks = f"{side}.blocks"
        if side == "encoder":
            weights += _convolution(f"{blocks}.input", layers["encoder_input"])
        else:
            weights += _code_projection(f"{blocks}.input", layers["decoder_input"])
        groups = numbered_names(layers, f"{side}_group_", "_block_0_conv_0")
        for group, name in enumerate(groups, 1):
            for block, place in enumerate(
                numbered_names(layers, f"{name}_block_", "_conv_0"), 1
            ):
                key = f"{blocks}.group_{group}.block_{block}"
                for index, convolution in enumerate(
                    numbered_names(layers, f"{place}_conv_"), 1
                ):
                    weights += _convolution(
                        f"{key}.res_path.conv_{index}", layers[convolution]
                    )
                if f"{place}_shortcut" in layers:
                    shortcut = layers[f"{place}_shortcut"]
                    weights += _convolution(f"{key}.id_path", shortcut)
        weights += _convolution(f"{blocks}.output.conv", layers[f"{side}_output"])
    return weights


def _convolution(name, layer) -> list[Weight]:
    return [
        transposed(f"{name}.w", layer.kernel, (2, 3, 1, 0)),
        same(f"{name}.b", layer.bias),
    ]


def _code_projection(name, layer) -> list[Weight]:
    """A convolution of one-hot codes, with a kernel of one pixel."""
    return [
        Weight(
            (f"{name}.w",),
            layer.kernel,
            lambda array: array[:, :, 0, 0].T,
            lambda array: (array.T[:, :, None, None],),
        ),
        same(f"{name}.b", layer.bias),
    ]


DALL_E = Family(
    model_type="dall_e",
    library="dall_e",
    also_saved_as={"autoencoder": "dvae"},
    tasks=("autoencoder",),
    build=_build,
    find_task=_find_task,
    config=_config,
    weights=_weights,
    default_task=lambda config: "autoencoder",
)
