"""The examples of CLIP run from the command line, with small sizes."""

import re
import zipfile

import numpy as np
import pytest
from conftest import assert_drawn
from PIL import Image

pytest.importorskip("tokenizers", reason="the extra `text` is not installed")
pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
pytest.importorskip("sentencepiece", reason="`sentencepiece` is not installed")

from keras_attn import models  # noqa: E402
from keras_attn.data import CLIPTokenizer, SentencePieceTokenizer, Shapes  # noqa: E402

NAMES = "red heart, blue heart, red sun, blue sun, green sea, green heart, white cat"
HEADER = "hexcode\tname\tkeywords\tgroup\tsubgroup\tname_de\tname_fr\n"


@pytest.fixture
def emoji(tmp_path):
    """A table of 21 emoji, and their pictures in three styles."""
    names = [f"{name} {number}" for number in range(3) for name in NAMES.split(", ")]
    folder = tmp_path / "emoji"
    folder.mkdir()
    rows = [
        f"{n:X}\t{name}\t{name}, thing\tg\ts\t{name} de\t{name} fr\n"
        for n, name in enumerate(names)
    ]
    (folder / "emoji.tsv").write_text(HEADER + "".join(rows), encoding="utf-8")
    (folder / "same_picture.tsv").write_text("style\thexcodes\nnoto\t0 1\n")
    random = np.random.default_rng(0)
    for style in ("noto", "twemoji", "openmoji"):
        with zipfile.ZipFile(folder / f"{style}.zip", "w") as archive:
            for n in range(len(names)):
                pixels = np.full((64, 64, 3), 255, "uint8")
                pixels[8:50, 12:40] = random.integers(0, 255, 3)
                Image.fromarray(pixels).save(tmp_path / "one.png")
                archive.write(tmp_path / "one.png", f"{n:X}.png")
    return folder


@pytest.mark.runs
@pytest.mark.variation
def test_clip_emoji(example, emoji, tmp_path):
    options = ["--data-dir", emoji, "--run-dir", tmp_path / "run", "--smoke"]
    printed = example("clip_emoji", *options)
    assert "19 emoji with 95 texts, 2 held out" in printed
    tables = re.findall(r"^\| (\w+) names, (.*?) \| at 1", printed, re.M)
    assert len(tables) == 6
    assert printed.count("| nearest by all three |") == 6
    assert_drawn(tmp_path / "run", "search")
    clip = models.load_checkpoint(tmp_path / "run" / "noto_0" / "clip")
    assert clip.preprocessing is not None
    # What is trained is read the second time.
    again = example("clip_emoji", *options)
    assert "Epoch" not in again
    assert again[again.index("seed 0") :] == printed[printed.index("seed 0") :]


@pytest.fixture
def modules(example_module):
    return example_module("clip_emoji")


def test_families_of_emoji_are_held_out_together(modules, tmp_path):
    rows = [
        ("1F9D1-200D-2696-FE0F", "judge", "person-role"),
        ("1F468-200D-2696-FE0F", "man judge", "person-role"),
        ("1F469-200D-2696-FE0F", "woman judge", "person-role"),
        ("1F3C3", "person running", "person-activity"),
        ("1F3C3-200D-2640-FE0F-200D-27A1-FE0F", "woman running", "person-activity"),
        ("1F550", "one o’clock", "time"),
        ("1F551", "two o’clock", "time"),
        ("2194-FE0F", "left-right arrow", "arrow"),
        ("2B07-FE0F", "down arrow", "arrow"),
        ("1F431", "cat face", "animal-mammal"),
    ]
    table = [f"{code}\t{name}\tx\tg\t{sub}\td\tf\n" for code, name, sub in rows]
    (tmp_path / "emoji.tsv").write_text(HEADER + "".join(table), encoding="utf-8")
    emoji = modules.read_emoji(tmp_path)
    families = [each.family for each in emoji]
    assert len(set(families)) == 5
    assert len(set(families[:3])) == len(set(families[3:5])) == 1
    is_new = modules.split_names(emoji, share=0.4)
    assert len({families[number] for number in np.flatnonzero(is_new)}) == 2
    for family in set(families):
        assert len({is_new[n] for n, x in enumerate(families) if x == family}) == 1


def test_recall_and_chance(modules):
    scores = np.array([[3.0, 2, 1], [1, 1, 1], [5, 4, 3]])
    is_right = np.eye(3, dtype=bool)
    # First; one of three that are equal; last.
    assert modules.retrieval(scores, is_right, (1, 2, 3)) == pytest.approx(
        [(1 + 1 / 3 + 0) / 3, (1 + 2 / 3 + 0) / 3, 1]
    )
    is_right[2, 0] = True
    assert modules.retrieval(scores, is_right, (1,)) == pytest.approx(
        [(1 + 1 / 3 + 1) / 3]
    )
    # Two of three are right in the last row.
    assert modules.chance(is_right, (1, 2, 5)) == pytest.approx(
        [(1 / 3 + 1 / 3 + 2 / 3) / 3, (2 / 3 + 2 / 3 + 1) / 3, 1]
    )


