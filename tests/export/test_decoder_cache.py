"""`export.decoder`: shipped once, found again, and never out of date."""

import os
import sys
from typing import Any

import keras
import numpy as np
import pytest
from decoding.toys import HostRunner, table_model
from model_cases import create, randomize, varied

from keras_attn.decoding import Beam, Greedy, IncrementalPair, Sample, generate
from keras_attn.export import ExportError, api, decoder, decoder_cache, seals
from keras_attn.export.formats import FORMATS

RUNTIMES = ["onnx", "litert"]
PROMPTS = {
    "token_ids": [[5, 11, 2, 7], [0, 0, 13, 3]],
    "padding_mask": [[1, 1, 1, 1], [0, 0, 1, 1]],
}


@pytest.fixture
def exports(monkeypatch):
    """The paths that were exported to; a list that grows."""
    paths = []

    def counted(model, path, **options):
        paths.append(path)
        return api.export(model, path, **options)

    monkeypatch.setattr(decoder_cache, "export", counted)
    return paths


def files(folder):
    """The names of the decoders in a folder, each with its seals beside it."""
    names = {path.name for path in folder.iterdir()}
    decoders = {name for name in names if not name.endswith(".sha256")}
    assert names - decoders == {f"{name.partition('.')[0]}.sha256" for name in decoders}
    return sorted(decoders)


# Strategies do not depend on the runtime: each is run in one.
STRATEGIES = {
    "onnx": [Greedy(), Beam(3)],
    "litert": [Sample(seed=5, top_k=7, top_p=0.9, temperature=1.3)],
}


@pytest.mark.shipped
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_tokens_equal_keras_and_files_are_found_again(runtime, tmp_path, exports):
    model = randomize(varied("gpt2_small", num_layers=1), seed=1)
    where: Any = {"max_length": 16, "cache_dir": tmp_path}
    runner = decoder(model, runtime, **where)
    assert runner.format == runtime and runner.max_length == 16
    for strategy in STRATEGIES[runtime]:
        options = {"strategy": strategy, "end_token_id": 4}
        expected = generate(model, PROMPTS, 9, **options)
        answer = generate(runner, PROMPTS, 9, **options)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
        np.testing.assert_allclose(answer.scores, expected.scores, rtol=0, atol=1e-4)
    calls = []
    expected = generate(runner, PROMPTS, 5, on_token=calls.append)
    np.testing.assert_array_equal(np.stack(calls, axis=1), expected.token_ids)
    # Another process: the same layers, whose operations Keras numbers differently.
    other = varied("gpt2_small", num_layers=1)
    other.set_weights(model.get_weights())
    answer = generate(decoder(other, runtime, **where), PROMPTS, 5)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    # The model's pair with caches of this length.
    decoder(model.incremental(max_length=16), runtime, cache_dir=tmp_path)
    assert len(exports) == len(files(tmp_path)) == 1


@pytest.mark.shipped
def test_kernels_of_integers_are_multiplied_as_such(tmp_path, exports):
    model = randomize(varied("gpt2_small", num_layers=1), seed=1)
    float_digest = decoder_cache._digest(model.incremental(max_length=16), "onnx")
    model.quantize("int8")
    pair = model.incremental(max_length=16)
    assert decoder_cache._digest(pair, "onnx") != float_digest
    expected = generate(model, PROMPTS, 9)
    answer = generate(decoder(pair, cache_dir=tmp_path), PROMPTS, 9)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=0.05)
    assert FORMATS["onnx"].read_quantization(exports[0]) == "int8_dynamic"


@pytest.mark.shipped
def test_other_weights_are_shipped_anew(tmp_path, exports):
    model, prompt = table_model(np.eye(5)), {"token_ids": [[3]]}
    before = decoder(model, cache_dir=tmp_path)
    model.set_weights([np.roll(np.eye(5), 1, axis=1)])
    after = decoder(model, cache_dir=tmp_path)
    # The runner of a call keeps the weights of that call.
    assert generate(before, prompt, 3).token_ids.tolist() == [[3, 3, 3]]
    assert generate(after, prompt, 3).token_ids.tolist() == [[4, 0, 1]]
    assert len(exports) == len(files(tmp_path)) == 2


