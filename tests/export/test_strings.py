"""SavedModels that take strings, and run without keras_attn."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from backend import skip_module_without_tensorflow

from keras_attn import models

pytest.importorskip("tensorflow_text", reason="the extra `text` is not installed")
skip_module_without_tensorflow("exporters need TensorFlow")

from keras_attn.data import (  # noqa: E402
    ByteLevelBPETokenizer,
    CLIPTokenizer,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from keras_attn.export import export, load_runner, verify  # noqa: E402

pytestmark = pytest.mark.shipped
TEXTS = [
    "a man sleeps",
    "",
    "A MAN, a plan: a canal!",
    "größe 東京 🙂",
    "a man sleeps " * 40,
]
SECOND = ["a plan", "man", "", "a canal sleeps " * 30, "canal"]
POSITIONS, CLASSES = 31, 7
REFERENCES = Path(__file__).parent.parent / "data" / "references"


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer.train([*TEXTS, *SECOND] * 3, vocabulary_size=61)


def build(tokenizer, head, family="bert", **options):
    """A tiny BERT with a head, its weights far from zero."""
    encoder = getattr(models, f"build_{family}")(
        vocabulary_size=tokenizer.vocabulary_size,
        num_layers=1,
        hidden_dim=21,
        num_heads=3,
        mlp_dim=29,
        max_sequence_length=POSITIONS,
    )
    model = encoder
    if head is not None:
        model = getattr(models, f"build_{family}_{head}")(encoder, **options)
    rng = np.random.default_rng(3)
    model.set_weights([rng.normal(0, 0.5, w.shape) for w in model.get_weights()])
    return model


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


@pytest.fixture(scope="module")
def classifier(tokenizer, tmp_path_factory):
    """A classifier, the path of its artefact, and the report."""
    model = build(tokenizer, "classifier", num_classes=CLASSES)
    path = tmp_path_factory.mktemp("strings") / "classifier"
    return model, path, export(model, path, tokenizer=tokenizer)


def test_texts_to_scores(classifier, tokenizer):
    model, path, report = classifier
    assert report.inputs == {
        "serve": {"text": "string (?)"},
        "serve_pair": {"text": "string (?)", "text_pair": "string (?)"},
    }
    assert report.max_abs_diff <= report.tolerance == 1e-4
    runner = load_runner(path)
    packed = tokenizer.encode_batch(TEXTS, max_length=POSITIONS)
    (logits,) = runner({"text": TEXTS}).values()
    assert logits.shape == (len(TEXTS), CLASSES)
    assert_close(logits, model(packed))
    packed = tokenizer.encode_batch(TEXTS, SECOND, max_length=POSITIONS)
    (logits,) = runner({"text": TEXTS, "text_pair": SECOND}, "serve_pair").values()
    assert_close(logits, model(packed))
    # As bytes.
    (again,) = runner({"text": [text.encode() for text in TEXTS]}).values()
    assert_close(again, runner({"text": TEXTS})["classifier"])


def test_artefact_runs_elsewhere_without_keras_attn(
    classifier, tokenizer, tmp_path, printed
):
    model, path, _ = classifier
    moved = tmp_path / "elsewhere"
    shutil.copytree(path, moved)
    code = """
