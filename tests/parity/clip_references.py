"""Tiny checkpoints of CLIP and SigLIP; see `hugging_face.py`.

Arrays have our order of axes: channels last.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import case_of, make_model
from torch_models import pixels_of
from write_folders import write

B, T, VOCABULARY = 4, 11, 97
# With a larger id, and in some rows again after its first position.
END = 61
_TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 21,
    "intermediate_size": 37,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "max_position_embeddings": 13,
}
_IMAGE = {
    "hidden_size": 10,
    "intermediate_size": 23,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "image_size": 21,
    "patch_size": 7,
}
_PROJECTED = {"projection_dim": 17}
_GELU = {"hidden_act": "gelu", "layer_norm_eps": 1e-4}
# Case to the kind of model, and the configurations of it, its text and its images.
CASES = {
    "clip_largest_id": (
        "CLIP",
        _PROJECTED,
        {**_TEXT, **_PROJECTED, "eos_token_id": 2},
        {**_IMAGE, **_PROJECTED},
    ),
    "clip_end_token": (
        "CLIP",
        _PROJECTED,
        {**_TEXT, **_PROJECTED, **_GELU, "eos_token_id": END},
        {**_IMAGE, **_PROJECTED, **_GELU, "num_channels": 1},
    ),
    "siglip_plain": ("Siglip", {}, {**_TEXT, "projection_size": 10}, _IMAGE),
}


def make_cases():
    """The cases of `write`."""
    return {name: _case(*case) for name, case in CASES.items()}


def token_ids():
    """Rows that end early, twice and at the last position, all after larger ids."""
    ids = np.random.default_rng(3).integers(3, VOCABULARY, (B, T)).astype("int32")
    ids[ids == END] = END + 1
    for row, ends in enumerate(([4], [6, 8], [T - 1], [2, 3, 4, 5])):
        ids[row, ends] = END
    return ids


def _case(kind, own, text, image):
    configs = {"text_config": text, "vision_config": image}
    config = getattr(transformers, f"{kind}Config")(**configs, **own)
    model = make_model(f"{kind}Model", config)
    rng = np.random.default_rng(19)
    size, channels = image["image_size"], image.get("num_channels", 3)
    images = rng.normal(size=(B, size, size, channels)).astype("float32")
    ids = token_ids()
    with torch.no_grad():
        found = model(
            pixel_values=pixels_of(images),
            input_ids=torch.from_numpy(ids).long(),
            return_loss=True,
        )
    outputs = {
        "image_embeddings": found.image_embeds.numpy(),
        "text_embeddings": found.text_embeds.numpy(),
        "logits": found.logits_per_image.numpy(),
        "loss": found.loss.numpy(),
    }
    return case_of(model, {"images": images, "token_ids": ids}, outputs)


if __name__ == "__main__":
    write(make_cases())
