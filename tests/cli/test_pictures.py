"""`keras-attn search` and `classify`, with a tiny CLIP and a tiny SigLIP of our own."""

import os
import shutil
import zipfile

import keras
import numpy as np
import pytest
from model_cases import build, numpy, tiny
from PIL import Image

from keras_attn import models
from keras_attn.data.images.image_files import read_image

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
pytest.importorskip("sentencepiece", reason="`sentencepiece` is not installed")

from keras_attn.data import CLIPTokenizer, SentencePieceTokenizer  # noqa: E402

COLORS = {"red": (200, 10, 20), "green": (10, 220, 10), "blue": (5, 60, 190)}
TEXT = "a red heart"
PREPROCESSING = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "resample": 3,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A CLIP as a folder and as a `.keras` file; a SigLIP as a folder; and pictures."""
    folder = tmp_path_factory.mktemp("clip")
    tokenizer = CLIPTokenizer.train([TEXT, "a photo of a green sea"] * 9, 540)
    sizes = {"image_size": (32, 32), "patch_size": 16}
    size = tokenizer.vocabulary_size
    clip = build("clip_vit_base_patch32", vocabulary_size=size, **sizes)
    clip.preprocessing = PREPROCESSING
    models.save_checkpoint(clip, folder / "clip")
    tokenizer.save(folder / "clip")
    clip.save(folder / "clip.keras")
    clip.preprocessing = None
    clip.save(folder / "bare.keras")
    texts = [TEXT, "a photo of a green sea"] * 9
    tokenizer = SentencePieceTokenizer.train(texts, 40, "siglip")
    size = tokenizer.vocabulary_size
    siglip = build("siglip_base_patch16_224", vocabulary_size=size, **sizes)
    # Its probabilities would start near 0.
    siglip.similarity.logit_bias.assign(0.5)
    siglip.preprocessing = PREPROCESSING
    models.save_checkpoint(siglip, folder / "siglip")
    tokenizer.save(folder / "siglip")
    for name, color in COLORS.items():
        pixels = np.random.default_rng(1).integers(0, 60, (40, 35, 3))
        path = folder / "pictures" / f"{name} [x].png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((pixels + color).clip(0, 255).astype("uint8")).save(path)
    return folder


@pytest.fixture
def pictures(folder, tmp_path):
    return shutil.copytree(folder / "pictures", tmp_path / "pictures")


def lines_of(command):
    """Number and text of each line that was printed."""
    rows = (line.split("  ", 1) for line in command.out.splitlines())
    return [(float(number), text) for number, text in rows]


def similarities(folder, pictures, text=TEXT):
    """What must be printed, the most similar picture first."""
    clip = models.load_checkpoint(folder / "clip")
    tokenizer = CLIPTokenizer.from_folder(folder / "clip")
    files = sorted(pictures.glob("*.png"))
    embedded = models.picture_encoder(clip)([read_image(file) for file in files])
    scores = embedded @ models.caption_encoder(clip, tokenizer)([text])[0]
    order = np.argsort(-scores)
    return [(round(float(scores[row]), 3), str(files[row])) for row in order]


def test_search(command, folder, pictures):
    options = ["search", pictures, TEXT, "--model"]
    assert command(*options, folder / "clip") == 0 and command.err == ""
    expected = similarities(folder, pictures)
    assert lines_of(command) == expected
    index = pictures / ".keras-attn-search.npz"
    written = index.stat().st_mtime_ns
    # The index of the folder fits the same model in a file.
    tokenizer = ["--tokenizer", folder / "clip"]
    assert command(*options, folder / "clip.keras", *tokenizer, "--count", 1) == 0
    assert lines_of(command) == expected[:1]
    assert index.stat().st_mtime_ns == written
    (pictures / "bad.jpg").write_text("no picture")
    assert command(*options, folder / "clip") == 0
    first, *rest = command.out.splitlines()
    assert first.startswith("left out bad.jpg: bad.jpg must be a complete JPEG, PNG")
    assert len(rest) == 3


def siglip_logits(folder, files, texts):
    """Similarities and logits of pictures and texts that are padded, both (P, Q)."""
    siglip = models.load_checkpoint(folder / "siglip")
    tokenizer = SentencePieceTokenizer.from_folder(folder / "siglip", "siglip")
    ids = tokenizer.encode_batch(texts, max_length=31, pad_to_max_length=True)
    assert ids["token_ids"].shape == (len(texts), 31)
    assert (ids["token_ids"][:, -20:] == 1).all()
    images = models.picture_encoder(siglip)([read_image(file) for file in files])
    similar = images @ numpy(siglip.text_encoder()(ids["token_ids"])).T
    layer = siglip.similarity
    bias = numpy(layer.logit_bias)
    assert bias == 0.5
    return similar, np.exp(numpy(layer.logit_scale)) * similar + bias


def test_search_with_siglip(command, folder, pictures):
    options = ["search", pictures, "A red, heart!", "--model", folder / "siglip"]
    assert command(*options) == 0 and command.err == ""
    files = sorted(pictures.glob("*.png"))
    similar, _ = siglip_logits(folder, files, [TEXT])
    order = np.argsort(-similar[:, 0])
    found = lines_of(command)
    assert [name for _, name in found] == [str(files[row]) for row in order]
    np.testing.assert_allclose([x for x, _ in found], similar[order, 0], atol=5.1e-4)
    # The index is that of one model.
    index = pictures / ".keras-attn-search.npz"
    written = index.stat().st_mtime_ns
    assert command(*options) == 0 and index.stat().st_mtime_ns == written
    options[2:] = [TEXT, "--model", folder / "clip"]
    assert command(*options) == 0
    assert lines_of(command) == similarities(folder, pictures)


def test_classify_with_siglip(command, folder, pictures):
    """Each class has a probability of its own."""
    image, labels = pictures / "red [x].png", ["red", "green", "sea"]
    options = ["--labels", ",".join(labels), "--template", "a {}"]
    assert command("classify", image, *options, "--model", folder / "siglip") == 0
    assert command.err == ""
    found = lines_of(command)
    _, logits = siglip_logits(folder, [image], [f"a {label}" for label in labels])
    scores = 1 / (1 + np.exp(-logits[0]))
    order = np.argsort(-scores)
    assert [label for _, label in found] == [labels[row] for row in order]
    np.testing.assert_allclose([x for x, _ in found], scores[order], atol=5.1e-4)
    options[1] = "red,green"
    assert command("classify", image, *options, "--model", folder / "siglip") == 0
    assert lines_of(command) == [x for x in found if x[1] != "sea"]


def test_a_name_that_is_not_text(command, folder, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    try:
        shutil.copy(
            folder / "pictures/red [x].png", os.fsencode(pictures) + b"/\xe9.png"
        )
    except OSError:
        pytest.skip("the file system takes only Unicode")
    assert command("search", pictures, TEXT, "--model", folder / "clip") == 0
    ((_, name),) = lines_of(command)
    assert name == str(pictures / "?.png")


def test_where_the_index_is_kept(command, folder, pictures, tmp_path):
    options = ["search", pictures, TEXT, "--model", folder / "clip"]
    assert command(*options, "--no-index") == 0
    assert not list(pictures.glob(".*"))
    assert command(*options, "--index", tmp_path / "new" / "index.npz") == 0
    assert not list(pictures.glob(".*"))
    assert (tmp_path / "new" / "index.npz").is_file()
    line = command.refuses(*options, "--index", folder / "clip.keras")
    assert "clip.keras must be an index" in line
    line = command.refuses(*options, "--index", "a.npz", "--no-index")
    assert "--no-index cannot be combined with --index" in line
    archive = tmp_path / "pictures.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.write(pictures / "red [x].png", "red.png")
    assert command("search", archive, TEXT, *options[3:]) == 0
    ((_, name),) = lines_of(command)
    assert name == str(archive / "red.png")
    assert (tmp_path / ".pictures.zip.keras-attn-search.npz").is_file()


def test_what_cannot_be_searched(command, folder, pictures, tmp_path):
    (tmp_path / "empty").mkdir()
    command.refuses_each(
        ["search", "--model", folder / "clip"],
        ("`folder` must have images", tmp_path / "empty", TEXT),
        ("does not exist", tmp_path / "missing", TEXT),
        ("`folder` must have images", folder / "clip.keras", TEXT),
        ("TEXT must not be empty", pictures, " "),
        ("Captions must have at most 31 tokens", pictures, "heart " * 40),
    )
    assert "--model" in command.refuses("search", pictures, TEXT)
    assert not list(pictures.glob(".*"))


def test_which_models_search(command, folder, pictures, tmp_path):
    vit, tokenizer = tmp_path / "vit.keras", ["--tokenizer", folder / "clip"]
    tiny("vit_base_patch16").save(vit)
    alone = shutil.copytree(folder / "clip", tmp_path / "alone")
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (alone / name).unlink()
    command.refuses_each(
        ["search", pictures, TEXT, "--model"],
        ("--tokenizer, the folder of a tokenizer, must", folder / "clip.keras"),
        ("must say how its images are prep", folder / "bare.keras", *tokenizer),
        ("--model must be a CLIP or a SigLIP", vit, *tokenizer),
        ("vocab.json", alone),
    )


def test_classify(command, folder, pictures, tmp_path):
    image, clip = pictures / "red [x].png", ["--model", folder / "clip"]
    assert command("classify", image, "--labels", "red, green,sea", *clip) == 0
    assert command.err == ""
    found = lines_of(command)
    model = models.load_checkpoint(folder / "clip")
    tokenizer = CLIPTokenizer.from_folder(folder / "clip")
    labels = ["red", "green", "sea"]
    classifier = models.zero_shot_classifier(model, tokenizer, labels)
    served = models.with_preprocessing(classifier)
    logits = served(read_image(image)[None])
    scores = np.array(keras.ops.softmax(logits))[0]
    order = np.argsort(-scores)
    assert [label for _, label in found] == [labels[row] for row in order]
    np.testing.assert_allclose([x for x, _ in found], scores[order], atol=5.1e-4)
    # Several images and templates; labels from a file.
    names = tmp_path / "labels.txt"
    names.write_text("red\n\ngreen\nsea\n")
    templates = ["--template", "a {}", "--template", "{}"]
    options = ["--labels-file", names, "--count", 1, *templates, *clip]
    assert command("classify", image, pictures / "blue [x].png", *options) == 0
    lines = command.out.splitlines()
    assert lines[0] == f"{image}:" and lines[2].endswith("blue [x].png:")
    assert len(lines) == 4


def test_what_cannot_be_classified(command, folder, pictures, tmp_path):
    image, names = pictures / "red [x].png", tmp_path / "labels.txt"
    names.write_text("\n")
    file, few = ["--labels-file", names], ["--labels", "cat,dog"]
    command.refuses_each(
        ["classify", "--model", folder / "clip"],
        ("give one of --labels and --labels-file. Received: neither", image),
        ("Received: both", image, *few, *file),
        ("At least one label must be given. Received: --l", image, "--labels", " , "),
        (f"label must be given. Received: --labels-file {names}", image, *file),
        ("different. Received: 'cat' twice in --labels", image, "--labels", "cat, cat"),
        ("clip.keras must be a complete JPEG, PNG,", folder / "clip.keras", *few),
        ("`templates` must have `{}`", image, *few, "--template", "a photo"),
        ("Captions must have at most 31 tokens", image, "--labels", "cat " * 40),
    )


def test_a_folder_of_open_clip(command, folder, pictures, tmp_path):
    tokenizer = CLIPTokenizer.from_folder(folder / "clip")
    clip = models.build_clip(
        "rn50",
        image_size=32,
        num_blocks=(1, 1, 1, 1),
        stem_dim=4,
        num_heads=2,
        embedding_dim=6,
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=31,
        text_num_layers=1,
        text_hidden_dim=64,
        text_num_heads=1,
        text_mlp_dim=128,
    )
    clip.preprocessing = PREPROCESSING
    models.save_checkpoint(clip, tmp_path / "clip")
    tokenizer.save(tmp_path / "clip")
    clip = ["--model", tmp_path / "clip"]
    assert command("search", pictures, TEXT, "--no-index", *clip) == 0
    assert lines_of(command) == similarities(tmp_path, pictures)
