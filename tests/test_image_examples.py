"""The image examples run from the command line, with small sizes."""

import itertools
import json
import re
import tarfile

import keras
import numpy as np
import pytest
from conftest import assert_drawn

from keras_attn import models
from keras_attn.cli import main
from keras_attn.data import Shapes, SubwordTokenizer

pytestmark = pytest.mark.runs


@pytest.fixture
def images(tmp_path):
    """Options of an example, with a data set of ten classes of four images."""
    data = tmp_path / "data"
    data.mkdir()
    for split in ("train", "val"):
        with tarfile.open(data / f"{split}_few.tar", "w") as archive:
            for label, index in itertools.product(range(10), range(4)):
                image = tmp_path / "image.jpg"
                color = np.full((32, 32, 3), 25 * label + index)
                keras.utils.save_img(image, color, scale=False)
                # As in the public archives, both have one folder of that name.
                archive.add(image, f"train/class_{label}/{index}.jpg")
    return "--data-dir", data, "--run-dir", tmp_path / "run", "--batch-size", 20


FIGURES = {
    **{"vit": "block_5_attention", "swin": "stage_2_block_1_attention"},
    "convnext": None,
}


@pytest.mark.variation
def test_classify_images(example, images, tmp_path):
    printed = example("classify_images", *images, "--epochs", 2)
    table = re.findall(r"^\| (\w+) \| [\d.]+% \| [\d,]+ \| ", printed, re.M)
    assert table == [*FIGURES]
    for model, figure in FIGURES.items():
        folder = tmp_path / "run" / model
        assert (folder / "model.keras").is_file()
        if figure is not None:
            assert_drawn(folder, figure)


@pytest.mark.variation
# The head is new.
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
def test_pretrain_mae(example, images, tmp_path):
    options = "--pretrain-epochs 1 --epochs 1 --labels 30".split()
    printed = example("pretrain_mae", *images, *options)
    assert "pre-trained, 30 labels: " in printed
    assert "from scratch, 30 labels: " in printed
    assert (tmp_path / "run" / "checkpoint" / "model.safetensors").is_file()
    assert_drawn(tmp_path / "run", "reconstruction")


def test_attend_in_cnn(example, images, tmp_path):
    printed = example("attend_in_cnn", *images, "--epochs", 1, "--width", 4)
    assert re.search(r"gamma went from 0 to -?0\.\d{3}$", printed, re.M)
    assert_drawn(tmp_path / "run", "attention")


@pytest.mark.variation
def test_denoise_photos(example, example_module, images, tmp_path):
    pytest.importorskip("scipy", reason="the extra `vision` is not installed")
    printed = example("denoise_photos", *images, "--smoke")
    table = re.findall(r"^\| ([\w -]+) \| (\d+\.\d\d)( ± [\d.]+)? \|$", printed, re.M)
    names = [name for name, *_ in table]
    assert names == ["noisy", "Gaussian filter", "linear filter", "U-Net"]
    # On images of one color each, all but the noise can be taken away.
    scores = {name: float(score) for name, score, _ in table}
    assert 19 < scores["noisy"] < 22 < scores["Gaussian filter"]
    assert scores["linear filter"] > scores["Gaussian filter"] - 1
    assert (tmp_path / "run" / "unet_1" / "model.keras").is_file()
    assert_drawn(tmp_path / "run", "denoised")
    # A filter that averages three pixels, of a row and a color, is found.
    module = example_module("denoise_photos")
    noisy = np.random.default_rng(0).normal(size=(9, 32, 32, 3)).astype("float32")
    around = module.neighborhoods(noisy)
    assert around.shape == (9, 32, 32, 148)
    clean = np.stack(3 * [around[..., [23, 24, 25]].mean(-1)], axis=-1)
    found = module.linear(noisy, module.fit_linear(clean, noisy))
    np.testing.assert_allclose(found, clean, atol=1e-3)
    white, gray = np.ones((1, 2, 2, 3)), np.zeros((1, 2, 2, 3))
    np.testing.assert_allclose(module.psnr(white, gray), 20 * np.log10(2))