import json, sys
import tensorflow as tf, tensorflow_text
loaded = tf.saved_model.load(sys.argv[1])
texts = tf.constant(json.loads(sys.argv[2]))
(found,) = loaded.signatures["serving_default"](text=texts).values()
imported = [name for name in ("keras_attn", "keras") if name in sys.modules]
print(json.dumps([found.numpy().tolist(), imported]))
"""
    found, imported = json.loads(
        printed("-I", "-c", code, moved, json.dumps(TEXTS))[-1]
    )
    # tensorflow-text itself imports Keras.
    assert "keras_attn" not in imported
    assert_close(found, model(tokenizer.encode_batch(TEXTS, max_length=POSITIONS)))


def test_rows_are_no_longer_than_the_tokenizer_allows(tokenizer, tmp_path):
    """A sentence folder may read fewer tokens than its model has positions."""
    model = build(tokenizer, "sentence_encoder")
    short = copy.copy(tokenizer)
    short.max_length, short.prompt = 5, "plan "
    export(model, tmp_path / "encoder", tokenizer=short, sample_inputs=["a man"])
    (found,) = load_runner(tmp_path / "encoder")({"text": TEXTS}).values()
    packed = short.encode_batch(TEXTS)
    assert packed["token_ids"].shape[1] == 5
    assert_close(found, model(packed))


def test_sentence_encoder_of_fixed_length(tokenizer, tmp_path):
    model = build(tokenizer, "sentence_encoder")
    report = export(
        model,
        tmp_path / "encoder",
        tokenizer=tokenizer,
        sequence_length=11,
        batch_size=2,
        sample_inputs=["a man", "a plan sleeps"],
    )
    assert report.inputs["serve"] == {"text": "string (2)"}
    texts = TEXTS[2:4]
    (found,) = load_runner(tmp_path / "encoder")({"text": texts}).values()
    assert_close(found, model(tokenizer.encode_batch(texts, max_length=11)))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    checked = verify(
        model, tmp_path / "encoder", tokenizer=tokenizer, sequence_length=11
    )
    assert (checked.max_abs_diff or 0) <= 1e-4


def test_verify_model_with_several_outputs(tokenizer, tmp_path):
    model = build(tokenizer, None)
    export(model, tmp_path / "m", tokenizer=tokenizer, sample_inputs={"text": TEXTS})
    report = verify(model, tmp_path / "m", tokenizer=tokenizer)
    assert set(report.outputs["serve"]) == {"sequence_output", "pooled_output"}
    with pytest.raises(ValueError, match="must have the signature `serve` with the"):
        verify(model, tmp_path / "m")


def test_texts_are_truncated_to_robertas_positions(tokenizer, tmp_path):
    model = build(tokenizer, None, "roberta")
    export(model, tmp_path / "m", tokenizer=tokenizer)
    found = load_runner(tmp_path / "m")({"text": TEXTS})["sequence_output"]
    assert found.shape[1] == POSITIONS


def test_sentencepiece(tmp_path):
    pieces = SentencePieceTokenizer.from_folder(REFERENCES, convention="xlnet")
    encoder = models.build_xlnet(
        vocabulary_size=pieces.vocabulary_size,
        num_layers=1,
        hidden_dim=10,
        num_heads=2,
        mlp_dim=13,
    )
    model = models.build_xlnet_classifier(encoder, num_classes=3)
    export(model, tmp_path / "m", tokenizer=pieces)
    (found,) = load_runner(tmp_path / "m")({"text": TEXTS}).values()
    assert_close(found, model(pieces.encode_batch(TEXTS)))


def test_texts_are_truncated_to_the_positions_of_a_clip(tmp_path):
    pieces = CLIPTokenizer.from_folder(REFERENCES / "clip")
    sizes: dict[str, Any] = dict(num_layers=1, hidden_dim=8, num_heads=2, mlp_dim=9)
    clip = models.build_clip(
        image_size=8,
        patch_size=8,
        embedding_dim=5,
        vocabulary_size=pieces.vocabulary_size,
        max_sequence_length=POSITIONS,
        **sizes,
        **{f"text_{name}": size for name, size in sizes.items()},
    )
    model = clip.text_encoder()
    export(model, tmp_path / "m", tokenizer=pieces)
    (found,) = load_runner(tmp_path / "m")({"text": TEXTS}).values()
    packed = pieces.encode_batch(TEXTS, max_length=POSITIONS)
    assert packed["token_ids"].shape == (len(TEXTS), POSITIONS)
    assert_close(found, model(packed["token_ids"]))
    more = CLIPTokenizer([*pieces.pieces, "new"], pieces.merges)
    with pytest.raises(ValueError, match="not have more tokens than `model`"):
        export(model, tmp_path / "m", tokenizer=more)


class Subclassed(keras.Model):
    def call(self, token_ids):
        return token_ids


def test_unsupported_combinations_are_refused(tokenizer, tmp_path):
    model = build(tokenizer, "classifier", num_classes=2)

    def refuses(message, model=model, suffix="", **options):
        options = {"tokenizer": tokenizer, **options}
        with pytest.raises(ValueError, match=message):
            export(model, tmp_path / f"m{suffix}", **options)
        assert not list(tmp_path.iterdir())

    for suffix in (".tflite", ".onnx"):
        refuses("`tokenizer` is only for SavedModels.*format='", suffix=suffix)
    bpe = ByteLevelBPETokenizer.from_folder(REFERENCES / "gpt2")
    refuses("`tokenizer` must be a `WordPieceTok", tokenizer=bpe)
    refuses("work inside a graph.*'words'", tokenizer="words")
    tagger = build(tokenizer, "masked_lm", masked_positions=True)
    refuses("must take only outputs of a tokenizer.*masked_positions", model=tagger)
    gpt = models.build_gpt(
        vocabulary_size=61, num_layers=1, hidden_dim=6, num_heads=2, mlp_dim=7
    )
    refuses("generative model pass `keras.Model.*signature `prefill`", model=gpt)
    refuses("must be one number if", sequence_length={"text": 5})
    other = WordPieceTokenizer([*tokenizer.pieces, "another"])
    refuses("not have more tokens than `model`.*tokens for a model", tokenizer=other)
    refuses("at most 31, the number of positions of the model.*=32", sequence_length=32)
    refuses("must leave room for .* one token of each text.*=4", sequence_length=4)
    refuses("`model` must be functional", model=Subclassed())
    refuses("must have the keys \\['text'\\]", sample_inputs={"texts": ["a"]})


def test_runner_loads_the_operators_of_the_tokenizer(classifier, printed):
    code = """
import sys
from keras_attn.export import load_runner
assert "tensorflow_text" not in sys.modules
if sys.argv[2] == "missing":
    sys.modules["tensorflow_text"] = None
try:
    (found,) = load_runner(sys.argv[1])({"text": ["a man"]}).values()
    print(found.shape)
except ImportError as error:
    print(error)
"""
    path = classifier[1]
    assert printed("-c", code, path, "installed")[-1] == f"(1, {CLASSES})"
    message = 'tensorflow_text`, which is not installed: pip install "keras-attn[text]"'
    assert message in printed("-c", code, path, "missing")[-1]


def test_inputs_that_are_not_texts(classifier):
    runner = load_runner(classifier[1])
    for texts in ([b"a", b"\xff\xfe"], ["a", 3], [None]):
        with pytest.raises(
            ValueError, match="must be strings, or bytes in UTF-8.*at index"
        ):
            runner({"text": texts})
    with pytest.raises(ValueError, match="must have the shape"):
        runner({"text": "a man"})
