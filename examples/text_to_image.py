"""What the two examples of DALL·E share: three models, trained one after the other.

    discrete VAE    images -> codes -> images
    DALL·E          a caption and the codes before -> the next code
    CLIP            an image and a caption -> their similarity

Each is trained by `fit`, which validates after each epoch, resumes after a kill and
writes `model.keras`; a model that was written is read instead.

Legend: B batch, H and W pixels, h and w codes, T tokens, N candidates.
"""

import functools
import time

import keras
import numpy as np
import tensorflow as tf

from keras_attn import data, models
from keras_attn.decoding import Sample
from keras_attn.training import AdamW, BackupAndResume, CosineWarmup

ROWS = 64  # Images that are computed at once.


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


def best_of(scores, count):
    """The highest score of each `count` candidates in turn: their indices (N/count,).

    Args:
        scores: (N,), of candidates in the order in which they were sampled.
        count: A divisor of N.
    """
    groups = np.asarray(scores).reshape(-1, count)
    return groups.argmax(1) + count * np.arange(len(groups))
