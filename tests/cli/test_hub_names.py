"""MODEL and other folders as names on the hub, in every command."""

import json
import shutil
from types import SimpleNamespace

import pytest
from PIL import Image

from keras_attn import models
from keras_attn.cli.finetuning.folder import _identity
from keras_attn.cli.finetuning.result import Result
from keras_attn.cli.finetuning.settings import Settings
from keras_attn.cli.finetuning.source import find_source
from keras_attn.models.catalog.public_weights import PUBLIC_WEIGHTS

NAME = "hf://me/none@v1"
COMMANDS = {
    "describe": [NAME],
    "plan": [NAME],
    "attention": [NAME, "a dog", "--output", "a.png"],
    "export": [NAME, "a.onnx"],
    "verify": [NAME, "file", "--quantization", "float16"],
    "predict": [NAME, "file"],
    "evaluate": [NAME, "file"],
    "finetune": [NAME, "file", "--run-dir", "run"],
    "generate": ["--model", NAME, "--prompt", "a dog"],
    "search": ["photos", "a dog", "--model", NAME],
    "classify": ["photos/dog.png", "--labels", "cat, dog", "--model", NAME],
    "explain": ["--model", NAME, "a dog"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_name_reaches_the_hub(command, hub, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (3, 2)).save("photos/dog.png")
    (tmp_path / "file").write_text("text,label\na,b\n")
    runner = SimpleNamespace(format="onnx")
    monkeypatch.setattr("keras_attn.export.load_runner", lambda path: runner)
    line = command.refuses(name, *COMMANDS[name])
    assert f"MODEL must name a repository of the hub. Received: MODEL '{NAME}'" in line
    assert hub.log == [("GET", "/api/models/me/none/revision/v1")]


OPTIONS = {
    "--tokenizer": {
        "attention": ["{bert}", "a dog", "--output", "a.png"],
        "explain": ["--model", "{bert}", "a dog"],
        "export": ["{bert}", "saved"],
        "verify": ["{bert}", "file", "--quantization", "float16"],
        "finetune": ["{bert}", "file.csv", "--run-dir", "run"],
        "generate": ["--model", "{gpt}", "--prompt", "a dog"],
        "search": ["photos", "a dog", "--model", "{bert}"],
        "classify": ["photos/dog.png", "--labels", "cat, dog", "--model", "{bert}"],
        "tokenize": ["a dog"],
    },
    "--beside": {"attention": ["{bert}", "a dog", "--output", "a.html"]},
    "--scorer": {
        "generate": ["--model", "{gpt}", "--prompt", "a dog", "--num-samples", 1],
    },
    "--finetuned": {"predict": ["{bert}", "file"], "evaluate": ["{bert}", "file"]},
}
EACH = [(option, name) for option, commands in OPTIONS.items() for name in commands]


@pytest.mark.parametrize("option, name", EACH)
def test_an_options_name_reaches_the_hub(
    command, hub, bert, gpt, monkeypatch, tmp_path, option, name
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (3, 2)).save("photos/dog.png")
    for name_of_data in ("file", "file.csv"):
        (tmp_path / name_of_data).write_text("text,label\na,b\nc,b\nd,e\nf,e\n")
    runner = SimpleNamespace(format="onnx")
    monkeypatch.setattr("keras_attn.export.load_runner", lambda path: runner)
    arguments = [str(x).format(bert=bert, gpt=gpt) for x in OPTIONS[option][name]]
    line = command.refuses(name, *arguments, option, NAME)
    words = f"{option} must name a repository of the hub. Received: {option} '{NAME}'"
    assert words in line
    (tmp_path / "a").touch()
    for other, problem in (("none", "does not exist"), ("a", "is a file")):
        if name != "tokenize" and option != "--beside":  # They read files, too.
            line = command.refuses(name, *arguments, option, other)
            assert f"'{option}': directory '{other}' {problem}." in line


def test_a_tokenizer_of_the_hub(command, hub, bert, tmp_path):
    """It is read as the folder is, also beside a file, and by `tokenize`."""
    commit = hub.add("me/words", bert)
    shutil.copytree(bert, tmp_path / "bare")
    (tmp_path / "bare/vocab.txt").unlink()
    picture = tmp_path / "heads.png"
    words = [tmp_path / "bare", "a good film", "--layer", 0, "--output", picture]
    assert command("attention", *words) == 2
    assert command("attention", *words, "--tokenizer", "hf://me/words") == 0
    assert picture.stat().st_size > 5_000
    cut = ["tokenize", "a good film", "--json", "--tokenizer"]
    assert command(*cut, "hf://me/words") == 0
    (found,) = json.loads(command.out)["tokenizers"]
    assert command(*cut, bert) == 0
    (known,) = json.loads(command.out)["tokenizers"]
    assert found == {**known, "tokenizer": "hf://me/words"}
    assert not [path for path in hub.transfers() if path.endswith(".safetensors")]
    hub.add("me/words", {"vocab.txt": b"a", "tokenizer_config.json": b"[]"})
    assert command(*cut, "hf://me/words") == 2
    line = command.err.splitlines()[-1]
    assert "'hf://me/words@" in line and commit not in line and "snapshots" not in line


def test_a_scorer_of_the_hub(command, hub, gpt):
    hub.add("me/gpt", gpt)
    texts = ["generate", "--model", gpt, "--prompt", "a dog", "--max-new-tokens", 2]
    texts += ["--num-samples", 2, "--seed", 1, "--scorer"]
    assert command(*texts, gpt) == 0
    expected = command.out
    assert command(*texts, "hf://me/gpt") == 0
    assert command.out == expected


def test_a_fine_tuned_folder_of_the_hub(command, hub, bert, tmp_path):
    """It says what the outputs of a file mean that is elsewhere."""
    model = models.build_bert_classifier(models.load_checkpoint(bert), num_classes=2)
    run = shutil.copytree(bert, tmp_path / "run")
    models.save_checkpoint(model, run)
    Result("text_classification", class_names=["bad", "good"]).save(run)
    hub.add("me/run", run)
    alone = tmp_path / "alone"
    alone.mkdir()
    model.save(alone / "model.keras")
    (tmp_path / "texts.txt").write_text("a good film\n")
    words = ["predict", alone / "model.keras", tmp_path / "texts.txt"]
    assert command(*words) == 2
    assert command(*words, "--finetuned", run) == 0
    expected = command.out
    assert command(*words, "--finetuned", "hf://me/run") == 0
    assert command.out == expected and command.rows()[0]["label"] in ("bad", "good")


def test_a_run_notes_the_commits(hub, bert, tmp_path):
    """So that it is resumed with the model and the tokenizer that it began with."""
    commit = hub.add("me/bert", bert)
    name = f"hf://me/bert@{commit}"
    (tmp_path / "data.csv").write_text("text,label\na,b\n")
    settings = Settings("hf://me/bert", tmp_path / "data.csv", tokenizer="hf://me/bert")
    found = _identity(settings, find_source(settings.model, {}))
    assert (found["model"], found["tokenizer"]) == (name, name)


def test_errors_name_the_model(command, hub, bert):
    """Not the folder of the client's cache that it lies in."""
    files = {x.name: x.read_bytes() for x in bert.iterdir()}
    damaged = {**files, "model.safetensors": b"1234567890"}
    commit = hub.add("me/damaged", damaged)
    assert command("describe", "hf://me/damaged") == 2
    line = command.err.splitlines()[-1]
    assert f"'hf://me/damaged@{commit}/" in line and "snapshots" not in line
    commit = hub.add("me/mute", {x: y for x, y in files.items() if "vocab" not in x})
    assert command("attention", "hf://me/mute", "a dog", "--output", "a.png") == 2
    line = command.err.splitlines()[-1]
    assert f"'hf://me/mute@{commit}'" in line and "snapshots" not in line


def test_outputs_are_on_this_machine(command, bert, tmp_path, monkeypatch):
    """A name there would make a folder called `hf:`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.csv").write_text("text,label\na,b\n")
    for option, *arguments in (
        ("--run-dir", "finetune", bert, "data.csv", "--run-dir", "hf://me/x"),
        ("--save", "evaluate", bert, "data.csv", "--save", "hf://me/x"),
        ("--report", "export", bert, "a.onnx", "--report", "hf://me/a.json"),
        ("--output", "attention", bert, "a dog", "--output", "hf://me/a.png"),
        ("artefact", "export", bert, "hf://me/a.onnx"),
    ):
        line = command.refuses(*arguments)
        assert f"'{option}': 'hf://me/" in line and "must be on this machine" in line
    assert [x.name for x in tmp_path.iterdir()] == ["data.csv"]


def test_the_help_shows_the_name(command, monkeypatch):
    """In square brackets, `@revision` would be taken for a style, and not shown."""
    monkeypatch.setenv("COLUMNS", "400")
    for name in ("describe", "predict"):
        assert command(name, "--help") == 0
        assert "hf://owner/name" in command.out
    assert command("evaluate", "--help") == 0
    assert command.out.count("hf://owner/name.") == 2


def test_a_model_of_the_hub(command, hub, bert, tmp_path):
    """It is called by its name with the commit, and its tokenizer comes with it."""
    commit = hub.add("me/bert", bert)
    name = f"hf://me/bert@{commit}"
    assert command("describe", "hf://me/bert", "--json") == 0
    found = json.loads(command.out)
    assert found["name"] == name
    assert f"models.load_checkpoint({name!r})" in found["python"]
    assert command("plan", "hf://me/bert", "--sequence", 5) == 0, command.err
    picture = tmp_path / "heads.png"
    words = ["hf://me/bert", "a dog", "--layer", 0, "--output", picture]
    assert command("attention", *words) == 0, command.err
    assert picture.stat().st_size > 5_000
    line = command.refuses("describe", "hf://bert")
    assert "MODEL must be a folder or a name such as hf://" in line


def test_public_weights(command):
    """A table of names, each of a model and in a layout that the suites compare."""
    assert command("list", "--weights") == 0
    rows = [line.split("\t") for line in command.out.splitlines()]
    assert {row[0] for row in rows} == {*PUBLIC_WEIGHTS} <= {*models.list_models()}
    assert ["gpt2_xl", "hf://openai-community/gpt2-xl"] in [row[:2] for row in rows]
    assert all(len(row) == 3 and all(row) for row in rows)
    from_memory = {row[0] for row in rows if "name from memory" in row[2]}
    checked = {name for name, each in PUBLIC_WEIGHTS.items() if each.is_checked}
    assert from_memory == {*PUBLIC_WEIGHTS} - checked and "mae_vit_huge" in from_memory
    assert "--weights must be of models" in command.refuses("list", "gpt3", "--weights")
    assert "exclude each other" in command.refuses("list", "--weights", "--sizes")
    assert command("describe", "xlnet_base") == 0
    assert "hf://xlnet/xlnet-base-cased" in command.out
    assert "not fetched by us" in " ".join(command.out.split())
    assert PUBLIC_WEIGHTS["vgg16"].place == "torchvision: vgg16"
    assert models.describe("vgg16").weights == PUBLIC_WEIGHTS["vgg16"]
    assert models.describe("vilbert_base").weights is None
