"""MODEL as a name on the hub, in every command."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from keras_attn import models
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
    assert "--weights must be of models" in command.refuses("list", "gpt3", "--weights")
    assert "exclude each other" in command.refuses("list", "--weights", "--sizes")
    assert command("describe", "xlnet_base") == 0
    assert "hf://xlnet/xlnet-base-cased" in command.out
    assert "not fetched by us" in " ".join(command.out.split())
    assert models.describe("vgg16").weights.place == "torchvision: vgg16"
    assert models.describe("vilbert_base").weights is None
