"""`keras-attn plan`: the cost of a model, by name or as a file or a folder."""

import dataclasses
import json

import keras
import pytest
from parity.folders import CHECKPOINTS

from keras_attn import models
from keras_attn.cli import tpu_compile
from keras_attn.cli.plan import _time, short
from keras_attn.cli.published import count
from keras_attn.cli.tpu_compile import Answer, reduced_bytes
from keras_attn.cli.training_runs import _published
from keras_attn.models.checkpoints.tensors import TensorFile
from keras_attn.models.plans import tpu_chips

pytestmark = pytest.mark.compiled


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")


def test_a_plan_is_printed(command):
    assert command("plan", "gpt2_small", "--batch", "2", "--sequence", "8") == 0
    for text in (
        "gpt2_small: 2 x 8 tokens",
        "In float32. Memory is for one device",
        "124,439,808",
        "498 MB",  # Weights.
        "adamw",
        "996 MB",
        "1.18 MB of keys, values or states",
    ):
        assert text in command.out
    options = ["--devices", "2", "--batch", "2", "--sequence", "8"]
    assert command("plan", "bert_tiny", *options, "--dtype", "mixed_bfloat16") == 0
    assert "In mixed_bfloat16. Memory is for each of 2 devices" in command.out
    assert "cache" not in command.out


def test_images_are_counted_in_rows(command):
    assert command("plan", "cnn_self_attention", "--batch", "3") == 0
    assert "cnn_self_attention: 3 rows" in command.out
    assert "FLOPs per row" in command.out
    refused = command.refuses("plan", "cnn_self_attention", "--sequence", "8")
    assert "`sequence` is for models of tokens" in refused


def test_a_checkpoint_folder(command, monkeypatch):
    """Of the weights, only the headers of their files are read."""
    monkeypatch.setattr(TensorFile, "read", None)
    monkeypatch.chdir(CHECKPOINTS)
    assert command("plan", "gpt2_causal_lm", "--batch", 3, "--sequence", 5) == 0
    assert "gpt2_causal_lm: 3 x 5 tokens" in command.out
    assert "4,344" in command.out and "keys, values or states" in command.out
    options = ["--task", "classifier", "--dtype", "bfloat16"]
    assert command("plan", "bert_encoder", *options) == 0
    assert "bert_encoder: 1 x 17 tokens" in command.out and "In bfloat16" in command.out
    # The encoder's, and two classes of 12 weights and a bias.
    assert f"{3136 + 2 * 13:,}" in command.out
    assert keras.config.dtype_policy().name == "float32"


def test_a_run_and_a_keras_file(command, untrained_run, tmp_path, monkeypatch):
    file = untrained_run / "model.keras"
    expected = f"{keras.saving.load_model(file).count_params():,}"
    monkeypatch.setattr(keras.saving, "load_model", None)
    for path in (untrained_run, file):
        assert command("plan", path, "--sequence", 5, "--batch", 2) == 0
        assert f"{path.name}: 2 x 5 tokens" in command.out and expected in command.out
    # Keras saved the policies of the layers.
    layer = keras.layers.Dense(3, dtype="mixed_bfloat16")
    keras.Sequential([keras.Input((7,)), layer]).save(tmp_path / "dense.keras")
    assert command("plan", tmp_path / "dense.keras", "--batch", 5) == 0
    assert "dense.keras: 5 rows" in command.out and "In mixed_bfloat16" in command.out
    line = command.refuses("plan", file, "--dtype", "bfloat16")
    assert "--dtype is for names and checkpoint folders" in line
    line = command.refuses("plan", file, "--task", "encoder")
    assert "--task is for a checkpoint folder" in line


