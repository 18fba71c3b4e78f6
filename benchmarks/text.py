"""BERT and GPT-2 against KerasHub and transformers: forward, training, generation.

    python benchmarks/text.py                      every row, about 20 minutes
    python benchmarks/text.py --row "bert forward" --rounds 7
    python benchmarks/text.py --memory             peak of generating 1,024 tokens
    python benchmarks/text.py --small --rounds 1   tiny models: checks that rows run

Published sizes, random weights, the same shapes for all; see `tables.py`.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import tables
from tables import forward, keras_training, torch_forward, torch_training

# Precisions of each row.
ROWS = {
    "bert forward": ("float32", "bfloat16"),
    "bert frozen": ("bfloat16",),
    "bert training": ("float32", "mixed_bfloat16"),
    "gpt2 forward": ("float32",),
    "gpt2 generation": ("float32",),
}
# Contestants of each row. "frozen": KerasHub's model takes part both unchanged and
# frozen.
CONTESTANTS: dict[str, tuple[str, ...]] = {
    row: ("ours", "keras-hub", "torch")
    + (("keras-hub frozen",) if "frozen" in row else ())
    for row in ROWS
}
# "onnx" and "litert": the runner of `export.decoder`; "int8": `model.quantize("int8")`;
# "lookup": `generate(..., speculation=PromptLookup())`, whose guesses random weights,
# which repeat themselves, make nearly all right.
CONTESTANTS["gpt2 generation"] += (
    "ours lookup",
    "ours onnx",
    "ours onnx int8",
    "ours litert",
    "genai",
)
_RUNTIMES = {
    "lookup": (),
    "onnx": ("tf2onnx", "onnxruntime"),
    "litert": ("ai_edge_litert",),
}
BERT_VOCABULARY, GPT2_VOCABULARY = 30_522, 50_257


class Sizes(NamedTuple):
    """Sizes of the blocks; sequences and tokens; tokens of a prompt, and new ones."""

    blocks: dict[str, Any]
    bert: tuple[int, int]
    gpt2: tuple[int, int]
    prompt: int
    new: int


PUBLISHED = Sizes(tables.BASE, bert=(8, 128), gpt2=(4, 256), prompt=32, new=64)
SMALL = Sizes(tables.TINY, bert=(2, 8), gpt2=(2, 8), prompt=3, new=4)


def needs(row, contestant):
    """The packages that a contestant imports."""
    if contestant == "torch":
        return "torch", "transformers"
    if contestant == "genai":
        return "onnx", "onnxruntime_genai"
    if contestant.startswith("ours "):
        return _RUNTIMES[contestant.split()[1]]
    return ("keras_hub",) if contestant.startswith("keras-hub") else ()


def ours(row, sizes, runtime=None, kernels=None):
    """The call of our model.

    Args:
        row: The row.
        sizes: The sizes.
        runtime: For generation: the `runtime` of `export.decoder`, or "lookup".
        kernels: For generation: `"int8"`, or None for floats.
    """
    import numpy as np

    from keras_attn import export, models
    from keras_attn.decoding import PromptLookup, generate
    from keras_attn.training import AdamW

    if row.startswith("bert"):
        inputs = bert_inputs(*sizes.bert)
        model = models.create("bert_base", **sizes.blocks)
        if row != "bert training":
            return forward(model, inputs, frozen=row == "bert frozen")
        classifier = models.build_bert_classifier(model, num_classes=2)
        return keras_training(AdamW, classifier, inputs)
    model = models.create("gpt2_small", **sizes.blocks)
    if row == "gpt2 forward":
        inputs = gpt2_inputs(*sizes.gpt2)
        return forward(model, inputs)
    if kernels is not None:
        model.quantize(kernels)
    prompt = {"token_ids": np.ones((1, sizes.prompt), "int32")}
    if runtime is None:
        return lambda: generate(model, prompt, sizes.new)
    if runtime == "lookup":
        guesses = PromptLookup()
        return lambda: generate(model, prompt, sizes.new, speculation=guesses)
    length, folder = sizes.prompt + sizes.new, temporary_folder()
    runner = export.decoder(model, runtime, max_length=length, cache_dir=folder)
    return lambda: generate(runner, prompt, sizes.new)


def genai_model(sizes):
    """The call of ONNX Runtime GenAI's GPT-2, for generation."""
    import genai

    folder = temporary_folder()
    genai.write(folder, sizes.blocks)
    return genai.generation(folder, sizes.prompt, sizes.new)