def test_words_and_near_pictures(modules):
    found = modules.word_similarity(
        ["red heart", "sea"], ["a red heart", "a sun", "sea"]
    )
    assert found[0].argmax() == 0 and found[1].argmax() == 2
    np.testing.assert_allclose(found[1], [0, 0, 1], atol=1e-6)
    pixels = np.full((3, 64, 64, 3), 255, "uint8")
    pixels[0, 5:20, 5:20] = pixels[1, 30:60, 20:50] = (200, 0, 0)
    pixels[2, 30:60, 20:35] = (0, 0, 200)
    for kind in modules.FEATURES:
        features = modules.features_of(pixels, kind)
        near = modules.nearest_scores(features, features)
        np.testing.assert_allclose(near.diagonal(), 0, atol=1e-4)
        assert near[0, 1] > near[0, 2]  # The same square, in a different place.


@pytest.mark.runs
@pytest.mark.shipped
@pytest.mark.variation
@pytest.mark.parametrize(
    "build, tokenizer_options, options",
    [
        (models.build_clip, (CLIPTokenizer, 540), {"embedding_dim": 7}),
        (models.build_siglip, (SentencePieceTokenizer, 40, "siglip"), {}),
    ],
    ids=["clip", "siglip"],
)
def test_search_pictures(build, tokenizer_options, options, example, tmp_path):
    kind, *settings = tokenizer_options
    tokenizer = kind.train([NAMES] * 3, *settings)
    clip = build(
        image_size=32,
        patch_size=16,
        num_layers=1,
        hidden_dim=64,
        num_heads=1,
        mlp_dim=31,
        vocabulary_size=tokenizer.vocabulary_size,
        max_sequence_length=77,
        text_num_layers=1,
        text_hidden_dim=64,
        text_num_heads=1,
        text_mlp_dim=31,
        **options,
    )
    clip.preprocessing = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 32, "width": 32},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }
    models.save_checkpoint(clip, tmp_path / "clip")
    tokenizer.save(tmp_path / "clip")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, color in enumerate(["red", "green", "blue"]):
        Image.new("RGB", (40 + number, 33), color).save(pictures / f"{color}.png")
    (pictures / "bad.png").write_text("no picture")
    tables = {}
    for runtime in ("keras", "saved_model", "litert", "onnx"):
        options = ["--model", tmp_path / "clip", "--folder", tmp_path / "exports"]
        options += ["--runtime", runtime, "--index", tmp_path / f"{runtime}.npz"]
        printed = example("search_pictures", pictures, "red sun", "a sea", *options)
        assert "3 pictures, 3 of them read" in printed
        assert "left out bad.png: bad.png must be a complete" in printed
        tables[runtime] = printed[printed.index("\nred sun") :]
    assert len(set(tables.values())) == 1
    # The index of one runtime serves the next.
    options[-1] = tmp_path / "keras.npz"
    printed = example("search_pictures", pictures, "red sun", "a sea", *options)
    assert "3 pictures, 0 of them read" in printed
    assert printed[printed.index("\nred sun") :] == tables["keras"]


# `test_clip_emoji` trains by the same functions.
@pytest.mark.variation
@pytest.mark.runs
def test_clip_shapes(example, tmp_path):
    printed = example("clip_shapes", "--smoke", "--run-dir", tmp_path)
    assert "36 known and 12 new pairs; chance 2.1%, among new pairs 8.3%" in printed
    rows = re.findall(r"^\| (.*?) \| \d+ s \|(?: +[\d.]+ ± 0.0 \|){3}$", printed, re.M)
    assert rows == ["CLIP, zero-shot", "color and shape, two heads", "pairs, one head"]
    # Finished runs are not repeated.
    again = example("clip_shapes", "--smoke", "--run-dir", tmp_path)
    progress = re.compile(r"^(Epoch |\d+/\d+ - ).*\n", re.M)
    assert progress.search(printed) and again == progress.sub("", printed)


def test_new_pairs_are_in_no_training_image(example_module):
    script = example_module("clip_shapes")
    known, new = script.split_pairs(Shapes())
    assert (len(known), len(new)) == (36, 12)
    for part in range(2):
        assert {pair[part] for pair in new} <= {pair[part] for pair in known}
    for pairs in (known, new):
        _, captions, shown = script.read_images(script.new_shapes(pairs), 30)
        assert set(shown) <= set(pairs)
        for caption, pair in zip(captions, shown, strict=True):
            assert caption.split()[2:] == list(pair)
    tests = [(None, None, [known[0], known[1]]), (None, None, [new[0], new[1]])]
    scores = [np.eye(48)[:2], np.eye(48)[[36, 2]]]
    scores[1][1, 38] = 0.5  # Among new pairs, a wrong one is best.
    assert script.accuracies(scores, tests, known + new, new) == (1.0, 0.5, 0.5)