def test_a_name_comes_before_a_path(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert_tiny").mkdir()
    assert command("plan", "bert_tiny", "--sequence", 8) == 0
    assert "has neither config.json nor" in command.refuses("plan", "./bert_tiny")
    line = command.refuses("plan", "bert_tiny", "--task", "encoder")
    assert "--task is for a checkpoint folder; a name from" in line


def test_wrong_options(command):
    line = command.refuses("plan", "gpt2_smal")
    assert "MODEL is not a path that exists, nor a name from `keras-attn list`" in line
    assert "did you mean gpt2_small" in line
    encoder, tpu = CHECKPOINTS / "bert_encoder", ["bert_tiny", "--tpu"]
    command.refuses_each(
        ["plan"],
        ("`dtype` must be one of", "bert_tiny", "--dtype", "half"),
        ("multiple of `devices`", "bert_tiny", "--devices", 2),
        ("`task` must be one of encoder, masked_lm", encoder, "--task", "causal_lm"),
        ("--tpu must be a generation", *tpu, "v7x:2x2"),
        ("such as v5e:2x2, v6e:2x2", *tpu, "v7x:2x2"),
        ("must be v5e: and one of 1x1, 2x2, 2x4", *tpu, "v5e:3x3"),
        ("must be a multiple of the 4 devices of", *tpu, "v5e:2x2", "--batch", 6),
        ("--devices is for devices that share", *tpu, "v5e:2x2", "--devices", 4),
        ("need --tpu", "bert_tiny", "--compile"),
    )


def test_a_training_run(command):
    run = ["plan", "bert_tiny", "--sequence", 8, "--tokens", "1e12"]
    assert command(*run) == 0
    assert "bert_tiny, trained on 1,000,000,000,000 tokens" in command.out
    assert "device-days" not in command.out
    assert command(*run, "--json") == 0
    found = json.loads(command.out)
    flops = found["training_flops"] / 8 * 1e12
    assert found["training_run"] == {"flops": pytest.approx(flops)}
    devices = ["--hardware", "v100:7", "--utilization", 0.25, "--price", 2.5]
    assert command(*run, *devices) == 0
    days = flops / (125e12 * 0.25 * 86_400)
    for text in (
        f"{flops:.3g}: {flops / 1e12:.3g} per token, forward and backward",
        "7 x v100: 125 TFLOP/s each in float16, at 25% utilization",
        count(days),
        f"{count(days * 24 * 0.3)} kWh at 300 W per device",
        f"${count(days * 24 * 2.5)} at $2.5 per device-hour",
        "NVIDIA, data sheet of V100 SXM2",
        "BooksCorpus, English Wikipedia (README of",
    ):
        assert text in command.out
    assert command(*run, *devices, "--json") == 0
    found = json.loads(command.out)["training_run"]
    assert found["device_days"] == pytest.approx(days)
    assert found["hours"] == pytest.approx(days * 24 / 7)
    assert (found["hardware"], found["devices"]) == ("v100", 7)
    # Images are counted in rows, and as many as were published; no watts are.
    assert command("plan", "vgg16", "--hardware", "tpu_v5e:16") == 0
    assert "vgg16, trained on 94,720,000 rows" in command.out
    assert "needs --watts" in command.out
    assert "ImageNet, 94.7M images, 4 x TITAN Black (sections 3.1" in command.out


def test_a_published_run_says_which_utilization_it_reached():
    training = models.describe("transformer_base").training
    assert training is not None
    counted = models.plan("bert_tiny", sequence=8, vocabulary_size=101)
    counted = dataclasses.replace(counted, training_flops=8 * 392e6)
    words = _published(training, counted)
    assert "2.5B tokens, 8 x p100, 12 h, 3.3e+18 FLOPs (sections" in words
    # 2.5e9 x 392e6 FLOPs; 8 x 10.6e12 FLOP/s for 43,200 s.
    assert words.endswith("Counted as above, its utilization was 27%")
    for missing in ("devices", "tokens"):
        without = dataclasses.replace(training, **{missing: None})
        assert "utilization" not in _published(without, counted)


def test_wrong_options_of_a_training_run(command):
    tokens = ("--tokens", "1e9")
    command.refuses_each(
        ["plan", "bert_tiny"],
        ("--hardware must be one of k40, m40", *tokens, "--hardware", "x100:8"),
        ("--hardware must have a positive number", *tokens, "--hardware", "v100:"),
        ("--hardware needs --tokens, or --rows", "--hardware", "v100:8"),
        ("--tokens and --rows exclude each other", *tokens, "--rows", 3),
        ("--price needs --hardware", *tokens, "--price", 2),
        ("--utilization needs --hardware", "--utilization", 0.5),
        ("--utilization", *tokens, "--hardware", "v100", "--utilization", 30),
        ("--utilization must be", *tokens, "--hardware", "v100", "--utilization", 0),
        ("--tokens of a whole run", *tokens, "--tpu", "v5e:1x1"),
        ("--tokens must be a number above 0", "--tokens", 0),
        ("value for '--tokens'", "--tokens", "nan"),
        ("value for '--tokens'", "--tokens", "1e400"),
    )
    line = command.refuses("plan", "cnn_self_attention", *tokens)
    assert "cnn_self_attention needs --rows" in line


TPU = ["plan", "bert_tiny", "--tpu", "v5e:2x2", "--batch", 8, "--sequence", 16]


def test_a_tpu_without_its_compiler(command, monkeypatch):
    monkeypatch.setattr(tpu_compile, "compile_in_a_process", None)
    assert command(*TPU, "--no-compile") == 0
    for text in (
        "bert_tiny on v5e:2x2: 8 rows of 16 tokens",
        "4 x v5e: 197 TFLOP/s",
        # Weights and AdamW's two floats for each: 12 bytes a parameter.
        "at least 52.6 MB of 16.9 GB per chip: may fit",
        "unknown: activations, gradients",
        "all-reduce of gradients",
        "bound by",
        "rows/s at most",
        "The memory is that of weights, optimizer and inputs, without activations.",
    ):
        assert text in command.out
    assert command(*TPU, "--no-compile", "--json") == 0
    found = json.loads(command.out)["tpu"]
    assert (found["temporary"], found["fits"]) == (None, None)
    assert found["memory"] == found["arguments"] and found["rows_per_second"] > 0
    small = dataclasses.replace(tpu_chips.CHIPS["v5e"], memory=50 * 10**6)
    with monkeypatch.context() as patched:
        patched.setitem(tpu_chips.CHIPS, "v5e", small)
        assert command(*TPU, "--no-compile") == 0
    assert "at least 52.6 MB of 50 MB per chip: DOES NOT FIT" in command.out
    assert "rows/s" not in command.out

    def missing(request):
        raise ImportError("Compiling for TPUs needs `libtpu`")

    monkeypatch.setattr(tpu_compile, "compile_in_a_process", missing)
    assert command(*TPU) == 0
    assert "without activations. Compiling for TPUs needs `libtpu`" in command.out
    assert "Compiling for TPUs needs" in command.refuses(*TPU, "--compile")


def test_what_the_compiler_of_a_tpu_says(command, monkeypatch):
    requests = []

    def answers(answer):
        def compiled(request):
            requests.append(request)
            return answer

        monkeypatch.setattr(tpu_compile, "compile_in_a_process", compiled)

    answers(Answer(3 * 10**9, 2 * 10**9, 10**9, 8 * 10**8, 7.3))
    assert command(*TPU, "--dtype", "mixed_bfloat16") == 0
    assert "4 GB of 16.9 GB per chip: fits" in command.out
    # Each chip sends 2 * 3 / 4 of 0.8 GB over two links of 50 GB/s.
    assert "12 ms for 1.2 GB per chip" in command.out
    assert "of the program that libtpu compiled in 7 s" in command.out
    (request,) = requests
    assert (request.model, request.is_name, request.batch) == ("bert_tiny", True, 8)
    assert (request.sequence, request.topology) == (16, "v5e:2x2")
    answers(Answer(refused=20 * 2**30, error="RESOURCE_EXHAUSTED"))
    assert command(*TPU) == 0
    assert "21.5 GB of 16.9 GB per chip: DOES NOT FIT" in command.out
    assert "speed" not in command.out and "bound by" not in command.out
    assert command(*TPU, "--json") == 0
    found = json.loads(command.out)["tpu"]
    assert (found["fits"], found["rows_per_second"]) == (False, None)
    answers(Answer(error="a bug"))
    assert command(*TPU) == 0
    assert "libtpu made no program: a bug" in command.out
    assert "compiling failed. a bug" in command.refuses(*TPU, "--compile")


def test_bytes_of_all_reduces():
    text = """
  %a = f32[3,5]{1,0:T(8,128)} all-reduce(%x), channel_id=1, to_apply=%add
  %b = (bf16[7]{0}, f32[]{:T(128)}) all-reduce(%y, %z), channel_id=2
  %c = f32[11]{0} all-reduce-start(%w), channel_id=3
  %d = f32[11]{0} all-reduce-done(%c)
  %e = f32[13]{0} fusion(%d), kind=kLoop, calls=%all-reduce.7
"""
    assert reduced_bytes(text) == 4 * 15 + 2 * 7 + 4 + 4 * 11


def test_times_have_no_exponent():
    seconds = [0.0, 3.2e-5, 0.012, 0.4567, 11.21, 1234.5, 7200.0]
    times = ["0 µs", "32 µs", "12 ms", "457 ms", "11.2 s", "1234 s", "2 h"]
    assert list(map(_time, seconds)) == times


def test_a_plan_as_json(command):
    assert command("plan", "bert_tiny", "--sequence", 8, "--json") == 0
    found = json.loads(command.out)
    assert (found["name"], found["parameters"]) == ("bert_tiny", 4_385_920)
    kept = ("weights", "gradients", "optimizer_state", "activations")
    assert found["training_memory"] == sum(found[name] for name in kept)


@pytest.mark.parametrize(
    "number, text",
    [(None, "0 "), (999, "999 "), (1000, "1 k"), (1e6, "1 M"), (1.2345e12, "1.23 T")],
)
def test_quantities_have_the_prefix_of_their_size(number, text):
    assert short(number) == text
