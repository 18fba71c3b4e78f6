"""Runs the recipes of the documentation as written, one after the other."""

import json
import os
import socket
import subprocess
import sys
import wave
import zipfile

import keras
import numpy as np
import pytest
import recipes
import tensorflow as tf
from conftest import assert_drawn
from data.image_sets import write_coco, write_voc
from extras import NEEDS_JAX
from recipes import DOCS, ROOT
from walk_cases import write_r2r

from keras_attn import data, decoding, export, models, viz

RNG = np.random.default_rng(0)


def guide(test):
    """Marks a guide that CI runs in turn."""
    return pytest.mark.runs(pytest.mark.variation(test))


@pytest.fixture
def run_recipes(tmp_path, monkeypatch):
    """Runs a page's recipes in a new folder, and returns their variables."""
    monkeypatch.chdir(tmp_path)
    return lambda name, *between: recipes.run(DOCS / name, *between)


def test_some_test_runs_every_page():
    sources = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    running = [text for text in sources if "import recipes\n" in text]
    for page in (*ROOT.glob("*.md"), *DOCS.rglob("*.md")):
        if recipes.recipes_of(page):
            by_name, by_folder = f'{page.name}"', f'"{page.parent.name}").glob('
            assert any(by_name in text or by_folder in text for text in running), page


def test_an_error_names_the_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\ny = x\ny / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        recipes.run(page)
    assert caught.traceback[-1].path == page
    assert caught.traceback[-1].lineno == 8  # Counted from 0.


# A recipe loads a checkpoint under a new head.
@pytest.mark.filterwarnings("ignore:The checkpoint has no weights for:UserWarning")
@guide
def test_images(run_recipes, tmp_path):
    # Two epochs on random images: the accuracy of an int8 export depends on the seed.
    keras.utils.set_random_seed(1)
    for split in ("train", "val"):
        for label in ("cat", "dog", "owl"):
            folder = tmp_path / "images" / split / label
            folder.mkdir(parents=True)
            for index in range(8):
                picture = RNG.integers(0, 256, (32, 32, 3))
                keras.utils.save_img(folder / f"{index}.png", picture, scale=False)
    names = run_recipes("image_models.md")
    assert_drawn(tmp_path, "heads", "rollout", "positions", "mae")
    assert names["maps"]["stage_0"].shape == (1, 24, 16, 16)
    assert names["maps"]["stage_1"].shape == (1, 12, 8, 32)
    for artefact in ("vit.tflite", "vit.onnx", "vit/saved_model.pb"):
        assert (tmp_path / artefact).is_file()


@pytest.mark.runs
def test_the_pages_for_beginners(run_recipes, tmp_path, capsys):
    """Each page alone, as a reader may begin with any."""
    run_recipes("build.md")
    assert "vit_base_patch16" in capsys.readouterr().out
    run_recipes("fit.md")
    run_recipes("see.md")
    assert_drawn(tmp_path, "heads")
    assert "<html" in (tmp_path / "attention.html").read_text("utf-8")
    assert [*(tmp_path / "logs").rglob("events*")]
    page = run_recipes("attention_page.md")["page"]
    assert '"path":"attention"' in page and "<html" in page
    names = run_recipes("own_layers.md")
    assert names["scores"]["location"].shape == (1, 1, 5, 7)
    images = RNG.uniform(size=(1, 32, 32, 3))
    assert {*viz.capture_attention(names["model"], images)} == {
        "block_0/attention",
        "block_1/attention",
    }


@pytest.mark.shipped
def test_ship(run_recipes, tmp_path, capsys):
    names = run_recipes("ship.md")
    assert names["logits"].shape == (8, 10)
    assert names["scores"].shape == (2, 10)
    for artefact in ("vit.tflite", "vit.onnx", "vit/saved_model.pb", "gpt.onnx"):
        assert (tmp_path / artefact).exists()


@guide
def test_sentences(run_recipes, tmp_path, capsys):
    pytest.importorskip("tensorflow_text")
    (tmp_path / "glue" / "MRPC").mkdir(parents=True)
    for split in ("train", "dev"):
        rows = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
        rows += [f'{i % 2}\t{i}\t{i}\tHe said " {i} .\tHe said .' for i in range(10)]
        path = tmp_path / "glue" / "MRPC" / f"{split}.tsv"
        path.write_text("\n".join(rows) + "\n", "utf-8")
    (tmp_path / "checkpoint").mkdir()
    pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] he said".split() + [*'."0123456789']
    data.WordPieceTokenizer(pieces).save(tmp_path / "checkpoint")
    names = run_recipes("glue.md")
    assert len(names["train"]) == len(names["dev"]) == 10
    assert set(names["scores"].metrics["MRPC"]) == {"f1_score", "accuracy"}
    logged = names["model"].history.history["val_f1_score"][-1]
    assert names["scores"].metrics["MRPC"]["f1_score"] == pytest.approx(logged)
    assert "(of 1 of 9 tasks)" in capsys.readouterr().out


