"""`Translator`: text in, text out, saving and loading."""

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from keras_attn import models
from keras_attn.decoding import Beam
from keras_attn.translator import Alignment, Translator

pytestmark = pytest.mark.compiled

FILES = {
    "model.keras",
    "source_tokenizer.json",
    "target_tokenizer.json",
    "translator.json",
}


class Runner:
    """Stands in for an exported artefact of fixed sizes."""

    def __init__(self, model, batch, length):
        pair = model.incremental()
        shapes = {"token_ids": (batch, length), "padding_mask": (batch, length)}
        self.pair, self.shapes = pair, []
        self.signatures = {
            "prefill": SimpleNamespace(
                inputs={
                    tensor.name: SimpleNamespace(
                        shape=shapes.get(tensor.name, (batch, 1))
                    )
                    for tensor in pair.prefill.inputs
                },
                outputs=dict(pair.prefill.output),
            ),
            "step": SimpleNamespace(
                inputs={
                    tensor.name: SimpleNamespace(shape=tuple(tensor.shape))
                    for tensor in pair.step.inputs
                },
                outputs=dict(pair.step.output),
            ),
        }

    def prefill(self, inputs):
        self.shapes.append(inputs["token_ids"].shape)
        outputs = self.pair.prefill(inputs)
        return {name: tensor.numpy() for name, tensor in outputs.items()}

    def step(self, inputs, *, in_place=False):
        outputs = self.pair.step(inputs)
        return {name: tensor.numpy() for name, tensor in outputs.items()}


def test_translations_do_not_depend_on_batch_or_order(translator, corpus):
    sources = corpus[0][:7]
    together = translator.translate(sources)
    assert len(set(together)) > 2 and all(isinstance(t, str) for t in together)
    assert translator.translate(sources[::-1], batch_size=3) == together[::-1]
    assert [translator.translate([source])[0] for source in sources[:3]] == together[:3]
    assert translator.translate([]) == []
    assert translator.translate(tuple(sources)) == together


def test_a_strategy_is_passed_on(translator, corpus):
    sources = corpus[0][:3]
    beam = translator.translate(sources, strategy=Beam(3))
    again = translator.translate(sources, strategy=Beam(3), batch_size=2)
    assert beam == again != translator.translate(sources)


def test_a_translation_ends_at_its_end_token_or_at_max_length(build, corpus):
    translator = build(max_length=11)
    end = translator.target_tokenizer.end_token_id
    logits = translator.model.get_layer("logits")
    for bias, length in ((-1e4, 11), (1e4, 0)):
        kernel, biases = logits.get_weights()
        biases[:4] = -1e4  # No special token, except possibly the end.
        biases[end] = bias
        logits.set_weights([kernel, biases])
        (answer,) = translator.translate(corpus[0][:1])
        assert len(answer) == length
    # Sources are truncated to the same length.
    biases[end] = -1e4
    logits.set_weights([kernel, biases])
    text = corpus[0][0] + "000"
    assert translator.translate([text[:11]]) == translator.translate([text])


@pytest.mark.shipped
@pytest.mark.parametrize(
    "batch, length",
    [
        (5, 43),
        pytest.param(None, 43, marks=pytest.mark.variation),
        pytest.param(5, None, marks=pytest.mark.variation),
        (None, None),
    ],
)
def test_a_runner_gets_the_shapes_it_was_exported_with(
    translator, corpus, batch, length
):
    sources = corpus[0][:7]
    runner = Runner(translator.model, batch, length)
    got = translator.translate(sources, runner=runner, batch_size=3)
    assert got == translator.translate(sources)
    assert {shape[0] for shape in runner.shapes} == ({5} if batch else {3, 1})
    if length:
        assert {shape[1] for shape in runner.shapes} == {43}
    else:
        assert all(shape[1] % 8 == 0 for shape in runner.shapes)
    assert translator.translate([], runner=runner) == []


def test_a_text_too_long_for_the_runner_is_refused(translator, corpus):
    runner = Runner(translator.model, 5, 7)
    with pytest.raises(
        ValueError,
        match="`texts` must have at most 7 tokens, the length that the artefact was "
        "exported with. Received: 13 tokens",
    ):
        translator.translate(["3 may", "29 march 2027"], runner=runner)


@pytest.mark.parametrize(
    "texts, message",
    [
        (["3 may 2027", ""], r"at least one token each. Received: texts\[1\]=''"),
        ([3], r"must be strings with at least one token each. Received: texts\[0\]=3"),
        ("3 may 2027", "must be a sequence of texts.*Received: texts='3 may 2027'"),
    ],
)
def test_invalid_texts_are_refused(translator, texts, message):
    with pytest.raises(ValueError, match=message):
        translator.translate(texts)


def test_an_alignment_has_a_row_per_target_and_a_column_per_source_token(translator):
    aligned = translator.align("3 may 2027", "2027-05-03")
    assert isinstance(aligned, Alignment)
    assert aligned.source_tokens == list("3 may 2027")
    assert aligned.target_tokens == [*"2027-05-03", "<end>"]
    assert aligned.scores.shape == (11, 10)
    assert aligned.scores.dtype == np.float32
    np.testing.assert_allclose(aligned.scores.sum(1), 1, atol=1e-6)
    (own,) = translator.translate(["3 may 2027"])
    np.testing.assert_array_equal(
        translator.align("3 may 2027").scores,
        translator.align("3 may 2027", own).scores,
    )
    # The scores are those of the given target: another one attends differently.
    other = translator.align("3 may 2027", "1901-12-30").scores
    np.testing.assert_array_equal(other[:1], aligned.scores[:1])
    assert np.abs(other - aligned.scores)[2:].max() > 1e-4
    # Truncated as in translating.
    long = translator.align("1" * 50, "2" * 50)
    assert long.scores.shape == (43, 43)
    assert long.target_tokens[-2:] == ["2", "<end>"]


