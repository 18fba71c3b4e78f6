"""CLIP, its loss, DALL·E's step and its masks, each against what else computes it.

    python benchmarks/multimodal.py                  every row
    python benchmarks/multimodal.py --row "clip forward" --rounds 9
    python benchmarks/multimodal.py --memory         peak memory of the losses
    python benchmarks/multimodal.py --small --rounds 1    tiny: checks that rows run

Published sizes, random weights; see `tables.py`. "other" is what a row is compared
with: KerasHub's CLIP; the loss from the whole matrix of logits; a GPT with the blocks
of the DALL·E, which has the size of GPT-2 small, as published sizes do not fit; blocks
with a causal mask.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import steps
import tables
from tables import forward, torch_forward

KINDS = ("row", "column", "convolutional")
ROWS = {
    "clip forward": ("float32",),
    "clip loss": ("float32",),
    "siglip loss": ("float32",),
    "dalle step": ("float32",),
    **{f"{kind} mask": ("float32",) for kind in KINDS},
}
CONTESTANTS = {
    row: ("ours", "other", *(("torch",) if row == "clip forward" else ()))
    for row in ROWS
}
WIDTH = 512  # Of the embeddings of the losses.
CODES = 8192
CLIP_VOCABULARY = 49_408


class Sizes(NamedTuple):
    """Images and texts, sizes of both towers, pairs of a loss, DALL·E and its caption.

    `text_length` positions, `caption` positions, and codes of a square of side `grid`.
    """

    batch: int
    side: int
    image: dict[str, Any]
    text: dict[str, Any]
    text_length: int
    pairs: int
    blocks: dict[str, Any]
    caption: int
    grid: int


PUBLISHED = Sizes(
    batch=8,
    side=224,
    image=tables.BASE,
    text={"num_layers": 12, "num_heads": 8, "hidden_dim": 512, "mlp_dim": 2048},
    text_length=77,
    pairs=8192,
    blocks=tables.BASE,
    caption=256,
    grid=32,
)
SMALL = Sizes(
    batch=2,
    side=32,
    image=tables.TINY,
    text=tables.TINY,
    text_length=7,
    pairs=300,
    blocks=tables.TINY,
    caption=5,
    grid=12,
)


def needs(row, contestant):
    """The packages that a contestant imports."""
    if contestant == "torch":
        return "torch", "transformers"
    is_hub = row == "clip forward" and contestant == "other"
    return ("keras_hub",) if is_hub else ()


def ours(row, sizes):
    """The call of what this library computes."""
    from keras_attn import models

    if row == "clip forward":
        model = models.build_clip(
            image_size=sizes.side,
            max_sequence_length=sizes.text_length,
            embedding_dim=WIDTH,
            **sizes.image,
            **{f"text_{name}": size for name, size in sizes.text.items()},
        )
        return forward(model, pairs(sizes))
    if row.endswith("loss"):
        return loss(row, sizes)
    if row == "dalle step":
        return step(dalle(sizes).incremental(), positions(sizes))
    from keras_attn.layers import TextImageMask

    mask = TextImageMask(row.split()[0], sizes.caption, sizes.grid)
    return blocks(sizes, mask)


def keras_model(row, frozen, sizes):
    """The call of what ours is compared with; none is frozen."""
    from keras_attn import models

    if row == "clip forward":
        return hub_clip(sizes)
    if row.endswith("loss"):
        return loss(row, sizes, is_whole=True)
    if row == "dalle step":
        model = models.create(
            "gpt2_small",
            vocabulary_size=CODES,
            max_sequence_length=positions(sizes),
            **sizes.blocks,
        )
        return step(model.incremental(positions(sizes)), positions(sizes))
    return blocks(sizes)


def torch_model(row, dtype, sizes):
    """The call of CLIP of transformers, on PyTorch, eager."""
    import torch  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    config = transformers.CLIPConfig(
        projection_dim=WIDTH,
        vision_config={
            **tables.hugging_face(sizes.image),
            "image_size": sizes.side,
            "patch_size": 32,
        },
        text_config={
            **tables.hugging_face(sizes.text),
            "vocab_size": CLIP_VOCABULARY,
            "max_position_embeddings": sizes.text_length,
        },
    )
    model = transformers.CLIPModel(config)
    inputs = {name: torch.from_numpy(array) for name, array in pairs(sizes).items()}
    images = inputs["images"].permute(0, 3, 1, 2).contiguous()
    return torch_forward(
        model, input_ids=inputs["token_ids"].long(), pixel_values=images
    )


def hub_clip(sizes):
    """The call of KerasHub's CLIP."""
    import keras_hub  # pyright: ignore[reportMissingImports]

    hub = keras_hub.models

    def blocks_of(tower):
        others = {name: size for name, size in tower.items() if name != "mlp_dim"}
        return {**others, "intermediate_dim": tower["mlp_dim"]}

    model = hub.CLIPBackbone(
        hub.CLIPVisionEncoder(
            patch_size=32,
            image_shape=(sizes.side, sizes.side, 3),
            **blocks_of(sizes.image),
        ),
        hub.CLIPTextEncoder(
            vocabulary_size=CLIP_VOCABULARY,
            embedding_dim=sizes.text["hidden_dim"],
            max_sequence_length=sizes.text_length,
            **blocks_of(sizes.text),
        ),
        projection_dim=WIDTH,
    )
    return forward(model, pairs(sizes))