@pytest.mark.runs
def test_finetuning(run_recipes, tmp_path, capsys):
    names = run_recipes("fine_tune.md")
    printed = capsys.readouterr().out
    assert "2 × block_*/attention/query" in printed
    assert "int4 in blocks of 32" in printed
    assert names["base"].shape == (8, 3)
    trained = [weight.path for weight in names["model"].trainable_variables]
    assert sum("/default/" in path for path in trained) == 8
    assert len(trained) == 10
    assert (tmp_path / "classifier.keras").is_file()


@guide
def test_captions(run_recipes, tmp_path):
    names = run_recipes("image_captioning.md")
    assert len(names["captions"]) == 16
    assert (tmp_path / "captioner.onnx" / "step.onnx").is_file()


@guide
def test_generation(run_recipes, tmp_path):
    names = run_recipes("images_from_captions.md")
    assert names["found"].images.shape == (4, 32, 32, 3)
    expected = decoding.generate(
        names["dalle"], names["prompt"], 64, strategy=decoding.Sample(seed=0)
    )
    np.testing.assert_array_equal(names["written"].token_ids, expected.token_ids)
    assert_drawn(tmp_path, "codes", "masks", "samples")
    assert (tmp_path / "decoder.onnx").is_file()


@pytest.mark.shipped
def test_faster_generation(run_recipes, tmp_path):
    names = run_recipes("generate.md")
    plain = names["plain"].token_ids
    np.testing.assert_array_equal(names["shipped"].token_ids, plain)
    np.testing.assert_array_equal(names["quoted"].token_ids, plain)
    assert names["tries"].token_ids.shape == (1, 10, 16)
    assert names["best"].scores.shape == (1, 4)
    assert names["drafted"].num_passes > 0
    assert len(list((tmp_path / "shipped").glob("*.onnx"))) == 1


@guide
def test_dense(run_recipes, tmp_path):
    for index in range(6):
        for folder, values in (("image", 256), ("mask", 3)):
            shape = (40, 48, 3) if folder == "image" else (40, 48, 1)
            picture = RNG.integers(0, values, shape)
            path = tmp_path / "cells" / folder / f"{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            keras.utils.save_img(path, picture, scale=False)
    write_voc(tmp_path).rename(tmp_path / "VOC")
    path, images = write_coco(tmp_path)
    (tmp_path / "COCO").mkdir()
    images.rename(tmp_path / "COCO" / "images")
    (tmp_path / "COCO" / "images" / path.name).rename(tmp_path / "COCO" / path.name)
    names = run_recipes("detection_and_segmentation.md")
    assert_drawn(tmp_path, "segmentation", "field", "detections")
    assert len(names["history"]["iou_membrane"]) == 2
    assert names["scores"].result()["map_50"] == pytest.approx(1)
    assert names["truth"]["masks"].shape[0] == 2
    assert set(names["answers"]) < set(names["words"])