def test_an_example_is_teacher_forced(translator):
    inputs, source, target = translator.example("3 may", "20")
    start = translator.target_tokenizer.start_token_id
    assert set(inputs) == {"token_ids", "padding_mask", "decoder_token_ids"}
    assert inputs["padding_mask"].all() and inputs["padding_mask"].shape == (1, 5)
    ids = translator.target_tokenizer.encode("20")
    assert inputs["decoder_token_ids"].tolist() == [[start, *ids]]
    assert (source, target) == (list("3 may"), ["2", "0", "<end>"])


def test_a_model_without_an_alignment_is_refused(build):
    with pytest.raises(ValueError, match="must have an attention layer"):
        build("seq2seq_sutskever").align("3 may", "2027")
    with pytest.raises(
        ValueError,
        match=r"`model` must attend to all source tokens.* fixed "
        r"context. Received: scores of "
        r"shape \(1, 1, 5, 1\) for 5 source tokens",
    ):
        build("seq2seq_context").align("3 may", "2027")
    with pytest.raises(ValueError, match=r"at least one token.*texts\[0\]=''"):
        build().align("", "2027")


def test_saving_and_loading(translator, corpus, tmp_path):
    folder = tmp_path / "deep" / "folder"
    translator.save(folder)
    assert {path.name for path in folder.iterdir()} == FILES
    loaded = Translator.load(str(folder))
    assert type(loaded.model) is type(translator.model)
    assert loaded.max_length == 43
    assert loaded.source_tokenizer.pieces == translator.source_tokenizer.pieces
    assert loaded.target_tokenizer.pieces == translator.target_tokenizer.pieces
    sources = corpus[0][:5]
    assert loaded.translate(sources) == translator.translate(sources)
    about = json.loads((folder / "translator.json").read_text())
    assert about == {"format": "keras_attn translator 1", "max_length": 43}


def test_a_save_that_fails_leaves_the_old_model(build, tmp_path, monkeypatch):
    first, second = build(), build(seed=2)
    first.save(tmp_path)
    before = (tmp_path / "model.keras").read_bytes()

    def fail_halfway(path, *arguments, **options):
        path.write_bytes(b"half a model")
        raise OSError("no space left on device")

    monkeypatch.setattr(second.model, "save", fail_halfway)
    with pytest.raises(OSError, match="no space left"):
        second.save(tmp_path)
    assert (tmp_path / "model.keras").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert np.isfinite(Translator.load(tmp_path).model.get_weights()[0]).all()
    # Only the final rename replaces the model.
    monkeypatch.undo()
    monkeypatch.setattr(os, "replace", lambda *paths: None)
    second.save(tmp_path)
    assert (tmp_path / "model.keras").read_bytes() == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "translator.json").unlink(),
        lambda folder: (folder / "translator.json").write_text("{"),
        lambda folder: (folder / "translator.json").write_text("[]"),
        lambda folder: (folder / "translator.json").write_text('{"format": "other"}'),
        lambda folder: (folder / "translator.json").write_text(
            '{"format": "keras_attn translator 1"}'
        ),
        lambda folder: (folder / "model.keras").unlink(),
    ],
)
def test_a_folder_that_is_not_a_translator_is_refused(translator, tmp_path, spoil):
    translator.save(tmp_path)
    spoil(tmp_path)
    with pytest.raises(
        ValueError,
        match="`folder` must be one that `Translator.save` wrote, with "
        "`translator.json` and `model.keras` in it. Received: folder='/",
    ):
        Translator.load(tmp_path)


def test_a_folder_that_is_missing_or_lacks_a_tokenizer_is_refused(translator, tmp_path):
    with pytest.raises(ValueError, match="Received: folder='/nowhere'"):
        Translator.load("/nowhere")
    translator.save(tmp_path)
    (tmp_path / "target_tokenizer.json").unlink()
    with pytest.raises(ValueError, match="target_tokenizer.json"):
        Translator.load(tmp_path)


@pytest.mark.parametrize("max_length", [0, 2.5])
def test_max_length_must_be_a_positive_integer(translator, max_length):
    with pytest.raises(ValueError, match=f"`max_length` must be.*={max_length}"):
        Translator(
            translator.model,
            translator.source_tokenizer,
            translator.target_tokenizer,
            max_length=max_length,
        )


def test_a_model_has_a_position_for_each_token_and_the_start(translator):
    tokenizer = translator.source_tokenizer
    model = models.create(
        "transformer_base",
        vocabulary_size=tokenizer.vocabulary_size,
        hidden_dim=6,
        num_heads=2,
        mlp_dim=5,
        num_layers=1,
        positions="learned",
        max_sequence_length=11,
    )
    with pytest.raises(ValueError, match=r"`max_length` .*at most 10: .*length=11"):
        Translator(model, tokenizer, tokenizer, max_length=11)
    # The longest text that it takes, and the longest translation.
    fitting = Translator(model, tokenizer, tokenizer, max_length=10)
    (text,) = fitting.translate(["1" * 20])
    assert len(tokenizer.encode(text)) <= 10
