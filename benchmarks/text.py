"""BERT and GPT-2 against KerasHub and transformers: forward, training, generation.

    python benchmarks/text.py                      every row, some twenty minutes
    python benchmarks/text.py --row "bert forward" --rounds 7
    python benchmarks/text.py --memory             peak of generating 1,024 tokens

Published sizes, random weights, the same shapes for all; `interleaved.py` says how.
Needs the extra `parity` and `pip install keras-hub==0.32.0`. What came out is in
`RESULTS.md`.
"""

import argparse
import os
from pathlib import Path

import interleaved

CONTESTANTS = ("ours", "keras-hub", "torch")
# Where ours is frozen KerasHub's is as it comes, and frozen by ours as well.
FROZEN = (*CONTESTANTS, "keras-hub frozen")
# Row to its precisions.
ROWS = {
    "bert forward": ("float32", "bfloat16"),
    "bert frozen": ("bfloat16",),
    "bert training": ("float32", "mixed_bfloat16"),
    "gpt2 forward": ("float32",),
    "gpt2 generation": ("float32",),
}
BERT, GPT2 = (8, 128), (4, 256)  # Rows, tokens.
PROMPT, NEW = 32, 64
BERT_VOCABULARY, GPT2_VOCABULARY = 30_522, 50_257


def ours(row):
    """A call of ours."""
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import generate
    from keras_attn.training import AdamW

    if row.startswith("bert"):
        inputs = bert_inputs()
        model = models.create("bert_base")
        if row != "bert training":
            return forward(model, inputs, frozen=row == "bert frozen")
        classifier = models.build_bert_classifier(model, num_classes=2)
        return keras_training(AdamW, classifier, inputs)
    model = models.create("gpt2_small")
    if row == "gpt2 forward":
        inputs = gpt2_inputs(*GPT2)
        return forward(model, inputs)
    prompt = {"token_ids": np.ones((1, PROMPT), "int32")}
    return lambda: generate(model, prompt, NEW)


def keras_hub(row, frozen):
    """A call of KerasHub's."""
    import keras
    import keras_hub  # pyright: ignore[reportMissingImports]

    hub = keras_hub.models
    if row.startswith("bert"):
        inputs = bert_inputs()
        backbone = hub.BertBackbone(
            vocabulary_size=BERT_VOCABULARY,
            num_layers=12,
            num_heads=12,
            hidden_dim=768,
            intermediate_dim=3072,
        )
        if row != "bert training":
            return forward(backbone, inputs, frozen)
        classifier = hub.BertTextClassifier(backbone, num_classes=2)
        return keras_training(keras.optimizers.AdamW, classifier, inputs)
    backbone = hub.GPT2Backbone(
        vocabulary_size=GPT2_VOCABULARY,
        num_layers=12,
        num_heads=12,
        hidden_dim=768,
        intermediate_dim=3072,
        max_sequence_length=1024,
    )
    model = hub.GPT2CausalLM(backbone)
    if row == "gpt2 forward":
        inputs = gpt2_inputs(*GPT2)
        return forward(model, inputs)
    model.compile(sampler="greedy")
    prompt = gpt2_inputs(1, PROMPT + NEW)
    prompt["padding_mask"][:, PROMPT:] = False
    return lambda: model.generate(prompt, stop_token_ids=None)