@pytest.mark.shipped
def test_another_decoders_file_is_not_used(tmp_path, exports, caplog):
    """A file that is whole, under the name of another."""
    model, prompt = table_model(np.eye(5)), {"token_ids": [[3]]}
    for shift in (0, 1):
        model.set_weights([np.roll(np.eye(5), shift, axis=1)])
        decoder(model, "litert", cache_dir=tmp_path)
    first, second = exports
    second.write_bytes(first.read_bytes())
    assert seals.is_sealed(second)
    answer = generate(decoder(model, "litert", cache_dir=tmp_path), prompt, 3)
    assert answer.token_ids.tolist() == [[4, 0, 1]]
    assert len(exports) == 3 and "or another file, and is written again" in caplog.text


@pytest.mark.shipped
def test_files_that_are_damaged_incomplete_or_old(tmp_path, exports, monkeypatch):
    model = table_model(np.arange(25).reshape(5, 5) % 7)
    prompt = {"token_ids": [[3]]}
    expected = generate(model, prompt, 4).token_ids

    def decode():
        runner = decoder(model, "litert", cache_dir=tmp_path / "made")
        answer = generate(runner, prompt, 4)
        np.testing.assert_array_equal(answer.token_ids, expected)

    decode()
    (name,) = files(tmp_path / "made")
    path = tmp_path / "made" / name
    # An export that fails, or is killed, leaves no file; the next one removes the
    # folder of the killed one.
    path.unlink()
    left = path.parent / f".{name}-abcd1234.partial"
    other = path.parent / f".{name.replace(name[7:39], '0' * 32)}-abcd1234.partial"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").write_bytes(b"half")
    with monkeypatch.context() as patched:
        patched.setattr(api, "compare", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            decode()
    assert not path.exists()
    # All but the files that were used last go when one is written.
    olds = [path.parent / f"litert-{index:032}.tflite" for index in range(9)]
    for age, old in enumerate(olds):
        old.write_bytes(b"old")
        os.utime(old, (1000 - age, 1000 - age))
        old.with_suffix(".sha256").write_bytes(b"old")
    strange = path.parent / "litert-mine.tflite"
    strange.write_bytes(b"mine")
    strange.with_suffix(".sha256").write_bytes(b"mine")
    decode()
    assert files(path.parent) == sorted(
        [name, strange.name, *(old.name for old in olds[:7])]
    )


@pytest.mark.shipped
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_damaged_byte_is_used(runtime, tmp_path, exports, caplog):
    """In a third of a file, in its weights, at its end, or a file of another export."""
    model = table_model(np.random.default_rng(1).permuted(np.eye(23), axis=1))
    prompt = {"token_ids": [[3]]}
    expected = generate(model, prompt, 5).token_ids

    def decode():
        runner = decoder(model, runtime, cache_dir=tmp_path)
        answer = generate(runner, prompt, 5)
        np.testing.assert_array_equal(answer.token_ids, expected)

    decode()
    (name,) = files(tmp_path)
    path = tmp_path / name
    parts = sorted(path.iterdir()) if path.is_dir() else [path]
    assert len(parts) == (3 if runtime == "onnx" else 1)
    for count, part in enumerate([*parts, parts[0]]):
        content = bytearray(part.read_bytes())
        middle = len(content) // 3
        content[middle : middle + len(content) // 3] = bytes(len(content) // 3)
        if count == len(parts):  # One bit of the last byte but the digest.
            content = bytearray(part.read_bytes())
            content[-65] ^= 1
        part.write_bytes(content)
        assert not seals.is_sealed(path)
        decode()
        assert seals.is_sealed(path)
        assert len(exports) == count + 2
        assert "is damaged, incomplete or another file, and is" in caplog.text
        caplog.clear()
    decode()
    assert len(exports) == len(parts) + 2 and not caplog.text
    # A kill before the digest, an empty file, and a file that is missing.
    parts[0].write_bytes(parts[0].read_bytes()[: -seals.LENGTH] + b"0" * seals.LENGTH)
    assert not seals.is_sealed(path)
    parts[0].write_bytes(b"")
    decode()
    parts[-1].unlink()
    decode()
    assert len(exports) == len(parts) + 4


@pytest.mark.shipped
def test_two_processes_at_once(tmp_path, monkeypatch):
    """Another process writes the same file while this one exports."""
    model = table_model(np.arange(25).reshape(5, 5) % 7)
    prompt = {"token_ids": [[3]]}
    expected = generate(model, prompt, 4).token_ids
    depth = []

    def meanwhile(pair, path, **options):
        if not depth:
            depth.append(1)
            decoder(model, cache_dir=tmp_path)
            assert seals.is_sealed(path)
        return api.export(pair, path, **options)

    monkeypatch.setattr(decoder_cache, "export", meanwhile)
    answer = generate(decoder(model, cache_dir=tmp_path), prompt, 4)
    np.testing.assert_array_equal(answer.token_ids, expected)
    (name,) = files(tmp_path)
    assert seals.is_sealed(tmp_path / name)


def test_digest_depends_on_all_that_a_file_holds():
    model = create("gpt2_small")
    pairs = [model.incremental(max_length=length) for length in (8, 9)]
    digests = {decoder_cache._digest(pair, name) for pair in pairs for name in RUNTIMES}
    assert len(digests) == 4
    again = model.incremental(max_length=8)
    assert decoder_cache._digest(again, "onnx") in digests
    # The smallest change of one weight.
    bias = model.get_layer("block_0").self_attention.output_projection.bias
    changed = bias.numpy()
    changed[3] = np.nextafter(changed[3], np.float32(9))
    bias.assign(changed)
    digests.add(decoder_cache._digest(again, "onnx"))
    assert len(digests) == 5
    # Rows of a table that change places.
    table = model.get_layer("token_embedding").embeddings
    table.assign(table.numpy()[::-1])
    assert decoder_cache._digest(again, "onnx") not in digests


def test_runtimes_that_cannot_run(tmp_path, monkeypatch):
    model = table_model(np.eye(5))

    def in_runtime(runtime="onnx", model: Any = model, **options):
        return decoder(model, runtime, **{"cache_dir": tmp_path / "folder", **options})

    message = r'`runtime` must be one of "onnx", "litert"\. Received: runtime=\'trt\''
    with pytest.raises(ValueError, match=message):
        in_runtime("trt")
    for runtime, package in (("onnx", "onnxruntime"), ("litert", "ai_edge_litert")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            message = rf"Generation with .* needs `{package}`.*keras-attn\[export\]"
            with pytest.raises(ImportError, match=message):
                in_runtime(runtime)
    for other in (HostRunner(model.incremental()), keras.Sequential()):
        with pytest.raises(TypeError, match="`model` must be a generative Keras model"):
            in_runtime(model=other)
    with pytest.raises(ValueError, match="`max_length` is"):
        in_runtime(max_length=3)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ExportError, match="`cache_dir` cannot be made"):
        in_runtime(cache_dir=tmp_path / "file" / "folder")
    pair = model.incremental()

    class Nameless(type(pair.step)):
        def get_config(self):
            raise NotImplementedError("no config")

    step = Nameless(pair.step.input, pair.step.output)
    with pytest.raises(ValueError, match=r"`model` must consist of layers with a conf"):
        in_runtime(model=IncrementalPair(pair.prefill, step))
    assert not (tmp_path / "folder").exists()


def test_default_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))
    monkeypatch.delenv("KERAS_ATTN_CACHE", raising=False)
    assert decoder_cache._default_folder() == tmp_path / "a" / "keras_attn"
    monkeypatch.setenv("KERAS_ATTN_CACHE", str(tmp_path / "b"))
    assert decoder_cache._default_folder() == tmp_path / "b"