@pytest.mark.variation
def test_sagan_shapes(example, example_module, tmp_path):
    printed = example("sagan_shapes", "--smoke", "--run-dir", tmp_path)
    rows = re.findall(r"^\| ([a-z ]+) \| [\d.]+( ± [\d.e-]+)? \| ", printed, re.M)
    assert [name for name, _ in rows] == [
        "training images",
        "untrained generator",
        "attention",
        "no attention",
    ]
    gammas = {
        kind: json.loads((tmp_path / f"{kind}_0" / "result.json").read_text())["gamma"]
        for kind in ("with", "without")
    }
    assert set(gammas["without"].values()) == {0.0}
    assert 0.0 not in gammas["with"].values()
    assert_drawn(tmp_path, "curves", "samples")
    # A finished run is read.
    assert example("sagan_shapes", "--smoke", "--run-dir", tmp_path) == printed
    # Of Gaussians: of means that are 3 and 4 apart, and of twice the deviation.
    module = example_module("sagan_shapes")
    one = np.random.default_rng(0).normal(size=(500, 2))
    trace = np.trace(np.cov(one, rowvar=False))
    center = one - one.mean(0)
    assert module.frechet_distance(one, one + [3, 4]) == pytest.approx(25)
    assert module.frechet_distance(center, 2 * center) == pytest.approx(trace)


@pytest.fixture
def backbone(example, tmp_path):
    """Options of an example that reads the CNN, which is trained here."""
    printed = example("shape_backbone", "--smoke", "--run-dir", tmp_path / "cnn")
    assert "of the locations covered by an object are right" in printed
    return "--backbone", tmp_path / "cnn" / "model.keras"


@pytest.mark.variation
def test_caption_shapes(example, backbone, tmp_path):
    options = "--images 24 --held-out 4 --epochs 1 --batch-size 8".split()
    options += ["--hidden-dim", "8", *backbone]
    names = ["show_and_tell", "show_attend_tell_hard", "vit_transformer"]
    options += ["--systems", *names, "--seeds", 1, "--run-dir", tmp_path]
    printed = example("caption_shapes", *options)
    table = printed[printed.index("| captioner |") :]
    figures = r"[\d,]+ \| [\d.]+ (?:\| [\d.]+% ± [\d.]+% ){4}\| (\S+)"
    rows = re.findall(rf"^\| (\w+) \| {figures}", table, re.M)
    assert [name for name, _ in rows] == names
    assert rows[0][1] == "–"
    for name in names:
        assert (tmp_path / f"{name}_0" / "model.keras").is_file()
        assert (tmp_path / f"{name}_0" / "tokenizer.json").is_file()
    # A shell prepares images as training does.
    image = np.asarray(keras.utils.load_img(tmp_path / "image.png"), "float32")
    for name, scale in zip(names, (1, 1, 1 / 255), strict=True):
        model = keras.saving.load_model(tmp_path / f"{name}_0" / "model.keras")
        prepared = models.image_preprocessing(model.preprocessing)(image[None])
        np.testing.assert_allclose(prepared, image[None] * scale, rtol=1e-5)
    page = tmp_path / "looks.html"
    folder, picture = tmp_path / f"{names[1]}_0", tmp_path / "image.png"
    options_of_page = ["--image", picture, "--output", page]
    assert main([str(x) for x in ["attention", folder, *options_of_page]]) == 0
    assert page.is_file()
    printed = example("caption_shapes", *options, "--mistakes")
    lines = re.findall(
        r"^(\w+): \d of 4 captions are wrong, (\d) of them by a word", printed, re.M
    )
    assert [name for name, _ in lines] == names[1:]
    for name, count in lines:
        if int(count):
            assert_drawn(tmp_path, f"mistakes_{name}")
    with pytest.raises(SystemExit, match=r"show_and_tell_1.model.keras: run without"):
        example("caption_shapes", *options, "--mistakes", "--seed", 1)