def torch(row, dtype):
    """A call of transformers', on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    if row.startswith("bert"):
        token_ids = torch.from_numpy(bert_inputs()["token_ids"]).long()
        mask = torch.ones_like(token_ids)
        config = transformers.BertConfig()
        if row != "bert training":
            model = transformers.BertModel(config).eval().to(getattr(torch, dtype))

            def forward():
                with torch.no_grad():
                    model(token_ids, attention_mask=mask)

            return forward
        model = transformers.BertForSequenceClassification(config).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        labels = torch.zeros(len(token_ids), dtype=torch.long)

        def step():
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled="bfloat16" in dtype):
                loss = model(token_ids, attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()

        return step
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    if row == "gpt2 forward":
        token_ids = torch.from_numpy(gpt2_inputs(*GPT2)["token_ids"]).long()

        def forward():
            with torch.no_grad():
                model(token_ids)

        return forward
    prompt = torch.ones((1, PROMPT), dtype=torch.long)
    return lambda: model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=NEW,
        min_new_tokens=NEW,
        do_sample=False,
        pad_token_id=0,
    )


def bert_inputs():
    """Sentences of full length, as Keras models take them."""
    import numpy as np

    token_ids = np.random.default_rng(0).integers(1, BERT_VOCABULARY, BERT)
    return {
        "token_ids": token_ids.astype("int32"),
        "padding_mask": np.ones(BERT, bool),
        "segment_ids": np.zeros(BERT, "int32"),
    }


def gpt2_inputs(rows, length):
    """Text of full length, as Keras models take it."""
    import numpy as np

    token_ids = np.random.default_rng(0).integers(1, GPT2_VOCABULARY, (rows, length))
    return {
        "token_ids": token_ids.astype("int32"),
        "padding_mask": np.ones((rows, length), bool),
    }


def forward(model, inputs, frozen=False):
    """A compiled call without a copy of its outputs to NumPy."""
    import tensorflow as tf

    call = tf.function(lambda tensors: model(tensors, training=False))
    if frozen:
        call = interleaved.frozen(model)
    tensors = {name: tf.constant(values) for name, values in inputs.items()}
    return lambda: call(tensors)


def keras_training(optimizer, model, inputs):
    """A step of AdamW on a classifier."""
    import keras
    import numpy as np

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer(1e-5), loss, metrics=[])
    labels = np.zeros(len(inputs["token_ids"]), "int32")
    return lambda: model.train_on_batch(inputs, labels)


def serve(who, row, dtype):
    """Child process: one contestant at one row."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if who == "torch":
        call = torch(row, dtype)
    else:
        import keras

        keras.config.set_dtype_policy(dtype)
        call = ours(row) if who == "ours" else keras_hub(row, "frozen" in who)
    interleaved.serve({row: call})


def peak_memory():
    """What a process takes while it generates 1,024 tokens.

    Of what making a model takes, its random numbers, TensorFlow keeps some for later;
    it is told apart from what generation adds.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import generate

    def status(field):
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024

    # TensorFlow's own room, and that of its first compiled loop.
    tiny = models.create("gpt2_small", num_layers=1, hidden_dim=64, num_heads=1)
    generate(tiny, {"token_ids": np.ones((1, PROMPT), "int32")}, 8)
    before = status("VmRSS")
    model = models.create("gpt2_small")
    made = status("VmRSS") - before
    generate(model, {"token_ids": np.ones((1, PROMPT), "int32")}, 1024 - PROMPT)
    peak = status("VmHWM") - before
    plan = models.plan("gpt2_small", sequence=1024)
    weights, cache = plan.weights, plan.cache or 0
    of_both = f"% of weights and cache, {(weights + cache) / 1e6:.0f} MB"
    for what, size in (
        ("the model when it is made, and generation", peak),
        ("the model's weights, and what generation adds", weights + peak - made),
    ):
        more = 100 * (size / (weights + cache) - 1)
        print(f"{what}: {size / 1e6:.0f} MB, {more:+.1f} {of_both}")


def main():
    """Prints a line of the table for each row and precision."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--row", choices=ROWS, help="this one alone")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each")
    parser.add_argument("--memory", action="store_true", help="generation's peak")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
        return
    if arguments.memory:
        peak_memory()
        return
    rows = {arguments.row: ROWS[arguments.row]} if arguments.row else ROWS
    contestants = {row: FROZEN if "frozen" in row else CONTESTANTS for row in rows}
    interleaved.print_table(__file__, rows, contestants, arguments.rounds)


if __name__ == "__main__":
    main()
