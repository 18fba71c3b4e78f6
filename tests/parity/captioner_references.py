"""Tiny checkpoints of a ViT with a GPT-2; see `hugging_face.py`.

Images have our order of axes: channels last.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import B, case_of, make_model
from torch_models import pixels_of
from write_folders import write

T, VOCABULARY, IMAGE_SIZE = 7, 23, [14, 21]
# Case to the width of the decoder; the encoder has 12, so the second is projected.
CASES = {"captioner_equal": 12, "captioner_projected": 15}


def make_cases():
    """The cases of `write`."""
    return {name: _case(width) for name, width in CASES.items()}


def _case(width):
    encoder = transformers.ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=IMAGE_SIZE,
        patch_size=7,
    )
    decoder = transformers.GPT2Config(
        n_embd=width,
        n_layer=2,
        n_head=3,
        n_positions=19,
        vocab_size=VOCABULARY,
        bos_token_id=1,
        eos_token_id=2,
        add_cross_attention=True,
    )
    join = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs
    model = make_model("VisionEncoderDecoderModel", join(encoder, decoder))
    rng = np.random.default_rng(23)
    images = rng.normal(size=(B, *IMAGE_SIZE, 3)).astype("float32")
    token_ids = rng.integers(0, VOCABULARY, (B, T))
    with torch.no_grad():
        logits = model(
            pixel_values=pixels_of(images),
            decoder_input_ids=torch.from_numpy(token_ids),
        ).logits
    inputs = {"images": images, "decoder_token_ids": token_ids.astype("int32")}
    return case_of(model, inputs, {"logits": logits.numpy()})


if __name__ == "__main__":
    write(make_cases())
