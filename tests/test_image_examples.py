"""The image examples run from the command line, with small sizes."""

import itertools
import json
import re
import tarfile
from types import SimpleNamespace

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
    assert re.findall(r"^(\w+_0), epoch (\d): ", printed, re.M) == [
        (name, epoch) for name in ("with_0", "without_0") for epoch in "12"
    ]
    # A finished run is read.
    again = example("sagan_shapes", "--smoke", "--run-dir", tmp_path)
    assert ", epoch" not in again
    assert again.endswith(printed[printed.index("| images |") :])
    with pytest.raises(SystemExit, match="has runs of other settings"):
        example("sagan_shapes", "--smoke", "--seed", 1, "--run-dir", tmp_path)
    # Of Gaussians: of means that are 3 and 4 apart, and of twice the deviation.
    module = example_module("sagan_shapes")
    one = np.random.default_rng(0).normal(size=(500, 2))
    trace = np.trace(np.cov(one, rowvar=False))
    center = one - one.mean(0)
    assert module.frechet_distance(one, one + [3, 4]) == pytest.approx(25)
    assert module.frechet_distance(center, 2 * center) == pytest.approx(trace)


def test_a_killed_sagan_leaves_no_part_of_a_judge(
    example_module, monkeypatch, tmp_path
):
    """The next run would read it."""
    module = example_module("sagan_shapes")
    sizes = {x: getattr(module, x.upper()) for x in ("shapes", "colors", "sizes")}
    shapes = Shapes(image_size=module.IMAGE_SIZE, num_objects=(1, 1), **sizes)

    def save(model, path):
        path.write_bytes(b"PK")
        raise KeyboardInterrupt

    monkeypatch.setattr(keras.Model, "fit", lambda *args, **kwargs: None)
    monkeypatch.setattr(keras.Model, "save", save)
    arguments = SimpleNamespace(run_dir=tmp_path, seed=0, images=2, judge_epochs=1)
    with pytest.raises(KeyboardInterrupt):
        module.train_judge(shapes, arguments)
    assert not any(tmp_path.iterdir())


@pytest.fixture
def backbone(example, tmp_path_factory):
    """Options of an example that reads the CNN, which is trained here."""
    folder = tmp_path_factory.mktemp("cnn")
    printed = example("shape_backbone", "--smoke", "--run-dir", folder)
    assert "of the locations covered by an object are right" in printed
    return "--backbone", folder / "model.keras"


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
    hard = tmp_path / "show_attend_tell_hard_0"
    assert_drawn(hard, "caption_0")
    kept = np.load(hard / "new.npz")
    assert kept["attention"].shape == (4, 12, 16, 16)
    np.testing.assert_allclose(kept["attention"].sum((2, 3)), 1, atol=0.01)
    printed = example("caption_mistakes", "--run-dir", tmp_path)
    names = re.findall(r"^\| (\w+) \| \d of 4 \|", printed, re.M)
    assert names == ["show_attend_tell_hard_0", "vit_transformer_0"]
    with pytest.raises(SystemExit, match=r"new.npz of captioners that attend: run"):
        example("caption_mistakes", "--run-dir", tmp_path / "others")


def test_wrong_words_of_a_caption(example_module):
    script = example_module("caption_mistakes")
    ring, star = ("small", "red", "ring"), ("large", "blue", "star")

    def wrong(caption):
        words = script.words_of(0, caption, [ring, star])
        return [
            (word.place, word.truth, word.number, word.part)
            for word in words
            if word.said != word.truth
        ]

    assert wrong("a large blue star above a small red ring") == []
    # The star is named, so the other is the ring, although it shares a word with both.
    text = "a large blue star above a small blue square"
    assert wrong(text) == [(7, "red", 0, 1), (8, "ring", 0, 2)]
    assert wrong("a small red ring left of a small blue star") == [(7, "large", 1, 0)]
    # Left out, or named beyond those of the image.
    assert wrong("a small red ring") == []
    text = "a small red ring and a large blue star and a large red star"
    assert wrong(text) == []


