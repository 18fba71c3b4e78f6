"""Tiny checkpoints of XLNet from transformers; see `hugging_face.py`.

Masks in `input_*` are ours: True = a real token, True = attend.
"""

import numpy as np
import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import make_model
from write_folders import write

B, T, P = 5, 11, 3  # Batch, length, targets.
LATER = 3  # Length of the second segment, which has a memory.
V, C = 41, 7  # Vocabulary, classes.
SIZES = {
    "vocab_size": V,
    "d_model": 18,
    "n_layer": 2,
    "n_head": 3,
    "d_inner": 13,
    "mem_len": 5,
    "pad_token_id": 5,
}
# Rows without padding, padded left, right, in the middle, and in several positions.
PADDING = np.array(
    [
        [1] * T,
        [0] * 4 + [1] * 7,
        [1] * 6 + [0] * 5,
        [1] * 3 + [0] * 5 + [1] * 3,
        [1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0],
    ],
    bool,
)


def make_cases():
    """The cases of `write`."""
    return {
        "xlnet_encoder": _encoder(),
        "xlnet_clamped": _encoder(clamp_len=4, ff_activation="relu"),
        "xlnet_lm": _language_model(),
        "xlnet_classifier": _head("XLNetForSequenceClassification", num_labels=C),
        "xlnet_token_classifier": _head("XLNetForTokenClassification", num_labels=C),
        "xlnet_span_qa": _head("XLNetForQuestionAnsweringSimple"),
    }


def _encoder(**config):
    """`XLNetModel` on a segment, and on a second one with the memory of the first."""
    model, rng = _model("XLNetModel", **config), np.random.default_rng(3)
    arrays = _inputs(rng)
    first = model(**_theirs(arrays), use_mems=True)
    arrays["output_sequence"] = first.last_hidden_state
    _add_memory(arrays, "output_memory", first.mems)
    later = _inputs(rng, PADDING[:, -LATER:] | (np.arange(LATER) == 0))
    second = model(**_theirs(later), mems=first.mems, use_mems=True)
    arrays.update({key.replace("_", "_later_", 1): x for key, x in later.items()})
    arrays["output_later_sequence"] = second.last_hidden_state
    _add_memory(arrays, "output_later_memory", second.mems)
    return _case(model, arrays)


def _language_model():
    """`XLNetLMHeadModel`: two streams, one stream, and two streams with a memory."""
    model, rng = _model("XLNetLMHeadModel"), np.random.default_rng(5)
    arrays = _inputs(rng)
    arrays["output_content_logits"] = model(**_theirs(arrays)).logits
    # A random order of the real tokens; the last three are the targets, so that each
    # may attend to some: otherwise transformers' outputs differ from ours.
    order = np.where(PADDING, rng.random((B, T)), -1)
    targets = np.sort(np.argsort(order, 1)[:, -P:], 1)
    arrays["input_permutation_mask"] = order[:, :, None] > order[:, None, :]
    arrays["input_target_mapping"] = np.eye(T, dtype="float32")[targets]
    given = _theirs(arrays)
    result = model(**given, use_mems=True)
    arrays["output_logits"] = result.logits
    _add_memory(arrays, "output_memory", result.mems)
    arrays["output_logits_behind_memory"] = model(**given, mems=result.mems).logits
    return _case(model, arrays)


def _head(name, **config):
    model = _model(name, **config)
    arrays = _inputs(np.random.default_rng(7))
    result = model(**_theirs(arrays))
    if "Question" in name:
        arrays["output_start_logits"] = result.start_logits
        arrays["output_end_logits"] = result.end_logits
    else:
        arrays["output_logits"] = result.logits
    return _case(model, arrays)


def _model(name, **config):
    config = transformers.XLNetConfig(**{**SIZES, **config})
    return make_model(name, config, spread=0.4)


def _inputs(rng, padding=PADDING):
    shape = padding.shape
    return {
        "input_token_ids": rng.integers(0, V, shape).astype("int32"),
        "input_padding_mask": padding,
        "input_segment_ids": np.sort(rng.integers(0, 3, shape), 1).astype("int32"),
    }


def _theirs(arrays):
    """Our inputs by transformers' names."""
    given = {
        "input_ids": torch.from_numpy(arrays["input_token_ids"]).long(),
        "attention_mask": torch.from_numpy(arrays["input_padding_mask"]).float(),
        "token_type_ids": torch.from_numpy(arrays["input_segment_ids"]).long(),
    }
    if "input_permutation_mask" in arrays:
        hidden = ~arrays["input_permutation_mask"]
        given["perm_mask"] = torch.from_numpy(hidden).float()
        given["target_mapping"] = torch.from_numpy(arrays["input_target_mapping"])
    return given


def _add_memory(arrays, name, memory):
    for index, states in enumerate(memory):
        arrays[f"{name}_{index}"] = states.transpose(0, 1)


def _case(model, arrays):
    return model.save_pretrained, {
        key: x.detach().numpy() if isinstance(x, torch.Tensor) else x
        for key, x in arrays.items()
    }


if __name__ == "__main__":
    write(make_cases())
