"""Searches any folder of pictures by words, in Keras and in every runtime.

    python examples/search_pictures.py photos "a red heart" --model CLIP
    python examples/search_pictures.py photos "a red heart" --model CLIP --runtime onnx

CLIP is the folder of a CLIP or a SigLIP with its tokenizer and its preprocessing, of
transformers or open_clip, or one that `clip_emoji.py` trained. `photos` may also be a
ZIP archive. What the model computes from the pictures is kept in an index, so that the
next search reads only new and changed pictures, in any runtime: they differ by less
than 1e-4, and the index is made again for a different model. `keras-attn search` does
the same in Keras.

Each runtime exports both towers once, into `--folder`. The SavedModel takes texts, and
like the ONNX file pictures of any size, as they are in files. LiteRT takes one size, so
pictures are prepared before it. Needs `pip install ".[text,export]"`.

Results with the small CLIP of `clip_emoji.py` on the 1,618 pictures of `noto.zip`, for
"red heart", on one thread of an AMD EPYC (AVX-512 and VNNI, no AMX) with two cores,
beside other work:

    runtime      both towers   from Keras   loading, with export   reading
    keras                                          9 s               25 s
    saved_model                  6.0e-8           14 s                9 s
    litert          8.4 MB       1.2e-7           17 s               18 s
    onnx            8.6 MB       8.2e-8           19 s               10 s

All find the same two pictures, with the same scores in three digits. "From Keras" is
the error of the text tower. LiteRT and Keras prepare pictures outside of the graph.
"""

import hashlib
import json
import time
from pathlib import Path

from keras_attn import script_arguments  # isort: split

import numpy as np

from keras_attn import data, models
from keras_attn.export import export, load_runner
from keras_attn.files.writing import write_atomically

# Runtime, and suffix of the exported files.
RUNTIMES = {"keras": None, "saved_model": "", "litert": ".tflite", "onnx": ".onnx"}
TOWERS = ("images", "texts")
# Texts on which exported models are compared with Keras: more realistic than noise.
SAMPLES = ["a photo of a red heart", "two cats on a couch", "the sea at night"]


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__)
    parser.add_argument("pictures", type=Path, help="folder or ZIP archive of pictures")
    parser.add_argument("query", nargs="+", help="what to search for; quote each")
    parser.add_argument("--model", type=Path, required=True, help="folder of a CLIP")
    parser.add_argument("--count", type=int, default=5, help="pictures to show")
    parser.add_argument(
        "--runtime", default="keras", choices=RUNTIMES, help="runtime of the model"
    )
    parser.add_argument("--index", type=Path, help="file of the index")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/search-pictures"), help="for exports"
    )
    return parser.parse_args()


def make_encoders(runtime, checkpoint, folder):
    """Two functions: from pictures and from texts to embeddings of length 1, (N, E).

    Args:
        runtime: A key of `RUNTIMES`.
        checkpoint: Folder of the model, its tokenizer and its preprocessing.
        folder: Folder of exported models.
    """
    tokenizer = data.load_text_tokenizer(checkpoint)
    if runtime == "keras":
        clip = models.load_checkpoint(checkpoint)
        return models.picture_encoder(clip), models.caption_encoder(clip, tokenizer)
    # One set of files per checkpoint, until that changes.
    status = [(file.name, file.stat().st_mtime_ns) for file in checkpoint.iterdir()]
    state = repr((str(checkpoint.resolve()), sorted(status))).encode()
    folder = folder / hashlib.sha256(state).hexdigest()[:8]
    paths = {tower: folder / f"{tower}{RUNTIMES[runtime]}" for tower in TOWERS}
    about = folder / f"{runtime}.json"
    if not about.exists():
        export_towers(checkpoint, tokenizer, runtime, paths, about)
    settings = json.loads(about.read_text("utf-8"))
    images, texts = (load_runner(paths[tower]) for tower in TOWERS)

    def embed_pictures(pictures):
        found = []
        for picture in pictures:  # One by one: they differ in size.
            prepared = picture[None]
            if runtime == "litert":
                prepared = np.array(prepare(prepared))
            found += images({"images": prepared}).values()
        return np.concatenate(found)

    def embed_texts(captions):
        if runtime == "saved_model":
            (found,) = texts({"text": captions}).values()
            return found
        # Not truncated: the runner rejects a caption that is too long.
        length = settings["text_length"]
        encoded = tokenizer.encode_batch(
            captions,
            max_length=length or 2**31 - 1,
            pad_to_max_length=length is not None,
        )
        (found,) = texts({"token_ids": encoded["token_ids"]}).values()
        return found

    prepare = models.image_preprocessing(settings["preprocessing"])
    return embed_pictures, embed_texts


def export_towers(checkpoint, tokenizer, runtime, paths, about):
    """Exports both towers, and writes what is needed besides them, last."""
    clip = models.load_checkpoint(checkpoint)
    encoder = clip.image_encoder()
    if runtime != "litert":
        encoder = models.with_preprocessing(encoder, models.image_preprocessing(clip))
    # SigLIP attends to the padding, and was trained with all of it.
    is_siglip = clip.similarity.logit_bias is not None
    positions = clip.get_layer("text_position_embedding").max_sequence_length
    length = positions if is_siglip else None
    about.parent.mkdir(parents=True, exist_ok=True)
    print(export(encoder, paths["images"]))
    tower = clip.text_encoder()
    if runtime == "saved_model":
        print(
            export(
                tower,
                paths["texts"],
                tokenizer=tokenizer,
                sequence_length=length,
                sample_inputs=SAMPLES,
            )
        )
    else:
        encoded = tokenizer.encode_batch(
            SAMPLES, max_length=positions, pad_to_max_length=is_siglip
        )
        samples = {"token_ids": encoded["token_ids"]}
        print(export(tower, paths["texts"], sample_inputs=samples))
    settings = {"preprocessing": clip.preprocessing, "text_length": length}
    write_atomically(about, json.dumps(settings).encode())


def main():
    """Indexes the pictures, and prints those that fit each text best."""
    arguments = parse_arguments()
    start = time.perf_counter()
    encoders = make_encoders(arguments.runtime, arguments.model, arguments.folder)
    embed_pictures, embed_texts = encoders
    queries = embed_texts(arguments.query)
    loaded = time.perf_counter()
    file = arguments.index or data.default_index_file(arguments.pictures)
    index = data.index_pictures(arguments.pictures, embed_pictures, file)
    seconds = time.perf_counter() - loaded
    print(
        f"{arguments.runtime}: loaded in {loaded - start:.1f} s; {len(index)} "
        f"pictures, {index.num_embedded} of them read in {seconds:.1f} s"
    )
    for name, reason in index.skipped.items():
        print(f"left out {name}: {reason}")
    for query, embedding in zip(arguments.query, queries, strict=True):
        print(f"\n{query}")
        for name, score in index.search(embedding, arguments.count):
            print(f"{score:.3f}  {arguments.pictures / name}")


if __name__ == "__main__":
    main()
