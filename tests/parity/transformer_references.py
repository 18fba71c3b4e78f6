"""Tiny checkpoints of the Transformer from transformers; see `hugging_face.py`.

Marian is the paper's model with post-norm; Pegasus is the same with pre-norm.
"""

import numpy as np
import transformers  # pyright: ignore[reportMissingImports]  The extra `parity`.
from hugging_face import PADDING, B, case_of, make_model, run_from_first_token
from write_folders import write

V, TARGET = 29, 5
SIZES = {
    "vocab_size": V,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 20,
    "max_position_embeddings": 16,
    "activation_function": "relu",
    "scale_embedding": True,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


def make_cases():
    """The cases of `write`."""
    return {
        "transformer_post_norm": _case("Marian", "MarianMTModel"),
        "transformer_pre_norm": _case("Pegasus", "PegasusForConditionalGeneration"),
    }


def _case(family, name):
    config = getattr(transformers, f"{family}Config")(**SIZES)
    model = make_model(name, config)
    # Sinusoids are among the parameters, but not learned.
    for half in (model.model.encoder, model.model.decoder):
        half.embed_positions.weight.data.copy_(half.embed_positions.create_weight())
    rng = np.random.default_rng(5)
    token_ids = rng.integers(0, V, PADDING.shape).astype("int32")
    target = rng.integers(3, V, (B, TARGET)).astype("int32")
    found = run_from_first_token(
        model, PADDING, input_ids=token_ids, decoder_input_ids=target
    )
    inputs = {
        "token_ids": token_ids,
        "padding_mask": PADDING,
        "decoder_token_ids": target,
    }
    return case_of(model, inputs, {"logits": found["logits"]})


if __name__ == "__main__":
    write(make_cases())
