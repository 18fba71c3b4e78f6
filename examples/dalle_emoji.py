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

import functools
import json
import time

from keras_attn import script_arguments  # isort: split

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, models, viz
from keras_attn.data.images.image_files import read_image
from keras_attn.decoding import Sample
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup
from keras_attn.viz.callbacks import CodeMaps

ROWS = 64  # Images that are computed at once.
IMAGE_SIZE = 32
NOISE = 8
STYLES = ("noto", "twemoji", "openmoji")
NUM_SHOWN = 8  # Images of a caption that are drawn.
NUM_CAPTIONS = 8  # Held-out captions that are drawn.


def parse_arguments():
    """Parses the command line."""
    parser = script_arguments.new_parser(__doc__, "runs/dalle-emoji")
    script_arguments.add_data_dir(
        parser, "emoji", "emoji.tsv and a ZIP archive for each style"
    )
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
    return script_arguments.parse(
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


def fit(model, train, held_out, folder, *, callbacks=(), seed=0, **options):
    """Trains a model that has its own loss, or reads it from its folder.

    Args:
        model: The model.
        train: Its inputs, arrays (count, …); pixels as uint8.
        held_out: The same of other examples.
        folder: Folder of the model, of the backup and of TensorBoard's logs.
        callbacks: Further callbacks.
        seed: Seed of the order.
        **options: `epochs`, `batch_size` and `learning_rate`, the highest one.

    Returns:
        The trained model.
    """
    path = folder / "model.keras"
    if path.is_file():
        return keras.saving.load_model(path)
    start = time.process_time()
    backup = BackupAndResume(folder / "backup", delete_checkpoint=False)
    order = data.shuffled_dataset(train, seed=seed, epoch=backup.epoch)
    batches = order.batch(options["batch_size"], drop_remainder=True).map(as_floats)
    others = tf.data.Dataset.from_tensor_slices(held_out).batch(100).map(as_floats)
    steps = options["epochs"] * len(batches)
    schedule = CosineWarmup(options["learning_rate"], max(1, steps // 20), steps + 1)
    model.compile(AdamW(schedule, clipnorm=1.0), jit_compile=False)
    logs = keras.callbacks.TensorBoard(folder / "logs", write_graph=False)
    model.fit(
        batches.prefetch(tf.data.AUTOTUNE),
        validation_data=others,
        epochs=options["epochs"],
        callbacks=[logs, *callbacks, backup],
        shuffle=False,
        verbose=2,
    )
    model.save(path)
    backup.delete()
    seconds = time.process_time() - start
    print(f"{folder.name}: {model.count_params():,} parameters, {seconds:.0f} s of CPU")
    return model


def as_floats(inputs):
    """The inputs, with pixels in [0, 1]."""
    return tf.nest.map_structure(
        lambda x: tf.cast(x, tf.float32) / 255 if x.dtype == tf.uint8 else x, inputs
    )


def build_dvae(image_size, seed, *, updates, width, vocabulary_size):
    """A small discrete VAE, of one code for each 4 × 4 pixels.

    As in the paper, temperature and weight of the divergence move in a first part of
    training. The weight is smaller, since a code here stands for 48 sub-pixels, not
    for 192.

    Args:
        image_size: H and W, one number.
        seed: Seed of the noise.
        updates: Number of updates of the training.
        width: Channels of the first group, and of the vector of a code.
        vocabulary_size: Number of different codes.
    """
    return models.build_dvae(
        image_size=image_size,
        vocabulary_size=vocabulary_size,
        num_groups=3,
        num_blocks=1,
        base_dim=width,
        code_dim=width,
        final_temperature=0.25,
        temperature_steps=max(1, updates // 2),
        kl_weight=1.5,
        kl_steps=max(1, updates // 50),
        seed=seed,
    )


def build_clip(tokenizer, image_size, text_length, *, width):
    """A small CLIP with a ResNet, which puts new pairs together better than a ViT.

    Args:
        tokenizer: The tokenizer of captions.
        image_size: Pixels of a side.
        text_length: Maximum number of words; the end token is one more.
        width: Of the embeddings, 32 or 64; the other widths follow from it.
    """
    text_width = width + 32
    return models.build_clip(
        "rn50",
        image_size=image_size,
        num_blocks=(1, 1),
        stem_dim=width // 2,
        num_heads=4,
        embedding_dim=width,
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=text_length + 1,
        text_num_layers=2,
        text_hidden_dim=text_width,
        text_num_heads=text_width // 32,
        text_mlp_dim=2 * text_width,
        end_token_id=tokenizer.end_token_id,
    )


def build_dalle(dvae, tokenizer, text_length, *, num_layers, width):
    """A small Transformer over the codes of a discrete VAE.

    Args:
        dvae: The discrete VAE.
        tokenizer: The tokenizer of the captions.
        text_length: Maximum number of tokens of a caption.
        num_layers: Number of blocks.
        width: Width of the blocks; a head has 32 units.
    """
    grid = dvae.get_layer("encoder_output").output.shape[1:3]
    return models.build_dalle(
        text_vocabulary_size=tokenizer.vocabulary_size,
        image_vocabulary_size=dvae.get_layer("decoder_input").vocabulary_size,
        text_length=text_length,
        grid_size=tuple(grid),
        num_layers=num_layers,
        hidden_dim=width,
        num_heads=max(1, width // 32),
        mlp_dim=4 * width,
        window_size=5,
        dropout=0.1,
    )


def dalle_inputs(dvae, images, captions, tokenizer):
    """The inputs of DALL·E: captions with padding, and the codes of their images."""
    codes = encode(dvae, images)
    token_ids = tokenizer.encode_batch(captions)
    return {
        "token_ids": token_ids,
        "padding_mask": (token_ids != tokenizer.pad_token_id).astype("int32"),
        "decoder_token_ids": codes.reshape(len(codes), -1),
    }


def outputs_of(model, inputs):
    """What a model returns; faster than `predict` for few rows."""
    parts = [
        model.predict_on_batch(inputs[begin : begin + ROWS])
        for begin in range(0, len(inputs), ROWS)
    ]
    return tf.nest.map_structure(lambda *x: np.concatenate(x), *parts)


def encode(dvae, images):
    """The codes of images uint8 (B, H, W, 3), int32 (B, h, w)."""
    return outputs_of(dvae.encode_model(), images.astype("float32") / 255)


def decoder(dvae):
    """The function from codes (B, h, w) to images (B, H, W, 3) in [0, 1]."""
    return functools.partial(outputs_of, dvae.decode_model())


def clip_inputs(images, captions, tokenizer):
    """The inputs of CLIP: images, and captions that end with the end token."""
    return {
        "images": images,
        "token_ids": tokenizer.encode_batch(captions, add_end=True),
    }


def clip_scorer(clip, tokenizer):
    """The function from images in [0, 1] and a caption to similarities (B,).

    With a list of captions it returns (B, captions).
    """
    image_encoder, text_encoder = clip.image_encoder(), clip.text_encoder()

    def score(images, caption):
        captions = [caption] if isinstance(caption, str) else caption
        token_ids = tokenizer.encode_batch(captions, add_end=True)
        texts = outputs_of(text_encoder, token_ids)
        scores = outputs_of(image_encoder, images) @ texts.T
        return scores[:, 0] if isinstance(caption, str) else scores

    return score


def candidates(dalle, decode, tokenizer, captions, count, seed):
    """Yields the images that DALL·E draws for each caption, (count, H, W, 3)."""
    for number, caption in enumerate(captions):
        found = models.generate_images(
            dalle,
            decode,
            tokenizer,
            caption,
            count,
            strategy=Sample(seed=1000 * seed + number),
            batch_size=ROWS,
        )
        yield found.images


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
