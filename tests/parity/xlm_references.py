"""Tiny checkpoints of XLM from transformers; see `hugging_face.py`."""

import numpy as np
import transformers  # pyright: ignore[reportMissingImports]  The extra `parity`.
from hugging_face import PADDING, B, T, case_of, make_model, run_from_first_token
from write_folders import write

V, LANGUAGES, CLASSES = 29, 5, 7
SIZES = {
    "vocab_size": V,
    "emb_dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "n_langs": LANGUAGES,
    "max_position_embeddings": 17,
}
# Case to the class and its configuration.
CASES = {
    "encoder": ("Model", {}),
    "encoder_positions": ("Model", {"gelu_activation": False}),
    "masked_lm": ("WithLMHeadModel", {}),
    "classifier": ("ForSequenceClassification", {"num_labels": CLASSES}),
    "token_classifier": ("ForTokenClassification", {"num_labels": CLASSES}),
    "span_qa": ("ForQuestionAnsweringSimple", {}),
}


def make_cases():
    """The cases of `write`."""
    return {f"xlm_{case}": _case(case) for case in CASES}


def _case(case):
    name, own = CASES[case]
    model = make_model(f"XLM{name}", transformers.XLMConfig(**SIZES, **own))
    rng = np.random.default_rng(5)
    inputs = {
        "token_ids": rng.integers(0, V, (B, T)).astype("int32"),
        # Each row has one language after the other, as a text and its translation.
        "language_ids": np.sort(rng.integers(0, LANGUAGES, (B, T)), 1).astype("int32"),
    }
    theirs = {"input_ids": inputs["token_ids"], "langs": inputs["language_ids"]}
    if case.endswith("_positions"):
        # The positions of the translation start at 0 again.
        positions = np.tile(np.r_[np.arange(6), np.arange(T - 6)], (B, 1))
        inputs["position_ids"] = positions.astype("int32")
        theirs["position_ids"] = positions
    found = run_from_first_token(model, PADDING, **theirs)
    if name == "Model":
        sequence, first = found["last_hidden_state"], PADDING.argmax(1)
        found = {
            "sequence_output": sequence,
            "pooled_output": sequence[np.arange(B), first],
        }
    return case_of(model, {**inputs, "padding_mask": PADDING}, found)


if __name__ == "__main__":
    write(make_cases())
