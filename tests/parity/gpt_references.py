"""Tiny checkpoints of OpenAI GPT and GPT-2 from transformers; see `hugging_face.py`.

Our model numbers only the real tokens, so transformers' is given these positions. It
has no pooled output; ours is that of the last real token.
"""

import numpy as np
import transformers  # pyright: ignore[reportMissingImports]  The extra `parity`.
from hugging_face import PADDING, B, T, case_of, make_model, run
from write_folders import write

V, CLASSES = 29, 5
PAD = 3
SIZES = {"vocab_size": V, "n_positions": 17, "n_embd": 12, "n_layer": 2, "n_head": 3}
# Case to the class and its configuration.
CASES = {
    "gpt_body": ("OpenAIGPTModel", {}),
    "gpt_causal_lm": ("OpenAIGPTLMHeadModel", {}),
    "gpt_classifier": ("OpenAIGPTForSequenceClassification", {"num_labels": CLASSES}),
    "gpt2_causal_lm": ("GPT2LMHeadModel", {}),
    "gpt2_inner": ("GPT2LMHeadModel", {"n_inner": 23, "activation_function": "relu"}),
    "gpt2_body": ("GPT2Model", {}),
    "gpt2_classifier": ("GPT2ForSequenceClassification", {"num_labels": CLASSES}),
    "gpt2_token_classifier": ("GPT2ForTokenClassification", {"num_labels": CLASSES}),
}


def make_cases():
    """The cases of `write`."""
    return {name: _case(*case) for name, case in CASES.items()}


def _case(name, own):
    kind = "GPT2Config" if name.startswith("GPT2") else "OpenAIGPTConfig"
    ids = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, kind)(**ids, **SIZES, **own)
    model = make_model(name, config)
    rng = np.random.default_rng(13)
    token_ids = rng.integers(PAD + 1, V, (B, T)).astype("int32")
    # transformers finds the last token of a text by the id of the padding.
    token_ids[~PADDING] = PAD
    positions = np.maximum(np.cumsum(PADDING, 1) - 1, 0)
    found = run(model, PADDING, input_ids=token_ids, position_ids=positions)
    names = {"last_hidden_state": "sequence_output"}
    if "last_hidden_state" in found:
        last = [np.flatnonzero(row)[-1] for row in PADDING]
        found["pooled_output"] = found["last_hidden_state"][range(B), last]
    inputs = {"token_ids": token_ids, "padding_mask": PADDING}
    return case_of(model, inputs, found, names)


if __name__ == "__main__":
    write(make_cases())
