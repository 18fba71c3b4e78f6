"""What all commands have in common: help, errors, interruptions."""

import importlib
import json
import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from parity.folders import CHECKPOINTS

import keras_attn
from keras_attn import models
from keras_attn.cli import demo, list_models
from keras_attn.cli.app import COMMANDS
from keras_attn.models.checkpoints.tensors import TensorFile


def test_help_needs_no_tensorflow():
    code = (
        "import sys; from keras_attn.cli import main; code = main(['--help']); "
        "print(*sys.modules); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    printed, _, modules = done.stdout.strip().rpartition("\n")
    assert all(name in printed for name in COMMANDS)
    # Nor the commands, or what only they need.
    commands = {f"keras_attn.cli.{name}" for name in COMMANDS}
    heavy = {*"tensorflow keras numpy rich.progress keras_attn.export.silence".split()}
    assert not (commands | heavy) & set(modules.split())


@pytest.mark.runs
def test_a_mistake_is_one_line_in_a_process_of_its_own(tmp_path):
    # TensorFlow prints a lot when it is first imported.
    (tmp_path / "text.keras").write_text("no model")
    (tmp_path / "model.tflite").write_bytes(b"\0\0\0\0TFL3 and nothing else")
    line = [sys.executable, *"-m keras_attn.cli verify text.keras model.tflite".split()]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: LiteRT cannot load model.tflite: "
        "The model is not a valid Flatbuffer buffer\n"
    )


def test_the_bare_command_prints_the_help(command):
    assert command() == 0
    assert all(name in command.out for name in COMMANDS)


def test_version(command):
    assert command("--version") == 0
    assert command.out == f"keras-attn {keras_attn.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(command, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command(name, "--help") == 0
    assert f"Example: keras-attn {name} " in command.out
    # The line of `keras-attn --help` is the first one here.
    lines = [line.strip() for line in command.out.splitlines()]
    assert COMMANDS[name] in lines


def test_the_lines_of_a_help_are_as_wide_as_the_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert command("explain", "--help") == 0
    lines = [line.strip() for line in command.out.splitlines()]
    start, end = "X → Q, K → E → A → V → Y", "and convolutions in numbers."
    assert any(line.startswith(start) and "numbers that the" in line for line in lines)
    assert end in " ".join(lines)
    # In square brackets it would be taken for a style, and not shown.
    assert "linear: of q and k side by side" in " ".join(lines)


def test_wrong_options(command, tmp_path):
    (tmp_path / "a.keras").touch()
    command.refuses_each(
        [],
        ("Put a text of several words in quotes", "explain", "dot", "the", "cat"),
        ("No such command 'frob'", "frob"),
        ("See `keras-attn train --help`", "train"),
        ("'--epochs'", "train", "--epochs", 0),
        ("'x' is not", "export", tmp_path / "a.keras", "a.onnx", "--quantization", "x"),
    )


