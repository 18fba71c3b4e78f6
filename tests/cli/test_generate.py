"""`keras-attn generate`: the text of the model, printed at once, up to a stop."""

import re
import shutil
import types
from pathlib import Path

import keras
import model_cases
import numpy as np
import pytest
from decoding.toys import log_softmax, table_model

from keras_attn import models
from keras_attn.cli.generate import _encode, _load_scorer
from keras_attn.cli.numbered_texts import Continuation, print_numbered
from keras_attn.cli.printed_text import StoppableText, StoppedError
from keras_attn.data import (
    ByteLevelBPETokenizer,
    CharacterTokenizer,
    load_text_tokenizer,
    load_tokenizer,
)
from keras_attn.decoding import Beam, Greedy, Sample, generate, log_likelihood
from keras_attn.translator import Translator

pytestmark = pytest.mark.compiled

TOKENIZER = Path(__file__).parents[1] / "data/references/gpt2"
POSITIONS, PROMPT = 31, "an aa"


def build(vocabulary_size):
    sizes: dict = {"num_layers": 2, "hidden_dim": 21, "num_heads": 3, "mlp_dim": 37}
    sizes |= {"vocabulary_size": vocabulary_size, "max_sequence_length": POSITIONS}
    model = models.build_gpt(**sizes)
    random = np.random.default_rng(1)
    for weight in model.weights:
        scale = 0.6 if "position_embedding" in weight.path else 0.2
        drawn = random.normal(0, scale, weight.shape)
        weight.assign(1 + drawn if weight.path.endswith("gamma") else drawn)
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return ByteLevelBPETokenizer.from_folder(TOKENIZER)


