"""DALL·E on emoji: pictures for names that were not in training.

    python examples/dalle_emoji.py --data-dir emoji

The folder has a table `emoji.tsv` with the columns `hexcode` and `name`, and one ZIP
archive of pictures of 64 × 64 pixels for each of three drawing styles. Pictures are
halved to 32 × 32, 8 × 8 codes of 128. A caption is the style and the name, "noto red
heart". 100 of 1,618 names are held out, in all styles; similar ones, such as "man
police officer" for "woman police officer", stay in training. For each of them DALL·E
draws 64 images in the first style, and a CLIP that was trained on the same 4,554
pictures chooses the best.

With one thread of an AMD EPYC (AVX-512, no AMX) with two cores, beside other work: 116
s of CPU time for the discrete VAE, 46 s for CLIP, 110 s for DALL·E. One seed.

What it shows (`samples.png`): outlines and colors like those of emoji, yellow for faces
and hands, blue for a police officer, and no detail that makes the thing recognizable. A
sample is nearer, in squared differences of pixels, to the picture of its name than to
another held-out picture in 65% of all pairs; 50% is chance. The training picture that
CLIP finds most similar to the name, in any style, is so in 74%, so showing that one is
better. The discrete VAE is no limit: what it makes of the pictures is nearer to its own
in 99.9%. 4,554 pictures are few, and five epochs short.
"""

import json

import cpu_settings  # noqa: F401  TensorFlow reads it when imported.
import keras
import numpy as np
from options import add_data_dir, new_parser, parse_with_smoke
from text_to_image import (
    build_clip,
    build_dalle,
    build_dvae,
    candidates,
    clip_inputs,
    clip_scorer,
    dalle_inputs,
    decoder,
    encode,
    fit,
)

from keras_attn import data, viz
from keras_attn.data.images.image_files import read_image
from keras_attn.viz.callbacks import CodeMaps

IMAGE_SIZE = 32
NOISE = 8
STYLES = ("noto", "twemoji", "openmoji")
NUM_SHOWN = 8  # Images of a caption that are drawn.
NUM_CAPTIONS = 8  # Held-out captions that are drawn.