def test_mistakes_are_counted_measured_and_drawn(example_module, tmp_path, capsys):
    script = example_module("caption_mistakes")
    ring, star = ("small", "red", "ring"), ("large", "blue", "star")
    captions = [
        "a small red ring",
        "a small red star",
        # The ring's color at the star, which is looked at; but for that word the ring.
        "a small red ring above a large red star",
        "a small red ring above a large blue star",
    ]
    masks = np.zeros((4, 2, 8, 8), bool)
    masks[:, 0, :, :4] = True
    masks[2:, 1, :, 4:] = True
    attention = np.zeros((4, 12, 2, 2), "float16")
    attention[:, :, 0, 0] = 0.75
    attention[:, :, 0, 1] = 0.25
    attention[2, 7] = [[0, 0], [0, 1]]
    objects = [[ring, ("",) * 3]] * 2 + [[ring, star]] * 2
    kept = {
        "images": np.zeros((4, 8, 8, 3), "uint8"),
        "objects": np.array(objects),
        "masks": masks,
        "captions": np.array(captions),
        "attention": attention,
    }
    script.report("mine", kept, tmp_path)
    assert_drawn(tmp_path, "mistakes")
    cells = capsys.readouterr().out.strip("| \n").split(" | ")
    assert cells[:6] == ["mine", "2 of 4", "2", "0", "1", "1"]
    # Of two objects: 11 right words, of which the 5 of a star look at the ring.
    right = (6 * 0.75 + 5 * 0.25) / 11, (6 * 0.25 + 5 * 0.75) / 11
    wrong = 1.0, 0.0
    expected = [right[0], wrong[0], right[1], wrong[1]]
    assert [float(cell) for cell in cells[6:]] == pytest.approx(expected, abs=0.006)
    (word,) = (
        word
        for word in script.words_of(2, captions[2], [ring, star])
        if word.said != word.truth
    )
    figure = script.plot_mistakes([word], kept, "wrong")
    drawn = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert drawn == ["“red” should be “blue”"]
    title = figure.axes[0].get_title(loc="left").split()
    assert " ".join(title).endswith("large [red] star")
    # Captions without a mistake have no picture.
    one = {name: values[:1] for name, values in kept.items()}
    script.report("mine", one, tmp_path / "none")
    cells = capsys.readouterr().out.strip("| \n").split(" | ")
    assert cells == ["mine", "0 of 1", *"0000", *["nan"] * 4]
    assert not (tmp_path / "none").exists()


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


def test_objects_that_the_words_of_a_caption_name(example_module):
    script = example_module("caption_shapes")
    ring, star = ("small", "red", "ring"), ("large", "blue", "star")
    texts = ["a large blue star above a small red ring", "a small red star"]
    numbers = script.objects_named(texts, [[ring, star]] * 2, Shapes())
    assert numbers.shape == (2, script.MAX_LENGTH)
    assert numbers[0].tolist() == [-1, 1, 1, 1, -1, -1, 0, 0, 0, -1, -1, -1]
    assert (numbers[1] == -1).all()
    # Of two that are alike no one can say which is meant.
    alike = script.objects_named(texts[:1], [[ring, ring]], Shapes())
    assert (alike == -1).all()


def test_the_attention_of_a_word_is_that_of_its_first_token(example_module):
    script = example_module("caption_shapes")
    captions = ["a small red ring", "a star", "red " * 20]
    # Without "small", which is cut into pieces.
    tokenizer = SubwordTokenizer.train(["a red ring", "a star"])
    assert len(tokenizer.encode("small")) > 1 == len(tokenizer.encode("red"))

    class Model:
        input = ("features",)

        def predict(self, inputs, **_):
            """Two heads, a class token and 4 locations: ids of what was read last."""
            ids = inputs["decoder_token_ids"].astype("float32")
            return {"attention_scores": np.tile(ids[:, None, :, None], (1, 2, 1, 5))}

    arrays = {"features": np.zeros((3, 2, 2, 1))}
    maps = script.attention_of(
        Model(), script.Captions(arrays, [], arrays), captions, tokenizer
    )
    assert maps.shape == (3, script.MAX_LENGTH, 2, 2)
    start, (a,), small, (red,) = (
        tokenizer.start_token_id,
        *map(tokenizer.encode, ("a", "small", "red")),
    )
    assert maps[0, :4, 0, 0].tolist() == [start, a, small[-1], red]
    assert maps[1, :2, 1, 1].tolist() == [start, a]
    assert maps[2, :, 0, 1].tolist() == [start, *[red] * (script.MAX_LENGTH - 1)]


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