def temporary_folder():
    """A folder that is removed at the end: random weights are of no use later."""
    folder = tempfile.mkdtemp(prefix="generation-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def keras_model(row, frozen, sizes):
    """The call of KerasHub's model."""
    import keras
    import keras_hub  # pyright: ignore[reportMissingImports]

    hub = keras_hub.models
    blocks = {**sizes.blocks, "intermediate_dim": sizes.blocks["mlp_dim"]}
    del blocks["mlp_dim"]
    if row.startswith("bert"):
        inputs = bert_inputs(*sizes.bert)
        backbone = hub.BertBackbone(vocabulary_size=BERT_VOCABULARY, **blocks)
        if row != "bert training":
            return forward(backbone, inputs, frozen)
        classifier = hub.BertTextClassifier(backbone, num_classes=2)
        return keras_training(keras.optimizers.AdamW, classifier, inputs)
    backbone = hub.GPT2Backbone(
        vocabulary_size=GPT2_VOCABULARY, max_sequence_length=1024, **blocks
    )
    model = hub.GPT2CausalLM(backbone)
    if row == "gpt2 forward":
        inputs = gpt2_inputs(*sizes.gpt2)
        return forward(model, inputs)
    model.compile(sampler="greedy")
    prompt = gpt2_inputs(1, sizes.prompt + sizes.new)
    prompt["padding_mask"][:, sizes.prompt :] = False
    return lambda: model.generate(prompt, stop_token_ids=None)


def torch_model(row, dtype, sizes):
    """The call of the model of transformers, on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    if row.startswith("bert"):
        token_ids = torch.from_numpy(bert_inputs(*sizes.bert)["token_ids"]).long()
        mask = torch.ones_like(token_ids)
        config = transformers.BertConfig(**tables.hugging_face(sizes.blocks))
        if row != "bert training":
            model = transformers.BertModel(config).to(getattr(torch, dtype))
            return torch_forward(model, token_ids, attention_mask=mask)
        model = transformers.BertForSequenceClassification(config)
        labels = torch.zeros(len(token_ids), dtype=torch.long)
        inputs = {"input_ids": token_ids, "attention_mask": mask, "labels": labels}
        return torch_training(model, inputs, dtype)
    config = transformers.GPT2Config(
        n_layer=sizes.blocks["num_layers"],
        n_head=sizes.blocks["num_heads"],
        n_embd=sizes.blocks["hidden_dim"],
        n_inner=sizes.blocks["mlp_dim"],
    )
    model = transformers.GPT2LMHeadModel(config).eval()
    if row == "gpt2 forward":
        token_ids = torch.from_numpy(gpt2_inputs(*sizes.gpt2)["token_ids"]).long()
        return torch_forward(model, token_ids)
    prompt = torch.ones((1, sizes.prompt), dtype=torch.long)
    return lambda: model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=sizes.new,
        min_new_tokens=sizes.new,
        do_sample=False,
        pad_token_id=0,
    )


def bert_inputs(rows, length):
    """Sequences of full length, as the inputs of Keras models."""
    import numpy as np

    token_ids = np.random.default_rng(0).integers(1, BERT_VOCABULARY, (rows, length))
    return {
        "token_ids": token_ids.astype("int32"),
        "padding_mask": np.ones((rows, length), bool),
        "segment_ids": np.zeros((rows, length), "int32"),
    }


def gpt2_inputs(rows, length):
    """Sequences of full length, as the inputs of Keras models."""
    import numpy as np

    token_ids = np.random.default_rng(0).integers(1, GPT2_VOCABULARY, (rows, length))
    return {
        "token_ids": token_ids.astype("int32"),
        "padding_mask": np.ones((rows, length), bool),
    }


def peak_memory():
    """Prints the memory of a process that generates 1,024 tokens, at published sizes.

    Creating a model allocates memory for random numbers that TensorFlow keeps, so this
    is reported apart from what generation adds.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import generate

    def status(field):
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024

    # Excludes the memory of TensorFlow and of its first compiled loop.
    tiny = models.create("gpt2_small", num_layers=1, hidden_dim=64, num_heads=1)
    prompt = {"token_ids": np.ones((1, PUBLISHED.prompt), "int32")}
    generate(tiny, prompt, 8)
    before = status("VmRSS")
    model = models.create("gpt2_small")
    created = status("VmRSS") - before
    generate(model, prompt, 1024 - PUBLISHED.prompt)
    peak = status("VmHWM") - before
    plan = models.plan("gpt2_small", sequence=1024)
    weights, cache = plan.weights, plan.cache or 0
    of_both = f"% of weights and cache, {(weights + cache) / 1e6:.0f} MB"
    for what, size in (
        ("creating the model, and generation", peak),
        ("the model's weights, and what generation adds", weights + peak - created),
    ):
        more = 100 * (size / (weights + cache) - 1)
        print(f"{what}: {size / 1e6:.0f} MB, {more:+.1f} {of_both}")


def main():
    """Prints a row of the table for each row and precision."""
    parser = tables.new_parser(__doc__, ROWS)
    parser.add_argument("--memory", action="store_true", help="peak of generation")
    arguments = parser.parse_args()
    if arguments.memory:
        peak_memory()
        return
    tables.run(sys.modules[__name__], arguments)


if __name__ == "__main__":
    main()
