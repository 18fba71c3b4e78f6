"""Tiny checkpoints of ViT, DeiT, MAE, Swin and ConvNeXt; see `hugging_face.py`.

Arrays have our order of axes: channels last.
"""

from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import case_of, make_model
from torch_models import pixels_of
from write_folders import write

B, CLASSES = 2, 5
_BODY = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "image_size": [14, 21],
    "patch_size": 7,
}
_SQUARE = {**_BODY, "image_size": 12, "patch_size": 4}
_DECODER = {
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 1,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 11,
}
_SWIN = {
    "embed_dim": 6,
    "depths": [2, 2],
    "num_heads": [2, 3],
    "window_size": 3,
    "patch_size": 2,
    "image_size": [12, 24],
}
_CONVNEXT = {
    "hidden_sizes": [5, 7],
    "depths": [2, 1],
    "num_stages": 2,
    "patch_size": 2,
    "image_size": [8, 12],
    "layer_scale_init_value": 0.1,
}
_LABELS = {"num_labels": CLASSES}
# Case to the class, its configuration, and the image size if it is another.
CASES = {
    "vit_classifier": ("ViTForImageClassification", {**_BODY, **_LABELS}, None),
    "vit_encoder": (
        "ViTModel",
        {**_BODY, "image_size": 28, "patch_size": 14, "hidden_act": "gelu_new"},
        None,
    ),
    "vit_interpolated": ("ViTModel", _SQUARE, (20, 28)),
    "vit_one_channel": (
        "ViTForImageClassification",
        {**_SQUARE, **_LABELS, "num_channels": 1, "patch_size": [3, 4]},
        None,
    ),
    "vit_no_qkv_bias": (
        "ViTForImageClassification",
        {**_BODY, **_LABELS, "qkv_bias": False},
        None,
    ),
    "deit_encoder": ("DeiTModel", _BODY, None),
    "deit_classifier": ("DeiTForImageClassification", {**_BODY, **_LABELS}, None),
    "deit_teacher": (
        "DeiTForImageClassificationWithTeacher",
        {**_BODY, **_LABELS},
        None,
    ),
    "mae_pretrainer": (
        "ViTMAEForPreTraining",
        {**_SQUARE, **_DECODER, "norm_pix_loss": True, "mask_ratio": 0.75},
        None,
    ),
    "mae_half": (
        "ViTMAEForPreTraining",
        {**_SQUARE, **_DECODER, "norm_pix_loss": False, "mask_ratio": 0.5},
        None,
    ),
    "mae_no_qkv_bias": (
        "ViTMAEForPreTraining",
        {**_SQUARE, **_DECODER, "norm_pix_loss": True, "qkv_bias": False},
        None,
    ),
    # Windows fill the maps; they don't, in the first stage and in the second.
    "swin_classifier": ("SwinForImageClassification", {**_SWIN, **_LABELS}, None),
    "swin_padded": ("SwinModel", {**_SWIN, "window_size": 4}, (19, 33)),
    "swin_odd": (
        "SwinModel",
        {**_SWIN, "qkv_bias": False, "mlp_ratio": 3.0, "hidden_act": "relu"},
        (14, 25),
    ),
    # The window is as large as the map of the second stage.
    "swin_whole": ("SwinModel", {**_SWIN, "image_size": 12}, None),
    "convnext_classifier": (
        "ConvNextForImageClassification",
        {**_CONVNEXT, **_LABELS},
        None,
    ),
    "convnext_plain": (
        "ConvNextModel",
        {**_CONVNEXT, "layer_scale_init_value": 0.0, "layer_norm_eps": 1e-3},
        None,
    ),
    "convnext_odd": ("ConvNextModel", {**_CONVNEXT, "hidden_act": "relu"}, (11, 14)),
}
OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "cls_logits": None,
    "distillation_logits": None,
}


def make_cases():
    """The cases of `write`."""
    return {name: _case(name, *case) for name, case in CASES.items()}


def _case(case, name, own, image_size):
    kind = name.partition("For")[0].removesuffix("Model")
    config = getattr(transformers, f"{kind}Config")(**own)
    model = make_model(name, config)
    size = image_size or config.image_size
    size = [size, size] if isinstance(size, int) else list(size)
    rng = np.random.default_rng(19)
    channels = config.num_channels
    images = rng.normal(size=(B, *size, channels)).astype("float32")
    given: dict[str, Any] = {"pixel_values": pixels_of(images)}
    if case == "vit_interpolated":
        given["interpolate_pos_encoding"] = True
    inputs = {"images": images}
    if kind == "ViTMAE":
        count = (size[0] // config.patch_size) * (size[1] // config.patch_size)
        noise = rng.uniform(size=(B, count)).astype("float32")
        given["noise"] = torch.from_numpy(noise)
        inputs["noise"] = noise
    with torch.no_grad():
        found = model(**given, output_hidden_states=kind == "Swin")
    return case_of(model, inputs, _outputs(kind, found))


def _outputs(kind, found):
    arrays = {}
    for key, value in found.items():
        if not isinstance(value, torch.Tensor):
            continue
        name = OUTPUTS.get(key, key)
        if kind == "ViTMAE":
            name = {"logits": "reconstruction", "mask": "hidden", "loss": "loss"}.get(
                key
            )
        if name == "pooled_output" and kind in ("ViT", "DeiT"):
            # transformers has a further layer; ours is the class token.
            value = found["last_hidden_state"][:, 0]
        if name is None:
            continue
        if name == "sequence_output" and kind == "ConvNext":
            name, value = "stage_1", value.permute(0, 2, 3, 1)
        arrays[name] = value.numpy()
    if "reshaped_hidden_states" in found and "logits" not in arrays:
        # transformers has the other stages' maps only after the merging.
        last = found["reshaped_hidden_states"][-1]
        arrays["stage_1"] = last.permute(0, 2, 3, 1).numpy()
    return arrays


if __name__ == "__main__":
    write(make_cases())