@guide
def test_speech(run_recipes, tmp_path):
    (tmp_path / "speech").mkdir()
    for text, rate in (("yes", 16_000), ("no", 8000), ("cut", 8000)):
        with wave.open(str(tmp_path / "speech" / f"{text}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(RNG.integers(-999, 999, 4321).astype("<i2").tobytes())
    cut = tmp_path / "speech" / "cut.wav"
    cut.write_bytes(cut.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"left out 1 files.*cut.wav"):
        names = run_recipes("speech_recognition.md")
    assert names["texts"] == ["no", "yes"]
    assert names["frames"]["frame_lengths"].tolist() == [52, 25]
    assert names["shipped"].token_ids.shape == (2, 20)
    assert [len(row) for row in names["ranked"]] == [32, 32]
    assert_drawn(tmp_path, "attention")


def write_vqa(folder):
    """Four questions about two images, with ten answers each."""
    (folder / "images").mkdir(parents=True)
    for number in range(2):
        picture = RNG.integers(0, 256, (40, 48, 3))
        keras.utils.save_img(folder / "images" / f"{number}.png", picture, scale=False)
    both = [{"question_id": number, "image_id": number % 2} for number in range(4)]
    texts = ("Is it red?", "How many dots?", "What is it?", "Is it blue?")
    questions = [
        {**each, "question": text} for each, text in zip(both, texts, strict=True)
    ]
    answers = [{"answer": "yes"}] * 6 + [{"answer": "no"}] * 4
    annotations = [{**each, "answers": answers} for each in both]
    for name, entries in (("questions", questions), ("annotations", annotations)):
        (folder / f"{name}.json").write_text(json.dumps({name: entries}), "utf-8")


@guide
def test_interaction(run_recipes, tmp_path):
    names = run_recipes("robot_interaction.md")
    assert len(names["history"].history["val_reward"]) == 2
    assert_drawn(tmp_path, "interaction")
    assert (tmp_path / "robot.tflite").stat().st_size > 1000
    assert names["outputs"]["attention_scores"].shape == (1, 2, 49)
    assert len(list(names["watch"]._figures())) == 2


# `tf.data` stays a graph.
@pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_f")
@guide
def test_feedback(run_recipes, tmp_path):
    # What is compiled runs too few steps to be worth it.
    tf.config.run_functions_eagerly(True)
    try:
        names = run_recipes("human_feedback.md")
    finally:
        tf.config.run_functions_eagerly(False)
    assert len(names["history"]["val_reward"]) == 2
    assert (tmp_path / "rewarded.keras").is_file()
    assert names["reward_model"].layers[-1].name == "score_normalization"
    assert names["trainer"].network is names["policy"]


@guide
def test_questions(run_recipes, tmp_path):
    write_vqa(tmp_path / "vqa")
    names = run_recipes("visual_questions.md")
    assert names["train"].answers == ["yes", "no"]
    assert names["maps"].shape == (2, 8, 8)
    assert_drawn(tmp_path, "glimpses")
    names["watch"].set_model(names["model"])
    assert len(list(names["watch"]._figures())) == 2


@guide
def test_navigation(run_recipes, tmp_path):
    for split in ("train", "val_unseen"):
        write_r2r(tmp_path / "r2r", split=split)
    names = run_recipes("navigation.md")
    assert names["world_state"].shape == (4, 80)
    # An ensemble of the model and its exported file walks as the model does.
    assert names["shipped"].walks == names["walked"].walks
    assert len(names["scores"]) == len(names["walks"]) > 1
    assert_drawn(tmp_path, "walk")


@pytest.mark.runs
@pytest.mark.shipped
@pytest.mark.variation
def test_vision_language(run_recipes, tmp_path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("tensorflow_text")
    (tmp_path / "emoji").mkdir()
    table = ["hexcode\tname\tkeywords"]
    with zipfile.ZipFile("emoji/noto.zip", "w") as archive:
        for number in range(16):
            picture = RNG.integers(0, 256, (64, 64, 3))
            keras.utils.save_img(f"{number}.png", picture, scale=False)
            archive.write(f"{number}.png")
            table.append(f"{number}\tred heart {number}\tlove, heart")
    (tmp_path / "emoji/emoji.tsv").write_text("\n".join(table), "utf-8")
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.png"):
        picture = RNG.integers(0, 256, (50, 70, 3))
        keras.utils.save_img(tmp_path / "photos" / name, picture, scale=False)
    names = run_recipes("images_and_texts.md", "", "## Seeing what matters")
    assert sorted(names["index"].names) == ["a.jpg", "b.png"]
    assert (tmp_path / "photos.npz").is_file()
    assert names["served"](picture[None].astype("uint8")).shape == (1, 3)
    (vectors,) = names["vectors"].values()
    assert vectors.shape == (2, 64)
    loaded = export.load_runner(tmp_path / "image_tower.onnx")
    (embedded,) = loaded({"images": picture[None].astype("uint8")}).values()
    expected = models.picture_encoder(names["clip"])([picture.astype("uint8")])
    np.testing.assert_allclose(embedded, expected, atol=1e-4)


@guide
def test_seeing_what_matters(run_recipes, tmp_path):
    names = run_recipes("images_and_texts.md", "## Seeing what matters")
    assert_drawn(tmp_path, "similarity", "relevance", "words", "regions")
    assert names["maps"].shape == (1, 5, 8, 8)
    assert len(list((tmp_path / "runs/clip").iterdir())) == 2  # A file per callback.
    count = len(names["example"].objects)
    assert names["last"].to_words.shape == (4, count, len(names["tokens"]))


def losses_of(script, count, axis):
    """The losses that the first of some processes prints."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), coordinator, str(count), str(number), axis],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Each with one device, whatever the tests have.
            env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},
        )
        for number in range(count)
    ]
    try:
        printed = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:  # One that waits for another which has failed.
            process.kill()
    assert not any(process.returncode for process in processes), printed
    (line,) = [x for x in printed[0][0].splitlines() if x.startswith("losses")]
    return [float(loss) for loss in line.split()[1:]]


@pytest.mark.runs
@NEEDS_JAX
@pytest.mark.variation
@pytest.mark.parametrize("axis", ["model", "batch"])
def test_two_processes_train_like_one(axis, tmp_path):
    (recipe,) = recipes.recipes_of(DOCS / "many_devices.md")
    (tmp_path / "train.py").write_text(recipe, "utf-8")
    one, two = (losses_of(tmp_path / "train.py", count, axis) for count in (1, 2))
    assert one[0] > one[-1]
    np.testing.assert_allclose(two, one, rtol=1e-6)