@pytest.fixture(scope="module")
def model(tokenizer):
    return build(tokenizer.vocabulary_size)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A tiny GPT-2 in the Hugging Face layout."""
    folder = tmp_path_factory.mktemp("checkpoints") / "gpt2"
    models.save_checkpoint(model, folder)
    shutil.copytree(TOKENIZER, folder, dirs_exist_ok=True)
    return folder


def text_of(model, tokenizer, length, prompt=PROMPT, **options):
    """What the command must print."""
    ids = np.array([tokenizer.encode(prompt)])
    options = {"end_token_id": tokenizer.end_token_id, **options}
    answer = generate(model, {"token_ids": ids}, length, **options)
    return tokenizer.decode(answer.token_ids[0]) + "\n"


def test_it_prints_the_greedy_continuation(command, folder, model, tokenizer):
    written = text_of(model, tokenizer, 9)
    assert len(set(written)) > 3
    options = ["generate", "--model", folder, "--prompt", PROMPT]
    assert command(*options, "--max-new-tokens", 9) == 0
    assert (command.out, command.err) == (written, "")
    # The default is limited by the positions of the model.
    room = POSITIONS - len(tokenizer.encode(PROMPT))
    assert command(*options) == 0
    assert command.out == text_of(model, tokenizer, room)


def test_sampling_and_beam_search(command, folder, model, tokenizer):
    options = ["generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 9]
    assert command(*options, "--seed", 5, "--top-k", 11, "--temperature", 1.5) == 0
    strategy = Sample(seed=5, top_k=11, temperature=1.5)
    sampled = text_of(model, tokenizer, 9, strategy=strategy)
    assert command.out == sampled
    assert sampled != text_of(model, tokenizer, 9)
    assert command(*options, "--top-p", 0.7, "--seed", 3) == 0
    strategy = Sample(seed=3, top_p=0.7)
    assert command.out == text_of(model, tokenizer, 9, strategy=strategy)
    assert command(*options, "--beam", 3) == 0
    assert command.out == text_of(model, tokenizer, 9, strategy=Beam(3))


@pytest.mark.parametrize("beam", [[], ["--beam", 1]])
def test_it_stops_before_a_stop_text(command, folder, model, tokenizer, beam):
    written = text_of(model, tokenizer, 9)
    stop = written[4:6]
    options = ["generate", "--model", folder, "--prompt", PROMPT, "--max-new-tokens", 9]
    assert command(*options, "--stop", "not there", "--stop", stop, *beam) == 0
    assert command.out == written[: written.index(stop)] + "\n"


def test_it_stops_at_the_end_token(command, model, tokenizer, tmp_path):
    # The third token it would generate becomes the end token.
    ids = np.array([tokenizer.encode(PROMPT)])
    third = int(generate(model, {"token_ids": ids}, 3).token_ids[0, 2])
    pieces = list(tokenizer.pieces)
    end = tokenizer.end_token_id
    changed = build(len(pieces))
    table = np.array(changed.get_layer("token_embedding").embeddings)
    table[[third, end]] = table[[end, third]]
    changed.get_layer("token_embedding").embeddings.assign(table)
    models.save_checkpoint(changed, tmp_path)
    shutil.copytree(TOKENIZER, tmp_path, dirs_exist_ok=True)
    options = ["--model", tmp_path, "--prompt", PROMPT, "--max-new-tokens", 9]
    for beam in ([], ["--beam", 1]):
        assert command("generate", *options, *beam) == 0
        assert command.out == text_of(changed, tokenizer, 2)


def test_an_empty_prompt_is_the_start_token(command, folder, model, tokenizer):
    options = ["--model", folder, "--prompt", "", "--max-new-tokens", 5]
    assert command("generate", *options) == 0
    ids = np.array([[tokenizer.start_token_id]])
    answer = generate(model, {"token_ids": ids}, 5)
    assert command.out == tokenizer.decode(answer.token_ids[0]) + "\n"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A run: a `.keras` file and a character tokenizer."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = CharacterTokenizer.train(["the quick brown fox jumps"])
    model = build(tokenizer.vocabulary_size)
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.json")
    return folder


def test_a_run_folder(command, run_folder):
    options = ["--model", run_folder, "--prompt", "the fox ", "--max-new-tokens", 7]
    assert command("generate", *options) == 0
    model = keras.saving.load_model(run_folder / "model.keras")
    tokenizer = load_tokenizer(run_folder / "tokenizer.json")
    assert command.out == text_of(model, tokenizer, 7, prompt="the fox ")


def read_numbered(out):
    """The scores and the texts of what is printed; no text has a line break."""
    rows = re.findall(r"^(\d+)\. \((-?[\d.]+)\) (.*)$", out, re.M)
    assert [int(row[0]) for row in rows] == list(range(1, len(out.splitlines()) + 1))
    return [float(row[1]) for row in rows], [row[2] for row in rows]


def test_ten_tries_are_numbered_the_best_first(command, run_folder, tmp_path):
    prompt, count, length = "the fox ", 10, 9
    model = keras.saving.load_model(run_folder / "model.keras")
    tokenizer = load_tokenizer(run_folder / "tokenizer.json")
    inputs = {"token_ids": np.array([tokenizer.encode(prompt)])}
    end = tokenizer.end_token_id

    def expected(strategy, number):
        found = generate(
            model,
            inputs,
            length,
            strategy=strategy,
            num_results=number,
            end_token_id=end,
        )
        ids, scores = found.token_ids[0], found.scores[0].astype("float64")
        lengths = np.cumsum(ids == end, 1) - (ids == end)
        return ids, scores, (lengths == 0).sum(1)

    ids, totals, lengths = expected(Sample(seed=4), count)
    texts = tokenizer.decode_batch(ids)
    assert len(set(lengths)) > 1 and len(set(texts)) == count
    options = ["generate", "--model", run_folder, "--prompt", prompt]
    options += ["--max-new-tokens", length]
    tries = ["--num-samples", count, "--seed", 4]
    orders = []
    for rank, scores in (([], totals / lengths), (["--rank", "total"], totals)):
        assert command(*options, *tries, *rank) == 0
        found, written = read_numbered(command.out)
        order = np.argsort(-scores)
        np.testing.assert_allclose(found, scores[order], atol=0.0051)
        assert written == [texts[index] for index in order]
        orders.append(order.tolist())
    assert orders[0] != orders[1]

    # Another model, which scores what the first one wrote.
    assert command(*options, *tries, "--scorer", run_folder, "--rank", "total") == 0
    found, written = read_numbered(command.out)
    ended = (ids == end).any(1).tolist()
    rows = [tokenizer.encode(prompt + text) for text in texts]
    rows = [[*row, *[end] * ends] for row, ends in zip(rows, ended, strict=True)]
    scores = log_likelihood(model, rows, num_given=len(prompt))
    np.testing.assert_allclose(found, np.sort(scores)[::-1], atol=0.0051)
    assert written == [texts[index] for index in np.argsort(-scores)]
    assert set(ended) == {False, True}

    # The score ends at the stop text, as at an end token.
    stop = texts[orders[0][0]][3]
    assert command(*options, *tries, "--stop", stop) == 0
    found, written = read_numbered(command.out)
    assert sorted(written) == sorted(text.partition(stop)[0] for text in texts)
    assert written != [text.partition(stop)[0] for text in texts]
    rows = []
    for row, size in zip(ids.tolist(), lengths, strict=True):
        ends = (n for n in range(size) if stop in tokenizer.decode(row[:n]))
        rows.append([*inputs["token_ids"][0], *row[: next(ends, size)]])
    scores = log_likelihood(model, rows, num_given=len(prompt))
    scores /= [len(row) - len(prompt) for row in rows]
    np.testing.assert_allclose(found, np.sort(scores)[::-1], atol=0.0051)

    ids, scores, _ = expected(Beam(4), 3)
    assert command(*options, "--num-samples", 3, "--beam", 4) == 0
    found, written = read_numbered(command.out)
    assert written == tokenizer.decode_batch(ids)
    np.testing.assert_allclose(found, scores, atol=0.0051)

    command.refuses_each(
        options,
        ("--rank needs --num-samples", "--rank", "total"),
        ("--scorer needs --num-samples", "--scorer", run_folder),
        ("at most the 2 beams of --beam", "--num-samples", 3, "--beam", 2),
        ("'--num-samples'", "--num-samples", 0),
        ("--rank is for samples", "--num-samples", 2, "--beam", 2, "--rank", "total"),
        ("must have", *tries, "--scorer", run_folder.parent),
    )
    shutil.copy(run_folder / "model.keras", tmp_path)
    shutil.copytree(TOKENIZER, tmp_path, dirs_exist_ok=True)
    line = command.refuses(*options, *tries, "--scorer", tmp_path)
    assert "--scorer cannot score the texts: " in line and "must be in [0, " in line


def test_continuations_that_a_beam_did_not_find_are_left_out(capsys):
    tokenizer = CharacterTokenizer("ab")
    table = np.random.default_rng(0).normal(size=(6, 6))
    options: dict = {"is_total": False, "scorer": None}
    model, beam = table_model(table), Beam(8, 0.0)
    print_numbered(model, tokenizer, "a", [4], 1, beam, [], 8, **options)
    scores, texts = read_numbered(capsys.readouterr().out)
    expected = np.sort(log_softmax(table[4]))[::-1]
    np.testing.assert_allclose(scores, expected, atol=0.0051)
    assert {"a", "b", ""} == set(texts)


def test_a_scorer_counts_the_end_of_a_text(run_folder, capsys):
    model = keras.saving.load_model(run_folder / "model.keras")
    tokenizer = load_tokenizer(run_folder / "tokenizer.json")
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
    score = _load_scorer(run_folder)
    fox, ids = Continuation("fox", "fox", [], True), tokenizer.encode("fox")
    nothing = Continuation("", "", [], False)
    for prompt, given in (("the ", tokenizer.encode("the ")), ("", [start])):
        texts = [fox, fox._replace(text="", whole=""), nothing]
        found, counts = score(prompt, texts)
        rows = [[*given, *ids, end], [*given, end]]
        expected = log_likelihood(model, rows, num_given=len(given))
        np.testing.assert_allclose(found, [*expected, 0.0], atol=1e-4)
        assert counts == [4, 1, 0]
    # A text without tokens, of which nothing is known, is the last.
    print_numbered(
        model,
        tokenizer,
        "the ",
        tokenizer.encode("the "),
        1,
        Sample(seed=0),
        [],
        2,
        is_total=True,
        scorer=lambda prompt, texts: ([-3.0, 0.0], [1, 0]),
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("1. (-3.00)") and lines[1].startswith("2. (-inf)")


def test_a_keras_file_and_a_published_tokenizer(command, model, tokenizer, tmp_path):
    model.save(tmp_path / "model.keras")
    tokenizer.save(tmp_path)
    options = ["--prompt", PROMPT, "--max-new-tokens", 5]
    assert command("generate", "--model", tmp_path, *options) == 0
    written = command.out
    assert written == text_of(model, tokenizer, 5)
    file = ["--model", tmp_path / "model.keras", "--tokenizer", tmp_path]
    assert command("generate", *file, *options) == 0
    assert command.out == written


def test_a_tokenizer_whose_pieces_join(command, tmp_path):
    """WordPiece: a token may continue the word before it, or start another."""
    shutil.copy(TOKENIZER.parent / "vocab.txt", tmp_path)
    tokenizer = load_text_tokenizer(tmp_path)
    model = build(tokenizer.vocabulary_size)
    model.save(tmp_path / "model.keras")
    options = ["--model", tmp_path, "--prompt", "the", "--max-new-tokens", 7]
    assert command("generate", *options, "--seed", 2) == 0
    ids = tokenizer.encode_prompt("the")
    assert tokenizer.tokens(ids) == ["[CLS]", "the"]
    inputs = {"token_ids": np.array([ids])}
    answer = generate(model, inputs, 7, strategy=Sample(seed=2)).token_ids[0]
    whole = tokenizer.decode([*ids, *answer.tolist()])
    assert "the" + command.out == whole + "\n"


def test_a_prompt_without_tokens():
    """Of a tokenizer whose rows have no start token."""
    nothing = types.SimpleNamespace(encode_prompt=lambda text: [])
    with pytest.raises(ValueError, match="--prompt must have at least one token. .*''"):
        _encode(nothing, "")


# Mistakes.


def test_too_long(command, folder, tokenizer):
    options = ["generate", "--model", folder, "--prompt"]
    line = command.refuses(*options, "q " * POSITIONS)
    assert f"--prompt must have at most {POSITIONS - 1} tokens" in line
    room = POSITIONS - len(tokenizer.encode(PROMPT))
    line = command.refuses(*options, PROMPT, "--max-new-tokens", room + 1)
    assert f"--max-new-tokens must be at most {room} after this prompt" in line


def test_folders_that_are_refused(command, folder, tmp_path):
    prompt = ["--prompt", PROMPT]
    bare, words = tmp_path / "bare", tmp_path / "words"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, bare)
    command.refuses_each(
        ["generate", *prompt, "--model"],
        ("does not exist", tmp_path / "none"),
        ("must be given if --model is a file", folder / "config.json"),
        ("`folder` must have vocab.txt", tmp_path),
        ("config.json", shutil.copytree(TOKENIZER, words)),
        ("vocab.json with merges.txt", bare),
    )


def test_the_task_of_a_checkpoint(command, folder, model, tokenizer, run_folder):
    options = ["--prompt", PROMPT, "--max-new-tokens", 5]
    checkpoint = ["generate", "--model", folder, *options, "--task"]
    assert command(*checkpoint, "causal_lm") == 0
    assert command.out == text_of(model, tokenizer, 5)
    line = command.refuses(*checkpoint, "encoder")
    assert "--task must be one that continues a text, such as causal_lm" in line
    for task in ("translate", ""):
        line = command.refuses(*checkpoint, task)
        assert "`task` must be one of causal_lm" in line and f"task={task!r}" in line
    line = command.refuses(
        "generate", "--model", run_folder, *options, "--task", "causal_lm"
    )
    assert "--task is for a checkpoint folder" in line


def test_a_translator_translates_the_prompt(command, untrained_run):
    translator, text = Translator.load(untrained_run), "3 may 1999"
    for options, strategy in (([], Greedy()), (["--beam", "2"], Beam(2))):
        arguments = ["--model", untrained_run, "--prompt", text, *options]
        assert command("generate", *arguments) == 0
        (expected,) = translator.translate([text], strategy=strategy)
        assert command.out.rstrip("\n") == expected.rstrip("\n")
    several = ["--num-samples", 2]
    for option in (["--max-new-tokens", 3], ["--stop", "x"], ["--task", ""], several):
        line = command.refuses("generate", *arguments, *option)
        assert f"{option[0]} is for models that continue a text" in line


def test_a_model_that_is_no_decoder(command, tmp_path, tokenizer):
    encoder = model_cases.build(
        "bert_masked_lm", vocabulary_size=tokenizer.vocabulary_size
    )
    checkpoint, run = tmp_path / "checkpoint", tmp_path / "run"
    models.save_checkpoint(encoder, checkpoint)
    run.mkdir()
    encoder.save(run / "model.keras")
    for folder in (checkpoint, run):
        tokenizer.save(folder)
        line = command.refuses("generate", "--model", folder, "--prompt", PROMPT)
        assert "--model must be a model that continues a text, such as GPT-2" in line


def test_a_tokenizer_of_another_model(command, folder, run_folder, tmp_path):
    shutil.copy(run_folder / "model.keras", tmp_path)
    shutil.copytree(TOKENIZER, tmp_path, dirs_exist_ok=True)
    line = command.refuses("generate", "--model", tmp_path, "--prompt", PROMPT)
    assert "the vocabulary of the model" in line


def test_wrong_options(command, folder):
    command.refuses_each(
        ["generate", "--model", folder],
        ("'--prompt'",),
        ("leave out --beam or --top-k.", "--prompt", "a", "--beam", 2, "--top-k", 3),
        ("'--temperature'", "--prompt", "a", "--temperature", 0),
        ("'--top-p'", "--prompt", "a", "--top-p", 1.5),
        ("--stop must not be empty", "--prompt", "a", "--stop", ""),
    )


def test_help_has_every_option(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    assert command("generate", "--help") == 0
    names = "model prompt task max-new-tokens stop temperature top-k top-p seed beam"
    names += " num-samples rank scorer"
    assert all(f"--{name}" in command.out for name in names.split())


def test_text_that_may_become_a_stop_text_is_held_back(capsys):
    text, printed = StoppableText(["abc", "b!"]), []

    def feed(piece):
        text.feed(piece)
        printed.append(capsys.readouterr().out)

    for piece in ("xa", "b", "d", "aab"):
        feed(piece)
    assert printed == ["x", "", "abd", "a"]
    with pytest.raises(StoppedError):
        feed("cab!")
    assert capsys.readouterr().out == ""
    text = StoppableText(["abc"])
    feed("ab")
    text.finish()
    assert capsys.readouterr().out == "ab"


@pytest.mark.shipped
@pytest.mark.parametrize("suffix", ["", ".onnx", ".tflite"])
def test_an_exported_decoder_generates(
    suffix, command, model, folder, tokenizer, tmp_path
):
    from keras_attn.export import export

    path = tmp_path / f"decoder{suffix}"
    export(model, path)
    options = ["--prompt", PROMPT, "--max-new-tokens", 5]
    expected = text_of(model, tokenizer, 5)
    assert command("generate", "--model", path, *options, "--tokenizer", folder) == 0
    assert (command.out, command.err) == (expected, "")
    # The tokenizer of the folder that it is in.
    assert command("generate", "--model", path, *options) == 2
    assert "vocab.json" in command.err
    shutil.copytree(TOKENIZER, tmp_path, dirs_exist_ok=True)
    assert command("generate", "--model", path, *options) == 0
    assert command.out == expected
    if suffix != ".onnx":
        return
    sampling = ["--seed", 5, "--top-k", 11, "--temperature", 1.5]
    assert command("generate", "--model", path, *options, *sampling) == 0
    strategy = Sample(seed=5, top_k=11, temperature=1.5)
    assert command.out == text_of(model, tokenizer, 5, strategy=strategy)
    assert command("generate", "--model", path, *options, "--beam", 3) == 0
    assert command.out == text_of(model, tokenizer, 5, strategy=Beam(3))
    tries = ["--num-samples", 7, "--seed", 2]
    assert command("generate", "--model", path, *options, *tries) == 0
    written = command.out
    assert command("generate", "--model", folder, *options, *tries) == 0
    assert command.out == written and "\n7. (-" in written
    line = command.refuses("generate", "--model", path, *options, *tries, "--stop", "a")
    assert "--num-samples with --stop needs a model of Keras" in line


@pytest.mark.shipped
def test_an_exported_model_that_generates_nothing(command, tmp_path):
    from keras_attn.export import export

    features = keras.Input((3,), name="features")
    path = tmp_path / "mlp.onnx"
    export(keras.Model(features, keras.layers.Dense(2)(features)), path)
    assert command("generate", "--model", path, "--prompt", "a") == 2
    assert "with the signatures prefill and step" in " ".join(command.err.split())


@pytest.mark.shipped
def test_an_exported_translator_translates(command, untrained_run, tmp_path):
    run = shutil.copytree(untrained_run, tmp_path / "run")
    assert command("export", run, run / "dates.onnx") == 0
    assert command("generate", "--model", run / "dates.onnx", "--prompt", "3 mar") == 0
    (expected,) = Translator.load(run).translate(["3 mar"])
    assert command.out == expected + "\n"
    line = command.refuses(
        *("generate", "--model", run / "dates.onnx", "--prompt", "3 mar"),
        *("--max-new-tokens", 5),
    )
    assert "--max-new-tokens is for models that continue a text" in line
    # Without the tokenizers of its folder.
    moved = shutil.copytree(run / "dates.onnx", tmp_path / "dates.onnx")
    line = command.refuses("generate", "--model", moved, "--prompt", "3 mar")
    assert "vocab" in line or "continues a text" in line
