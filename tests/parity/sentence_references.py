"""Writes tiny folders of sentence-transformers, and the vectors that it computes.

    python tests/parity/sentence_references.py

Needs sentence-transformers (written with 6.2) and transformers. Each folder shares the
model and the tokenizer of `base`; it has what the library's `save` wrote besides, and
`vectors.npy`, those of `texts.json`. The folders `old_…` have the fields of the
library's older versions, which it still reads.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
from sentence_transformers.base.modules import (  # pyright: ignore[reportMissingImports]
    Dense,
    Normalize,
    Transformer,
)
from sentence_transformers.sentence_transformer.modules import (  # pyright: ignore[reportMissingImports]
    Pooling,
)

FOLDERS = Path(__file__).parent / "sentence_folders"
TEXTS = [
    "a man is sleeping",
    "A Man runs, the dog sleeps on a mat. the cat sleeps on a mat",
    "e é .",
    "",
    "b",
]
PIECES = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a man is sleep ##ing ##s the dog run cat on mat "
    "query : passage . , é b c ##b ##c e A Man"
).split()
WIDTH, UNITS = 12, 7


def write_base(folder: Path) -> None:
    """Writes a BERT of one block, and its tokenizer."""
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("\n".join(PIECES))
    tokenizer = transformers.BertTokenizer(
        vocab=str(folder / "vocab.txt"), do_lower_case=False, model_max_length=32
    )
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").unlink()
    config = transformers.BertConfig(
        vocab_size=len(PIECES),
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=24,
        initializer_range=0.5,
    )
    transformers.BertModel(config).eval().save_pretrained(folder)


def modules_of(name: str, base: Path) -> list:
    """The modules of a folder."""
    modes = {
        "max_two_dense": "max",
        "cls_prompt": "cls",
        "last_limit": "lasttoken",
        "mean_sqrt": "mean_sqrt_len_tokens",
        "weighted": "weightedmean",
        "several": ("mean", "cls"),
    }
    modules = [Transformer(str(base)), Pooling(WIDTH, modes.get(name, "mean"))]
    if name == "max_two_dense":
        gelu = torch.nn.GELU()
        modules += [Dense(WIDTH, UNITS), Dense(UNITS, 5, False, gelu)]
    if name in ("cls_prompt", "old_mean", "weighted"):
        modules.append(Normalize())
    return modules


def write(name: str, base: Path) -> None:
    """Writes a folder and its vectors."""
    options = {}
    if name == "cls_prompt":
        prompts = {"query": "query : ", "passage": "passage : "}
        options = {"prompts": prompts, "default_prompt_name": "query"}
    model = SentenceTransformer(modules=modules_of(name, base), **options)
    if name == "last_limit":
        model.max_seq_length = 6
    folder = FOLDERS / name
    with tempfile.TemporaryDirectory() as temporary:
        model.save(temporary, create_model_card=False)
        if name == "old_mean":
            _make_old(Path(temporary))
        model = SentenceTransformer(temporary).eval()
        vectors = model.encode(TEXTS, batch_size=3)
        for file in ("model.safetensors", "config.json"):
            (Path(temporary) / file).unlink()
        if name not in ("last_limit", "old_mean"):
            (Path(temporary) / "tokenizer_config.json").unlink()
        (Path(temporary) / "tokenizer.json").unlink()
        shutil.copytree(temporary, folder)
    np.save(folder / "vectors.npy", vectors)


def _make_old(folder: Path) -> None:
    """The fields of older versions: a limit, lower case, a flag per pooling."""
    limit = {"max_seq_length": 7, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(limit))
    names = "cls_token mean_tokens max_tokens mean_sqrt_len_tokens".split()
    pooling: dict = {f"pooling_mode_{name}": name == "mean_tokens" for name in names}
    pooling["word_embedding_dimension"] = WIDTH
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").unlink()


def main() -> None:
    """Writes all folders."""
    torch.manual_seed(3)
    shutil.rmtree(FOLDERS, ignore_errors=True)
    write_base(FOLDERS / "base")
    (FOLDERS / "texts.json").write_text(json.dumps(TEXTS))
    for name in (
        "cls_prompt last_limit max_two_dense mean_sqrt old_mean several weighted"
    ).split():
        write(name, FOLDERS / "base")


if __name__ == "__main__":
    main()