def test_wrong_words_of_a_caption(example_module):
    script = example_module("caption_shapes")
    ring, star = ("small", "red", "ring"), ("large", "blue", "star")

    def wrong(caption):
        return script.wrong_words(caption, [ring, star], Shapes())

    assert wrong("a large blue star above a small red ring") == []
    # The star is named, so the other is the ring, although it shares a word with both.
    text = "a large blue star above a small blue square"
    assert wrong(text) == [(7, "red", 0, 1), (8, "ring", 0, 2)]
    assert wrong("a small red ring left of a small blue star") == [(7, "large", 1, 0)]
    # Left out, or named beyond those of the image.
    assert wrong("a small red ring") == []
    text = "a small red ring and a large blue star and a large red star"
    assert wrong(text) == []
    tokenizer = SubwordTokenizer.train([text])
    pieces = [tokenizer.decode([token]) for token in tokenizer.encode(text)]
    tokens = script.first_tokens(text, tokenizer)
    assert len(tokens) == len(text.split())
    for word, token in zip(text.split(), tokens, strict=True):
        assert word.startswith(pieces[token].strip())


def test_a_mistake_is_counted_measured_and_drawn(
    example_module, tmp_path, monkeypatch, capsys
):
    script = example_module("caption_shapes")
    shapes = Shapes(image_size=32, num_objects=(1, 1))
    example = shapes.example(0)
    (truth,) = [(each.size, each.color, each.shape) for each in example.objects]
    other = next(shape for shape in shapes.shapes if shape != truth[2])
    caption = " ".join(["a", *truth[:2], other])
    tokenizer = SubwordTokenizer.train([caption, example.caption])
    pixels = {"images": np.stack([example.image] * 2)}
    images = script.Captions(pixels, [[truth]] * 2, np.stack([example.masks] * 2))
    captions = [caption, example.caption]
    maps = np.random.default_rng(0).uniform(size=(2, script.MAX_LENGTH, 4, 4))
    monkeypatch.setattr(script, "write_captions", lambda *_: captions)
    monkeypatch.setattr(script, "attention_of", lambda *_: maps)
    script.report_mistakes(None, "mine", images, tokenizer, shapes, tmp_path)
    assert_drawn(tmp_path, "mistakes_mine")
    printed = capsys.readouterr().out
    assert "mine: 1 of 2 captions are wrong, 1 of them by a word" in printed
    assert "wrong words: {'shapes': 1}" in printed
    assert len(re.findall(r"inside the object at (wrong|right) words: 0", printed)) == 2
    mistakes = [(0, 3, 3, truth[2], 0)]
    figure = script.draw_mistakes(images, captions, maps, mistakes, "wrong")
    drawn = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert drawn == [f"“{other}” should be “{truth[2]}”"]


def test_held_out_combinations_are_in_no_training_caption(example_module):
    script = example_module("caption_shapes")
    known, new = script.split_kinds(Shapes())
    assert (len(known), len(new)) == (72, 24)
    assert not set(known) & set(new)
    # What is new is the three together: each two of them are known.
    for pair in itertools.combinations(range(3), 2):
        pairs = [{tuple(kind[i] for i in pair) for kind in x} for x in (known, new)]
        assert pairs[1] <= pairs[0]
    for kinds in (known, new):
        drawn = Shapes(kinds=kinds)
        for number in range(20):
            example = drawn.example(number)
            named = script.objects_of(example.caption, drawn)
            assert set(named) <= set(kinds)
            assert named.total() == len(example.objects)


def test_objects_of_a_caption(example_module):
    script = example_module("caption_shapes")
    text = "a small red ring left of a large blue star"
    assert script.objects_of(text, Shapes()) == {
        ("small", "red", "ring"): 1,
        ("large", "blue", "star"): 1,
    }
    turned = "a large blue star right of a small red ring"
    wrong = ("a small red ring", f"{text} and a small red ring", "red small ring")
    assert script.exact_objects([text, *wrong], [turned] * 4, Shapes()) == 0.25


def test_objects_that_the_tokens_of_a_caption_name(example_module):
    script = example_module("caption_shapes")
    token_objects = script.token_objects
    ring, star = ("small", "red", "ring"), ("large", "blue", "star")
    texts = ["a large blue star above a small red ring", "a small red star"]
    tokenizer = SubwordTokenizer.train(texts)
    numbers = token_objects(texts, [[ring, star]] * 2, tokenizer)
    assert numbers.shape == (2, script.MAX_LENGTH)
    assert numbers[0].tolist() == [-1, 1, 1, 1, -1, -1, 0, 0, 0, -1, -1, -1]
    assert (numbers[1] == -1).all()
    # Of two that are alike no one can say which is meant.
    assert (token_objects(texts[:1], [[ring, ring]], tokenizer) == -1).all()