def parse_arguments():
    """Parses the command line."""
    parser = new_parser(__doc__, "runs/dalle-emoji")
    add_data_dir(parser, "emoji", "emoji.tsv and a ZIP archive for each style")
    for name, default, text in (
        ("held-out", 100, "names that are held out, in all styles"),
        ("vocabulary", 600, "tokens of the captions"),
        ("width", 128, "width of DALL·E's blocks"),
        ("layers", 4, "blocks of DALL·E"),
        ("codes", 128, "different codes of the discrete VAE"),
        ("dvae-width", 24, "channels of the discrete VAE"),
        ("dvae-epochs", 8, "epochs of the discrete VAE"),
        ("epochs", 5, "epochs of DALL·E"),
        ("clip-epochs", 8, "epochs of CLIP"),
        ("dvae-batch-size", 8, "images per step of the discrete VAE"),
        ("batch-size", 32, "examples per step"),
        ("candidates", 64, "images that are sampled for each caption"),
        ("seed", 0, "seed of everything"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=text)
    return parse_with_smoke(
        parser,
        held_out=2,
        width=32,
        layers=2,
        codes=8,
        dvae_width=4,
        dvae_epochs=1,
        dvae_batch_size=4,
        epochs=1,
        clip_epochs=1,
        batch_size=4,
        candidates=8,
    )


def read_style(folder, style, random):
    """The pictures of a style, uint8 (B, 32, 32, 3), and their captions.

    A caption is the style and the name, such as "noto red heart". Pixels are from 25 to
    230, with noise: the density of a background that is the same everywhere has no
    bound, and a discrete VAE learns little else.
    """
    found = data.read_image_texts(
        folder / "emoji.tsv",
        folder / f"{style}.zip",
        image_column="hexcode",
        text_columns=["name"],
    )
    images, captions = [], []
    for example in found.examples:
        image = read_image(example.image_path)
        parts = image.reshape(IMAGE_SIZE, 2, IMAGE_SIZE, 2, 3)
        pixels = 25 + parts.mean((1, 3)) * 205 / 255
        pixels += random.normal(0, NOISE, pixels.shape)
        images.append(pixels.round().clip(0, 255).astype(np.uint8))
        captions.append(f"{style} {example.texts[0]}")
    return np.stack(images), captions


def as_drawn(images):
    """Images in [0, 1] with the colors of the files, for a picture."""
    return np.clip((images * 255 - 25) / 205, 0, 1)


def nearer_than_others(images, truths):
    """How often an image is nearer to its own true picture than to others' pictures.

    Args:
        images: (B, H, W, 3), one for each caption.
        truths: (B, H, W, 3), the pictures of the captions.

    Returns:
        The share of all pairs of an image and a picture that is not its own.
    """
    flat, others = images.reshape(len(images), -1), truths.reshape(len(truths), -1)
    distances = ((flat[:, None] - others[None]) ** 2).mean(-1)
    own = np.diagonal(distances)[:, None]
    return float((own < distances).sum() / (len(images) * (len(images) - 1)))


def main():
    """Trains all models, samples images for held-out names and draws the best."""
    arguments = parse_arguments()
    run_dir, seed = arguments.run_dir, arguments.seed
    run_dir.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(seed)
    random = np.random.default_rng(seed)
    styles = [read_style(arguments.data_dir, style, random) for style in STYLES]
    count = len(styles[0][1])
    is_new = np.zeros(count, bool)
    is_new[random.permutation(count)[: arguments.held_out]] = True
    images, captions = {}, {}
    for name, chosen in (("train", ~is_new), ("new", is_new)):
        images[name] = np.concatenate([x[chosen] for x, _ in styles])
        captions[name] = [
            text for _, x in styles for text in np.array(x)[chosen].tolist()
        ]
    tokenizer = data.SubwordTokenizer.train(captions["train"], arguments.vocabulary)
    length = max(
        len(tokenizer.encode(text)) for part in captions.values() for text in part
    )
    print(f"{len(images['train'])} pictures, captions of up to {length} tokens")

    sizes = {"batch_size": arguments.batch_size, "learning_rate": 1e-3, "seed": seed}
    updates = len(images["train"]) // arguments.dvae_batch_size
    shown = images["new"][:4].astype("float32") / 255
    dvae = fit(
        build_dvae(
            IMAGE_SIZE,
            seed,
            updates=arguments.dvae_epochs * updates,
            width=arguments.dvae_width,
            vocabulary_size=arguments.codes,
        ),
        images["train"],
        images["new"],
        run_dir / "dvae",
        epochs=arguments.dvae_epochs,
        callbacks=[CodeMaps(run_dir / "dvae" / "logs", shown)],
        **(sizes | {"batch_size": arguments.dvae_batch_size}),
    )
    decode = decoder(dvae)
    clip = fit(
        build_clip(tokenizer, IMAGE_SIZE, length, width=64),
        clip_inputs(images["train"], captions["train"], tokenizer),
        clip_inputs(images["new"], captions["new"], tokenizer),
        run_dir / "clip",
        epochs=arguments.clip_epochs,
        **sizes,
    )
    dalle = fit(
        build_dalle(
            dvae,
            tokenizer,
            length,
            num_layers=arguments.layers,
            width=arguments.width,
        ),
        dalle_inputs(dvae, images["train"], captions["train"], tokenizer),
        dalle_inputs(dvae, images["new"], captions["new"], tokenizer),
        run_dir / "dalle",
        epochs=arguments.epochs,
        **sizes,
    )
    score = clip_scorer(clip, tokenizer)
    # The held-out names in the first style.
    texts = captions["new"][: arguments.held_out]
    truths = images["new"][: len(texts)].astype("float32") / 255
    best = []
    for text, found in zip(
        texts,
        candidates(dalle, decode, tokenizer, texts, arguments.candidates, seed),
        strict=True,
    ):
        best.append(found[np.argsort(-score(found, text), kind="stable")[:NUM_SHOWN]])
    best = np.stack(best)
    pixels = images["train"].astype("float32") / 255
    retrieved = np.stack([pixels[score(pixels, text).argmax()] for text in texts])
    figures = {
        "best sample": nearer_than_others(best[:, 0], truths),
        "training picture chosen by CLIP": nearer_than_others(retrieved, truths),
        "discrete VAE": nearer_than_others(
            decode(encode(dvae, images["new"][: len(texts)])), truths
        ),
    }
    print("nearer to its own picture than to others' (chance: 0.5):")
    print(json.dumps(figures, indent=1))
    # The true picture first.
    rows = np.linspace(0, len(texts) - 1, min(NUM_CAPTIONS, len(texts))).astype(int)
    figure = viz.plot_generated_images(
        as_drawn(np.concatenate([truths[rows, None], best[rows]], axis=1)),
        [texts[row] for row in rows],
        title="held-out names: the picture of the style, then the best samples by CLIP",
    )
    viz.save_figure(figure, run_dir / "samples.png")
    print(f"Pictures and models: {run_dir}; tensorboard --logdir {run_dir}")


if __name__ == "__main__":
    main()