def pairs(sizes):
    """Images and texts that fill all positions."""
    import numpy as np

    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.side, sizes.side, 3)
    token_ids = rng.integers(1, CLIP_VOCABULARY, (sizes.batch, sizes.text_length))
    return {
        "images": rng.normal(size=shape).astype("f4"),
        "token_ids": token_ids.astype("int32"),
    }


def loss(row, sizes, is_whole=False):
    """The call of a loss and its gradients, in chunks or from the whole matrix."""
    import tensorflow as tf

    from keras_attn.losses import clip_loss, siglip_loss

    scalars = [tf.constant(1 / 0.07)]
    function = whole_clip_loss if is_whole else clip_loss
    if row == "siglip loss":
        scalars = [tf.constant(10.0), tf.constant(-10.0)]
        function = whole_siglip_loss if is_whole else siglip_loss

    @tf.function(autograph=False)
    def call(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            value: Any = function(*inputs)
        return value, tape.gradient(value, inputs)

    images, texts = (
        tf.math.l2_normalize(tf.random.stateless_normal((sizes.pairs, WIDTH), seed), 1)
        for seed in ((1, 2), (3, 4))
    )
    return lambda: call(images, texts, *scalars)


def whole_clip_loss(images, texts, scale):
    """`clip_loss` as it is usually written."""
    from keras import ops

    logits = ops.matmul(scale * images, ops.transpose(texts))
    own = ops.arange(logits.shape[0])
    return sum(
        ops.mean(ops.sparse_categorical_crossentropy(own, scores, from_logits=True)) / 2
        for scores in (logits, ops.transpose(logits))
    )


def whole_siglip_loss(images, texts, scale, bias):
    """`siglip_loss` as it is usually written."""
    from keras import ops

    logits = ops.matmul(scale * images, ops.transpose(texts)) + bias
    signs = 2 * ops.eye(logits.shape[0]) - 1
    return ops.sum(ops.softplus(-signs * logits)) / logits.shape[0]


def positions(sizes):
    """Positions of a caption and an image."""
    return sizes.caption + sizes.grid**2


def dalle(sizes):
    """A DALL·E with the blocks of GPT-2 small."""
    from keras_attn import models

    return models.build_dalle(
        text_length=sizes.caption, grid_size=sizes.grid, **sizes.blocks
    )


def step(pair, length):
    """The call of one step with a half-filled cache, as in `generate` on a CPU."""
    import tensorflow as tf

    specs = {x.name: (tuple(x.shape), x.dtype) for x in pair.step.inputs}
    state = {k: tf.constant(v) for k, v in steps.state_at(specs, length).items()}
    compiled = tf.function(pair.step, autograph=False)
    return lambda: compiled(state)["logits"].numpy()


def blocks(sizes, mask=None):
    """The call of four blocks with this mask, which is computed once, or a causal one.

    One row of a caption and an image, all positions.
    """
    import keras

    from keras_attn.layers import TransformerDecoderBlock

    length = positions(sizes)
    width, heads = sizes.blocks["hidden_dim"], sizes.blocks["num_heads"]
    inputs = hidden = keras.Input((length, width))
    # As in DALL·E, computed from the inputs: a constant would be optimized away.
    where = keras.ops.cumsum(keras.ops.ones_like(inputs[:1, :, 0], "int32"), axis=1) - 1
    attention_mask = None if mask is None else mask(where, where)
    for _ in range(4):
        block = TransformerDecoderBlock(
            heads, sizes.blocks["mlp_dim"], norm_first=True, activation="gelu_tanh"
        )
        hidden = block(hidden, attention_mask=attention_mask)
    return forward(keras.Model(inputs, hidden), keras.random.normal((1, length, width)))


def print_memory(is_small):
    """Prints by how much each loss adds to the memory of a process of its own."""
    print("| work | in chunks | whole | whole / in chunks |\n|---|---|---|---|")
    for row in ("clip loss", "siglip loss"):
        added = {}
        for name in ("ours", "other"):
            command = [sys.executable, __file__, "--peak", row, name]
            command += ["--small"] if is_small else []
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            added[name] = int(done.stdout)
        found, whole = added["ours"] / 1e6, added["other"] / 1e6
        ratio = whole / max(found, 0.1)
        print(f"| {row} | {found:.0f} MB | {whole:.0f} MB | {ratio:.1f} |", flush=True)


def serve_peak(row, contestant, sizes):
    """Child process: prints the bytes that the loss adds to the peak, without inputs.

    The loss and its gradients were computed before for few pairs, so that the code is
    loaded.
    """

    def status(field):
        text = Path("/proc/self/status").read_text()
        return int(text.split(f"{field}:")[1].split()[0]) * 1024

    def call_of(sizes):
        return loss(row, sizes, is_whole=contestant == "other")

    call_of(SMALL)()
    call = call_of(sizes)
    before = status("VmRSS")
    result = call()
    print(max(status("VmHWM") - before, 0))
    del result


def main():
    """Prints a row of the table for each row and precision."""
    parser = tables.new_parser(__doc__, ROWS)
    parser.add_argument("--memory", action="store_true", help="peak of the losses")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if arguments.peak:
        row, contestant = arguments.peak
        serve_peak(row, contestant, SMALL if arguments.small else PUBLISHED)
    elif arguments.memory:
        print_memory(arguments.small)
    else:
        tables.run(sys.modules[__name__], arguments)


if __name__ == "__main__":
    main()