def test_missing_and_wrong_files(command, tmp_path):
    text, fake = tmp_path / "notes.txt", tmp_path / "fake.keras"
    text.write_text("no model")
    fake.write_text("no model")
    nothing = "neither config.json nor translator.json nor model.keras"
    command.refuses_each(
        [],
        ("does not exist", "verify", tmp_path / "none", text),
        ("does not exist", "attention", tmp_path / "none", "text"),
        ("MODEL must be a `.keras` file", "attention", text, "--ids", "1"),
        ("MODEL must be a `.keras` file", "export", text, "a.onnx"),
        (nothing, "attention", tmp_path, "--ids", "1"),
        ("must be one of: a SavedModel folder", "verify", text, text),
        ("fake.keras must be a complete `.keras` file", "export", fake, "a.onnx"),
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["attention", "bert_tiny", "a text"],
        ["export", "bert_tiny", "a.onnx"],
        ["generate", "--model", "gpt2_small", "--prompt", "a"],
        ["predict", "bert_tiny", "texts.csv"],
        ["search", "photos", "a dog", "--model", "clip_rn50"],
        ["verify", "bert_tiny", "a.onnx"],
    ],
)
def test_a_name_has_no_weights_to_use(command, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.onnx").touch()
    (tmp_path / "photos").mkdir()
    line = command.refuses(*arguments)
    assert "a name from `keras-attn list`, whose weights are random" in line


def test_unknown_models(command):
    assert "did you mean rnnsearch_50" in command.refuses("describe", "rnnserch_50")
    line = command.refuses("list", "qq*")
    assert "no model matches 'qq*' in its name, family or task" in line
    assert "`keras-attn list` lists all models" in line


def test_list_and_describe(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    assert command("list", "rnnsearch_*") == 0
    assert "rnnsearch_30" in command.out and "rnnsearch_50" in command.out
    assert "seq2seq" not in command.out
    assert command("list", "Rnnsearch") == 0  # Part of the name, in any case.
    assert "rnnsearch_30" in command.out and "transformer_base" not in command.out
    assert command("list", "translation") == 0  # Part of the task.
    assert "rnnsearch_30" in command.out and "transformer_base" in command.out
    assert "vit_base" not in command.out
    assert command("describe", "seq2seq_sutskever") == 0
    assert "384,000,000 parameters" in command.out  # Published.
    assert "384,112,000 parameters" in command.out
    assert "models.create('seq2seq_sutskever')" in command.out


def test_a_list_for_programs(command):
    """Whole names in a pipe, however narrow a terminal would be."""
    names = models.list_models()
    assert command("list", "--names") == 0
    assert command.out.split("\n") == [*names, ""]
    assert command("list") == 0
    lines = command.out.splitlines()
    assert [line.split("\t")[0] for line in lines] == names
    assert {len(line.split("\t")) for line in lines} == {4}
    assert command("list", "vit_tiny", "--json") == 0
    (card,) = json.loads(command.out)
    assert (card["name"], card["family"]) == ("vit_tiny_patch16", "vit")
    assert "exclude each other" in command.refuses("list", "--names", "--json")


def test_sizes_and_scores(command, tmp_path):
    assert command("list", "gpt3_175b", "--sizes") == 0
    sizes = "gpt3_175b 96 12288 96 175B - 300B_tokens v100 -"
    assert command.out == sizes.replace(" ", "\t").replace("_t", " t") + "\n"
    picture = tmp_path / "sizes.png"
    assert command("list", "gpt", "--sizes", "--output", picture) == 0
    lines = command.out.splitlines()
    assert len(lines) == 18 and {len(line.split("\t")) for line in lines[:-1]} == {9}
    assert "megatron_8p3b\t72\t3072\t32\t8.3B\t174 GB" in command.out
    assert "512 x v100\t9.2 days" in command.out and "8 x P600\t30 days" in command.out
    assert lines[-1] == f"Wrote {picture}" and picture.stat().st_size > 10_000
    image, picture = ["list", "swin", "--score"], tmp_path / "scores.svg"
    assert command(*image, "imagenet TOP-1", "--output", picture) == 0
    assert "swin_base\t87.8M\t86.4\tfrom ImageNet-21k, at 384\ttable 1" in command.out
    assert picture.read_text().startswith("<?xml")
    command.refuses_each(
        image[:2],
        ("--sizes and --score exclude", "--sizes", "--score", "ImageNet top-1"),
        ("--output draws what --sizes or --score prints", "--output", picture),
        ("--output must end in one of", "--sizes", "--output", tmp_path / "x.txt"),
        ("of these models: ImageNet top-1. Received: 'BLEU'", "--score", "BLEU"),
    )
    without = ["list", "rnnsearch", "--output", picture]
    assert "the models must have at least" in command.refuses(*without, "--sizes")
    line = command.refuses(*without, "--score", "BLEU En-Fr")
    assert "--score must be one" in line and "parameters: none" in line
    assert not command.out
    assert command("describe", "transformer_base") == 0
    for text in (  # Each fits into a line of 80 letters.
        "WMT'14 En-De, 2.5B tokens, 8 x p100, 12 h, 3.3e+18 FLOPs",
        "(sections 5.1",
        "BLEU En-De 27.3 newstest 2014, beam of 4 (table 2)",
    ):
        assert text in command.out
    assert command("describe", "swin_tiny") == 0
    assert "2+2+6+2" in command.out and "3+6+12+24" in command.out
    assert command("list", "swin_tiny", "--json") == 0
    (card,) = json.loads(command.out)
    assert card["layers"] == [2, 2, 6, 2]
    assert card["scores"][0]["value"] == 81.3
    assert card["training"]["images"] == 300 * 1_281_167


def test_a_description_has_the_arguments(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    assert command("describe", "vit_tiny_patch16") == 0
    assert "hidden_dim=192: D" in command.out  # The variant's.
    assert "dropout=0.0: Probability of dropping" in command.out
    assert command("describe", "vit_tiny_patch16", "--json") == 0
    found = json.loads(command.out)
    assert found["counted_parameters"] == 5_717_416
    described = {"value": 192, "description": "D. Default: the variant's."}
    assert found["arguments"]["hidden_dim"] == described
    assert command("describe", CHECKPOINTS / "bert_classifier", "--json") == 0
    found = json.loads(command.out)
    assert found["inputs"]["token_ids"] == "int32 (?, ?)"
    assert found["counted_parameters"] == 3_201 and "classifier" in found["tasks"]


@pytest.mark.parametrize(
    "typed, meant",
    [
        ("vit_base", "vit_base_patch16 or vit_base_patch32?"),
        ("ViT-tiny", "vit_tiny_patch16?"),
        ("bert-base-uncased", "bert_base"),
        ("gpt2", "gpt2_xl or gpt2_"),
        ("resnt50", "resnet50"),
    ],
)
def test_a_name_that_was_meant(command, typed, meant):
    assert f"did you mean {meant}" in command.refuses("describe", typed)


def without_layout(table):
    """A table without spaces and borders: a long path fills several lines."""
    return "".join(table.replace("│", "").split())


def test_describe_a_file_or_a_folder(command, keras_files, untrained_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    # Sizes alone: neither weights nor tensors are read.
    monkeypatch.setattr(keras.saving, "load_model", None)
    monkeypatch.setattr(TensorFile, "read", None)
    assert command("describe", keras_files / "1.keras") == 0
    assert "features: float32 (?, 7)" in command.out
    assert "output: float32 (?, 3)" in command.out
    assert "24 parameters" in command.out and "load_model(" in command.out
    assert command("describe", untrained_run) == 0
    assert "decoder_token_ids: int32 (?, ?)" in command.out
    assert f"Translator.load({str(untrained_run)!r})" in without_layout(command.out)
    bert = CHECKPOINTS / "bert_classifier"
    assert command("describe", bert) == 0
    assert "encoder, masked_lm, pretrainer" in command.out  # Tasks.
    assert "3,201 parameters" in command.out
    assert command("describe", bert, "--task", "encoder") == 0
    assert "sequence_output: float32 (?, ?, 12)" in command.out
    assert f"load_checkpoint({str(bert)!r},'encoder')" in without_layout(command.out)
    line = command.refuses("describe", bert, "--task", "causal_lm")
    assert "`task` must be one of encoder, masked_lm" in line
    line = command.refuses("describe", untrained_run, "--task", "encoder")
    assert "--task is for a checkpoint folder" in line


def test_a_run_with_a_damaged_model(command, untrained_run, tmp_path):
    """Every command names the file, not what Keras makes of it."""
    run = tmp_path / "run"
    shutil.copytree(untrained_run, run)
    whole = (run / "model.keras").read_bytes()
    (run / "model.keras").write_bytes(whole[:-99])
    for arguments in (
        ["attention", run, "a text"],
        ["describe", run],
        ["export", run, tmp_path / "a.tflite"],
        ["generate", "--model", run, "--prompt", "a text"],
        ["plan", run],
    ):
        line = command.refuses(*arguments)
        assert "model.keras must be a complete `.keras` file" in line
        assert "damaged" in line and f"Received: '{run}/model.keras'" in line
    (run / "translator.json").unlink()  # No translator, but still a run.
    assert "damaged" in command.refuses("attention", run, "--ids", "1")


def test_a_model_that_does_not_declare_its_inputs(command, tmp_path):
    @keras.saving.register_keras_serializable("tests")
    class Undeclared(keras.Model):
        def build(self, shape):
            self.built = True

        def call(self, inputs):
            return inputs

    model = Undeclared()
    model(np.ones((2, 7), "float32"))
    model.save(tmp_path / "a.keras")
    for arguments in (["plan"], ["describe"], ["attention", "--ids", "1 2"]):
        line = command.refuses(*arguments, tmp_path / "a.keras")
        assert "MODEL must be a functional or sequential model" in line
        assert line.endswith("a.keras', a Undeclared\n")


def test_the_package_is_the_command_and_completes_it():
    words = "keras-attn finetune --lora-t"
    completing = {"COMP_WORDS": words, "COMP_CWORD": "2"}
    environment = os.environ | completing | {"_KERAS_ATTN_COMPLETE": "complete_bash"}
    line = [sys.executable, "-m", "keras_attn"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["--lora-targets"]
    done = subprocess.run([*line, "--version"], capture_output=True, text=True)
    assert done.stdout == f"keras-attn {keras_attn.__version__}\n"


@pytest.fixture
def failing(monkeypatch):
    """Makes `list` and `demo` fail with an exception."""

    def fail_with(error):
        def importing_tensorflow():
            raise error

        for module in (list_models, demo):
            monkeypatch.setattr(module, "importing_tensorflow", importing_tensorflow)

    return fail_with


def test_a_bug_keeps_its_traceback(command, failing):
    failing(KeyError("a bug"))
    with pytest.raises(KeyError):
        command("list")


def test_debugging_keeps_every_traceback(command, failing, monkeypatch):
    failing(ValueError("a mistake"))
    assert command.refuses("list") == "error: a mistake\n"
    monkeypatch.setenv("KERAS_ATTN_DEBUG", "1")
    with pytest.raises(ValueError):
        command("list")


def test_errors_of_many_lines_are_printed_in_one(command, failing):
    failing(TypeError("one\n  two\n"))
    assert command.refuses("list") == "error: one two\n"
    failing(OSError(28, "No space left", "a/b"))
    assert command.refuses("list") == "error: No space left: a/b\n"


def test_memory_and_disks_that_are_full(command, failing):
    """As TensorFlow, JAX and NumPy say it, in many lines or as another type."""
    oom = "OOM when allocating tensor with shape[32,512,768] and type float on GPU:0"
    graph = (
        f"Graph execution error:\n\nDetected at node a\n\n{oom} by allocator b\n\t[["
    )
    jax = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8 bytes."
    for error, cause in (
        (tf.errors.ResourceExhaustedError(None, None, graph), oom),
        (RuntimeError(f"{jax}\nmore"), jax),
        (MemoryError("Unable to allocate 8 TiB"), "Unable to allocate 8 TiB"),
    ):
        failing(error)
        line = command.refuses("list")
        assert "out of memory: use a smaller batch" in line
        assert line.endswith(f"Received: {cause}\n")
    full = "{{node a}} r/logs/events.v2; No space left on device\n\tFailed to flush"
    failing(tf.errors.ResourceExhaustedError(None, None, full))
    line = command.refuses("list")
    assert line == "error: r/logs/events.v2; No space left on device\n"


def test_errors_of_a_layer_are_printed_without_the_frame_of_keras(command, failing):
    inputs = keras.Input((7,))
    layer = keras.layers.Dense(3)
    model = keras.Model(inputs, layer(inputs))
    with pytest.raises(ValueError) as shape:
        model(np.ones((2, 5), "float32"))
    with pytest.raises(tf.errors.InvalidArgumentError) as index:
        keras.layers.Embedding(7, 3)(np.array([[7]]))
    assert "\x1b[1m" in str(index.value) and "Arguments received" in str(index.value)
    for error in (shape.value, index.value):
        failing(error)
        line = command.refuses("list")
        frames = ("\x1b", "Exception encountered", "Arguments received", "{{", "[Op")
        assert not [frame for frame in frames if frame in line]
    assert line == "error: indices[0,0] = 7 is not in [0, 7)\n"


def test_an_interruption(command, failing):
    failing(KeyboardInterrupt())
    assert command("list") == 130
    assert command.err == "error: interrupted\n"
    assert command("demo") == 130
    assert "run the same command to go on" in command.err


def test_an_interruption_outside_of_a_command(command, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    # The package has a Typer application of the module's name.
    module = importlib.import_module("keras_attn.cli.app")
    monkeypatch.setattr(module, "app", interrupted)
    assert command("list") == 130
    assert command.err == "error: interrupted\n"


@pytest.fixture(scope="module")
def keras_files(tmp_path_factory):
    """Two models of one shape and different weights."""
    folder = tmp_path_factory.mktemp("keras")
    for seed in (1, 2):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [keras.Input((7,), name="features"), keras.layers.Dense(3, name="scores")]
        )
        model.save(folder / f"{seed}.keras")
    np.savez(folder / "samples.npz", np.ones((5, 7), "float32"))
    return folder


def test_a_keras_file_is_exported_and_verified(command, keras_files):
    model, artefact = keras_files / "1.keras", keras_files / "1.tflite"
    assert command("export", model, artefact) == 0
    assert "Export to litert" in command.out and "max abs diff" in command.out
    assert command("verify", model, artefact, "--json") == 0
    assert json.loads(command.out)["format"] == "litert"
    assert command("export", model, artefact, "--json") == 0
    assert json.loads(command.out)["quantization"] is None
    assert command("verify", model, artefact) == 0
    assert "agrees with" in command.out and command.err == ""


def test_an_artefact_of_another_model_fails_the_check(command, keras_files):
    model, artefact = keras_files / "1.keras", keras_files / "1.onnx"
    assert command("export", model, artefact) == 0
    assert command("verify", keras_files / "2.keras", artefact) == 1
    assert command.err.startswith(f"error: {artefact} disagrees with ")
    assert "max abs diff" in command.err and command.err.count("\n") == 1


def test_paths_that_an_export_refuses(command, keras_files):
    model, onnx = keras_files / "1.keras", keras_files / "a.onnx"
    command.refuses_each(
        ["export", model],
        ("a `.tflite` file", "a.pb"),
        ("an existing folder", keras_files / "none" / "a.onnx"),
        ("1.keras", onnx, "--report", model / "a.json"),
    )
    assert not onnx.exists()


def test_samples_of_a_keras_file(command, keras_files):
    model, artefact = keras_files / "1.keras", keras_files / "samples.tflite"
    text, broken = keras_files / "samples.txt", keras_files / "broken.npz"
    for path in (text, broken):
        path.write_text("one\n")
    samples = keras_files / "samples.npz"
    command.refuses_each(
        ["export", model, artefact, "--quantization", "int8"],
        ("--samples must be given for int8",),
        ("must be an `.npz`", "--samples", text),
        ("must be a valid `.npz`", "--samples", broken),
        ("`sample_inputs` must have the keys", "--samples", samples),
    )


@pytest.mark.shipped
def test_an_artefact_of_which_nothing_is_compared_does_not_agree(command, tmp_path):
    x = keras.Input((3,), name="x")
    model, artefact = tmp_path / "nan.keras", tmp_path / "nan.onnx"
    keras.Model(x, keras.ops.log(-keras.ops.abs(x) - 1)).save(model)
    assert command("export", model, artefact) == 0
    assert "not compared" in command.out
    assert command("verify", model, artefact) == 1
    assert "was not compared" in command.err and "agrees" not in command.out
