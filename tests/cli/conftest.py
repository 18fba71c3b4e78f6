import csv
import json
import shutil
import warnings
from pathlib import Path

import keras
import pytest

from keras_attn import models
from keras_attn.cli import main
from keras_attn.cli.runs import claim
from keras_attn.data import CharacterTokenizer, make_dates
from keras_attn.translator import Translator

TINY = "--tokenizer character --hidden-dim 6 --embedding-dim 5 --batch-size 29".split()


class CommandLine:
    """Runs command lines in this process, and keeps their output."""

    def __init__(self, capsys):
        self._capsys = capsys

    def __call__(self, *arguments):
        code = main([str(argument) for argument in arguments])
        self.out, self.err = self._capsys.readouterr()
        return code

    def refuses(self, *arguments):
        """Asserts exit code 2 and returns the one line of the error."""
        assert self(*arguments) == 2
        assert self.err.startswith("error: ")
        assert self.err.count("\n") == 1
        assert "Traceback" not in self.out + self.err
        return self.err

    def refuses_each(self, given, *cases):
        """Asserts what errors say: a text, and arguments after the ones given."""
        __tracebackhide__ = True
        for text, *arguments in cases:
            line = self.refuses(*given, *arguments)
            assert text in line, line

    def rows(self):
        """The table that was printed."""
        return list(csv.DictReader(self.out.splitlines()))


@pytest.fixture
def command(capsys):
    return CommandLine(capsys)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """31 dates, one per line, one of them with an empty side.

    Of similar length: each length that batches are padded to is compiled, for seconds.
    """
    folder = tmp_path_factory.mktemp("corpus")
    dates = [pair for pair in make_dates(400, seed=3) if 9 <= len(pair[0]) <= 16]
    pairs = [*dates[:30], ("31 may 1999", "")]
    for name, side in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
        text = "".join(f"{line}\n" for line in side)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return ["--source", folder / "source.txt", "--target", folder / "target.txt"]


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory):
    """As `run_dir`, without training: each test process needs its own, fast."""
    folder = tmp_path_factory.mktemp("runs") / "untrained"
    keras.utils.set_random_seed(1)
    tokenizers = map(
        CharacterTokenizer.train, zip(*make_dates(99, seed=3), strict=True)
    )
    source, target = tokenizers
    model = models.create(
        "rnnsearch_50",
        source_vocabulary_size=source.vocabulary_size,
        target_vocabulary_size=target.vocabulary_size,
        embedding_dim=5,
        hidden_dim=6,
        attention_dim=6,
        maxout_dim=3,
    )
    folder.mkdir()
    claim(folder, {"command": "train"})
    Translator(model, source, target, max_length=24).save(folder)
    return folder


@pytest.fixture(scope="session")
def run_dir(corpus, tmp_path_factory):
    """The folder of a translator trained for one epoch, which has learned nothing."""
    folder = tmp_path_factory.mktemp("runs") / "dates"
    options = [*corpus, *TINY, "--epochs", 1, "--score", "exact_match"]
    assert main([str(o) for o in ["train", *options, "--run-dir", folder]]) == 0
    return folder


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """A tiny BERT with its tokenizer."""
    pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
    from model_cases import build

    from keras_attn.data import WordPieceTokenizer

    folder = tmp_path_factory.mktemp("checkpoints") / "bert"
    sizes = {"vocabulary_size": 61, "hidden_dim": 6, "num_heads": 2, "num_layers": 1}
    models.save_checkpoint(build("bert_base", **sizes), folder)
    texts = ["a good film", "a bad film", "very good", "so bad"]
    WordPieceTokenizer.train(texts * 3, vocabulary_size=61).save(folder)
    return folder


@pytest.fixture(scope="session")
def gpt(tmp_path_factory):
    """A tiny GPT-2 with its tokenizer."""
    tokenizer = Path(__file__).parents[1] / "data/references/gpt2"
    folder = shutil.copytree(tokenizer, tmp_path_factory.mktemp("checkpoints") / "gpt2")
    size = len(json.loads((folder / "vocab.json").read_text()))
    sizes = {"num_layers": 1, "hidden_dim": 6, "num_heads": 2, "mlp_dim": 24}
    model = models.build_gpt(vocabulary_size=size, max_sequence_length=31, **sizes)
    models.save_checkpoint(model, folder)
    return folder


@pytest.fixture
def eager_runs(monkeypatch):
    """Fine-tunes step by step: tracing and compiling a few steps takes far longer.

    The cost, which needs a graph, is not counted.
    """
    # The data sets are still graphs. pytest restores the filters after the test.
    warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run")
    import tensorflow as tf

    from keras_attn.cli.finetuning import run

    monkeypatch.setattr(run, "say_cost", lambda job: None)
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)
