"""Tiny folders of LoRA weights that PEFT writes, with the outputs of its models.

`python tests/parity/peft_references.py` takes ten seconds and writes one folder per
case, or per case that is named, to `adapters/`, with an `expected.npz` as in
`hugging_face.py`. The base of a case is the committed checkpoint of the same name, up
to "@".

Needs PyTorch, transformers and PEFT.
"""

import sys
from typing import Any

import numpy as np
import peft  # pyright: ignore[reportMissingImports]  The extra `parity`.
import torch  # pyright: ignore[reportMissingImports]
import transformers  # pyright: ignore[reportMissingImports]
from hugging_face import run
from torch_models import pixels_of
from write_folders import CHECKPOINTS

ADAPTERS = CHECKPOINTS.parent / "adapters"
B, T, VOCABULARY = 3, 7, 29
# Case to the options of PEFT. The targets are those that PEFT takes by default, and
# fused and separate kernels, tables, convolutions, heads, several ranks and scales.
CASES: dict[str, dict[str, Any]] = {
    "bert_classifier": {"task_type": "SEQ_CLS"},
    # One kernel of ours with two ranks and scales; modules inside blocks as a whole.
    "bert_classifier@saved": {
        "task_type": "SEQ_CLS",
        "rank_pattern": {"value": 3},
        "alpha_pattern": {r"0\.attention\.self\.value$": 7, "^bert.*query": 4},
        "modules_to_save": ["LayerNorm", "1.intermediate.dense"],
    },
    "roberta_classifier": {
        "task_type": "SEQ_CLS",
        "target_modules": ["query", "value", "dense", "word_embeddings"],
        "use_rslora": True,
    },
    "gpt2_causal_lm": {
        "task_type": "CAUSAL_LM",
        "fan_in_fan_out": True,
        "target_modules": ["c_attn", "c_fc", "c_proj"],
        "rank_pattern": {"c_fc": 3},
        # The first that matches counts.
        "alpha_pattern": {"c_fc": 4, "h.1.mlp.c_fc": 2},
    },
    "vit_classifier": {
        "target_modules": ["q_proj", "v_proj", "projection"],
        "modules_to_save": ["classifier"],
    },
    "swin_classifier": {
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "fc1", "reduction"],
    },
    "clip_end_token": {
        "target_modules": ["q_proj", "v_proj", "fc2", "visual_projection"],
    },
}


def base_of(case):
    """The base of a case, a model of transformers."""
    folder = CHECKPOINTS / case.partition("@")[0]
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()


def adapted(case):
    """The base of a case with random updates and heads, a model of PEFT."""
    config = peft.LoraConfig(r=2, lora_alpha=5, **CASES[case])
    model = peft.get_peft_model(base_of(case), config).eval()
    randomize(model)
    return model


def randomize(model, seed=7):
    """Gives what trains random numbers."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for _, weight in sorted(model.named_parameters()):
            if weight.requires_grad:
                values = rng.normal(0, 0.3, weight.shape).astype("float32")
                weight.copy_(torch.from_numpy(values))


def inputs_of(model):
    """Our inputs for a model of transformers."""
    rng = np.random.default_rng(19)
    config = model.config
    images = getattr(config, "vision_config", config)
    inputs = {}
    if hasattr(images, "image_size"):
        height, width = np.broadcast_to(images.image_size, 2)
        shape = (B, height, width, images.num_channels)
        inputs["images"] = rng.normal(size=shape).astype("float32")
    if images is config and inputs:
        return inputs
    ids = rng.integers(4, VOCABULARY, (B, T)).astype("int32")
    if inputs:  # The end of a text; the ids in front of it are smaller.
        ids[:, -1] = config.text_config.eos_token_id
        return {**inputs, "token_ids": ids}
    inputs = {"token_ids": ids, "padding_mask": np.ones((B, T), "int32")}
    inputs["padding_mask"][1, 4:] = 0
    if config.model_type == "bert":
        inputs["segment_ids"] = (np.arange(T) > 3) * np.ones((B, 1), "int32")
    return inputs


def outputs_of(model, inputs):
    """Outputs of a model of transformers or PEFT, by our names."""
    named = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
    given = {named[name]: x for name, x in inputs.items() if name in named}
    if "images" not in inputs:
        return {"logits": run(model, inputs["padding_mask"], **given)["logits"]}
    given = {name: torch.from_numpy(ids).long() for name, ids in given.items()}
    with torch.no_grad():
        found = model(pixel_values=pixels_of(inputs["images"]), **given)
    if "logits" in found:
        return {"logits": found["logits"].numpy()}
    return {
        "image_embeddings": found["image_embeds"].numpy(),
        "text_embeddings": found["text_embeds"].numpy(),
    }


def make_case(case, folder):
    """Writes the folder of a case as PEFT does; returns the arrays of its outputs."""
    model = adapted(case)
    # Not the folder of this machine.
    model.peft_config["default"].base_model_name_or_path = case.partition("@")[0]
    # Or PEFT would look for the base on the network.
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink()
    inputs = inputs_of(model.base_model.model)
    return {
        **{f"input_{name}": array for name, array in inputs.items()},
        **{f"output_{k}": x for k, x in outputs_of(model, inputs).items()},
    }


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        folder = ADAPTERS / case
        np.savez_compressed(folder / "expected.npz", **make_case(case, folder))
        size = sum(file.stat().st_size for file in folder.iterdir())
        sys.stdout.write(f"{case}: {size} bytes\n")
