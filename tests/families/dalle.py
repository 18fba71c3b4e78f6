"""DALL·E's Transformer."""

import numpy as np
from model_family import BLOCKS, D, Graph, V, dense

from keras_attn.models.dalle import VARIANTS

GRID = (3, 5)
TEXT = 13
TINY = {
    **{name: size for name, size in BLOCKS.items() if name != "vocabulary_size"},
    # Rows, a column, rows, and the convolutional block.
    "num_layers": 4,
    "text_vocabulary_size": V,
    "image_vocabulary_size": 23,
    "text_length": TEXT,
    "grid_size": GRID,
    "window_size": 3,
}


def dalle(width, layers, text, words, codes, rows, columns):
    attention = 4 * dense(width, width)
    network = dense(width, 4 * width) + dense(4 * width, width)
    blocks = layers * (attention + network + 2 * 2 * width)
    # Words, padding and positions of the text; codes, rows and columns of the image.
    embeddings = (words + 2 * text + codes + rows + columns) * width
    return embeddings + blocks + 2 * width + (words + codes) * width


def reference(model, inputs):
    """The paper's equations, one example and one query at a time."""
    weights = {weight.path: np.asarray(weight.value) for weight in model.weights}
    found = {"text_logits": [], "image_logits": []}
    for token_ids, mask, codes in zip(
        *(inputs[name] for name in ("token_ids", "padding_mask", "decoder_token_ids")),
        strict=True,
    ):
        hidden = _embed(weights, token_ids[mask], codes)
        for index in range(TINY["num_layers"]):
            hidden = _block(weights, f"block_{index}", index, hidden)
        hidden = _norm(weights, "final_norm", hidden)
        # Position p predicts token p + 1; padding repeats the last word before it.
        place = np.maximum(np.cumsum(mask) - 1, 0)
        found["text_logits"].append(hidden[place] @ weights["text_logits/kernel"])
        image = hidden[TEXT - 1 : TEXT - 1 + len(codes)]
        found["image_logits"].append(image @ weights["image_logits/kernel"])
    return {name: np.stack(logits) for name, logits in found.items()}


def _embed(weights, words, codes):
    caption, image = "caption_embedding/", "image_embedding/"
    rows = []
    for p in range(TEXT):
        if p < len(words):
            word = weights[caption + "token_embeddings"][words[p]]
        else:
            word = weights[caption + "padding_embeddings"][p]
        rows.append(word + weights[caption + "position_embeddings"][p])
    for p, code in enumerate(codes):
        row, column = divmod(p, GRID[1])
        rows.append(
            weights[image + "code_embeddings"][code]
            + weights[image + "row_embeddings"][row]
            + weights[image + "column_embeddings"][column]
        )
    return np.stack(rows)


def sees(kind, query, key, columns, reach):
    """Whether a code attends to a code, by their positions in raster order."""
    (row, column), (key_row, key_column) = divmod(query, columns), divmod(key, columns)
    if key > query:
        return False
    if kind == "row":  # Itself and as many codes before it as a row has.
        return query - key <= columns
    if kind == "column":
        return column == key_column
    return abs(row - key_row) <= reach and abs(column - key_column) <= reach


def _attended(index, query, length):
    """The positions that a query of a block attends to."""
    last = index == TINY["num_layers"] - 1
    kind = "window" if last else "column" if (index + 1) % 4 == 2 else "row"
    if query < TEXT:
        return list(range(query + 1))
    inside = [
        TEXT + key
        for key in range(length - TEXT)
        if sees(kind, query - TEXT, key, GRID[1], TINY["window_size"] // 2)
    ]
    return [*range(TEXT), *inside]


def _block(weights, name, index, hidden):
    heads = TINY["num_heads"]
    size = D // heads
    own = f"{name}/self_attention"
    normed = _norm(weights, f"{name}/self_attention_norm", hidden)
    fused = normed @ weights[f"{own}/query_key_value/kernel"]
    fused = (fused + weights[f"{own}/query_key_value/bias"]).reshape(-1, 3, heads, size)
    attended = np.zeros((len(hidden), heads, size))
    for query in range(len(hidden)):
        keys = _attended(index, query, len(hidden))
        for head in range(heads):
            scores = fused[keys, 1, head] @ fused[query, 0, head] / np.sqrt(size)
            scores = np.exp(scores - scores.max())
            attended[query, head] = scores / scores.sum() @ fused[keys, 2, head]
    merged = attended.reshape(len(hidden), -1)
    hidden = hidden + merged @ weights[f"{own}/output/kernel"]
    hidden = hidden + weights[f"{own}/output/bias"]
    inner = _norm(weights, f"{name}/feed_forward_norm", hidden)
    for layer in ("expand", "contract"):
        inner = inner @ weights[f"{name}/feed_forward/{layer}/kernel"]
        inner = inner + weights[f"{name}/feed_forward/{layer}/bias"]
        if layer == "expand":
            cubic = np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)
            inner = inner / 2 * (1 + np.tanh(cubic))
    return hidden + inner


def _norm(weights, name, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


GRAPHS = [
    Graph(
        "dalle_12b",
        TINY,
        {
            "dalle_12b": dalle(3968, 64, 256, 16_384, 8192, 32, 32),
            "dalle_small": dalle(128, 4, 32, 600, 128, 8, 8),
        },
        layers={name: row["num_layers"] for name, row in VARIANTS.items()},
        # `test_one_seed_gives_the_same_codes_in_every_runtime` exports it.
        pairs=(),
        reference=reference,
    )
]