# The guide to questions uses the same model and functions.
@pytest.mark.variation
def test_answer_shapes(example, backbone, tmp_path):
    run = tmp_path / "run"
    printed = example("answer_shapes", "--smoke", "--run-dir", run, *backbone)
    for kind in ("ask", "show"):
        assert (run / kind / "model.keras").is_file()
        assert_drawn(run / kind, "question_5")
    tables = re.findall(r"^\| all \| 40 \| (.*) \|$", printed, re.M)
    assert len(tables) == 2
    for table in tables:
        figures = [float(figure) for figure in table.split(" | ")]
        # Right, constant, two areas, and the attention of two maps inside of each.
        assert len(figures) == 8 and all(0 <= figure <= 1 for figure in figures)


@pytest.mark.variation
def test_greet_people(example, tmp_path):
    printed = example("greet_people", "--smoke", "--run-dir", tmp_path)
    rows = re.findall(r"^\| (\w+) \| (-?[\d.]+)(?:, .* to .*)? \|$", printed, re.M)
    assert [name for name, _ in rows] == ["random", "best", "memory", "forgetful"]
    assert float(rows[0][1]) < float(rows[1][1])
    tables = re.findall(r"^\| (gray|depth) \| (face|hand) \| (.*) \|$", printed, re.M)
    assert len(tables) == 8
    for *_, table in tables:
        count, *figures = (float(figure) for figure in table.split(" | "))
        assert count > 0 and all(0 < figure < 1 for figure in figures)
    for kind in ("memory", "forgetful"):
        assert (tmp_path / f"{kind}_0" / "model.keras").is_file()
        assert_drawn(tmp_path / f"{kind}_0", "interaction")
    assert len((tmp_path / "curves.csv").read_text("utf-8").splitlines()) == 5


def test_a_forgetful_robot_knows_only_the_present(example_module):
    script = example_module("greet_people")
    network = script.new_network(4)
    shape = (2, 3, script.IMAGE_SIZE, script.IMAGE_SIZE, 1)
    frames = {camera: keras.random.normal(shape, seed=1) for camera in script.CAMERAS}
    outputs = script.forgetful(network, 3)(frames)
    for step in range(3):
        now = {camera: x[:, step : step + 1] for camera, x in frames.items()}
        for name, expected in network(now).items():
            axis = 2 if name == "attention_scores" else 1
            value = np.take(outputs[name], [step], axis)
            np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(outputs["q_values"] - network(frames)["q_values"])[:, 1:].max() > 1e-3


# The guide to images trains a reader of words.
@pytest.mark.variation
def test_read_words(example, tmp_path):
    sizes = "--images 24 --held-out 6 --width 2 --epochs 1 --batch-size 8".split()
    shape = "--lengths 2 4 --image-size 16 48 --families STIX".split()
    printed = example("read_words", "--run-dir", tmp_path, *sizes, *shape)
    assert re.search(r"^without_STIX: 17 fonts, [\d,]+ parameters$", printed, re.M)
    table = printed[printed.index("words  characters  in box") :]
    rows = re.findall(r"^(.{22}) [\d.]+% \([\d.]+% to [\d.]+%\)  ", table, re.M)
    names = ["trained words", "other words", "other words and family"]
    assert [name.strip() for name in rows] == names
    # 16 pixels are two rows of the map: the shares of attention are of all of it.
    shares = re.findall(r"by row of the map: (\d+)%  (\d+)%$", table, re.M)
    assert len(shares) == 2
    assert abs(sum(map(int, shares[0])) - 100) <= 1
    folder = tmp_path / "without_STIX"
    assert (folder / "model.keras").is_file()
    assert_drawn(folder, *(f"attention-{index}" for index in range(4)))


def test_a_preview_has_equally_many_images_per_class(example_module):
    preview = example_module("pretrain_mae").preview
    labels = np.repeat(range(10), 7)
    for count in (10, 30, 50):
        assert np.bincount(preview(labels, count)).tolist() == [count // 10] * 10
    assert len(preview(labels, 1000)) == 70


def test_missing_images_are_reported(example, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must have a folder train/ or one"):
        example("attend_in_cnn", "--data-dir", tmp_path)
