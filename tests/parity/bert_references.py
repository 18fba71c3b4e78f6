"""Tiny checkpoints of BERT and RoBERTa from transformers; see `hugging_face.py`."""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import PADDING, B, T, case_of, make_model, run_from_first_token
from write_folders import write

V, SEGMENTS, CLASSES = 29, 3, 5
SIZES = {
    "vocab_size": V,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 17,
}
ROBERTA_PADDING = 1
# Case to the class, its configuration, and arguments of `save_pretrained`.
CASES = {
    "encoder": ("Model", {}, {}),
    "encoder_tanh_gelu": ("Model", {"hidden_act": "gelu_new"}, {}),
    "encoder_sharded": ("Model", {}, {"max_shard_size": 3000}),
    "encoder_float16": ("Model", {}, {}),
    "encoder_bfloat16": ("Model", {}, {}),
    "masked_lm": ("ForMaskedLM", {}, {}),
    "pretrainer": ("ForPreTraining", {}, {}),
    "next_sentence": ("ForNextSentencePrediction", {}, {}),
    "classifier": ("ForSequenceClassification", {"num_labels": CLASSES}, {}),
    "token_classifier": ("ForTokenClassification", {"num_labels": CLASSES}, {}),
    "span_qa": ("ForQuestionAnswering", {}, {}),
}
ROBERTA_CASES = "encoder masked_lm classifier token_classifier span_qa".split()
OUTPUTS = {
    "last_hidden_state": "sequence_output",
    "pooler_output": "pooled_output",
    "prediction_logits": "masked_lm",
    "seq_relationship_logits": "next_sentence",
}


def make_cases():
    """The cases of `write`."""
    cases = {f"bert_{name}": _bert(name) for name in CASES}
    return cases | {f"roberta_{name}": _roberta(name) for name in ROBERTA_CASES}


def _bert(case):
    name, own, options = CASES[case]
    config = transformers.BertConfig(type_vocab_size=SEGMENTS, **SIZES, **own)
    model = make_model(f"Bert{name}", config)
    rng = np.random.default_rng(5)
    token_ids = rng.integers(0, V, (B, T)).astype("int32")
    segment_ids = np.sort(rng.integers(0, SEGMENTS, (B, T)), 1).astype("int32")
    saved = model
    for dtype in ("float16", "bfloat16"):
        if case.endswith(f"_{dtype}"):
            # Saved in half precision; both run in float32.
            model = model.to(getattr(torch, dtype)).float()
            saved = transformers.BertModel(config).to(getattr(torch, dtype))
            saved.load_state_dict(model.state_dict())
    found = run_from_first_token(
        model, PADDING, input_ids=token_ids, token_type_ids=segment_ids
    )
    inputs = {
        "token_ids": token_ids,
        "padding_mask": PADDING,
        "segment_ids": segment_ids,
    }
    return case_of(saved, inputs, found, OUTPUTS, **options)


def _roberta(case):
    name, own, options = CASES[case]
    config = transformers.RobertaConfig(
        type_vocab_size=1, pad_token_id=ROBERTA_PADDING, **SIZES, **own
    )
    model = make_model(f"Roberta{name}", config)
    rng = np.random.default_rng(7)
    # transformers finds positions by the id of the padding, we by the mask.
    token_ids = rng.integers(ROBERTA_PADDING + 1, V, (B, T)).astype("int32")
    token_ids[~PADDING] = ROBERTA_PADDING
    found = run_from_first_token(model, PADDING, input_ids=token_ids)
    inputs = {"token_ids": token_ids, "padding_mask": PADDING}
    return case_of(model, inputs, found, OUTPUTS, **options)


if __name__ == "__main__":
    write(make_cases())
