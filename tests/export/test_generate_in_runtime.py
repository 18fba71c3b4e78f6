"""`generate(..., runtime=...)`: shipped once, found again, and never out of date."""

import os
import sys
from typing import Any

import numpy as np
import pytest
from decoding.toys import table_model
from model_cases import create, randomize, varied

from keras_attn.decoding import (
    Beam,
    Greedy,
    IncrementalPair,
    Sample,
    compiled,
    generate,
)
from keras_attn.export import ExportError, api, decoder_cache, seals
from keras_attn.export.formats import FORMATS

RUNTIMES = ["onnx", "litert"]
PROMPTS = {
    "token_ids": [[5, 11, 2, 7], [0, 0, 13, 3]],
    "padding_mask": [[1, 1, 1, 1], [0, 0, 1, 1]],
}


@pytest.fixture
def exports(monkeypatch):
    """The paths that were exported to; a list that grows."""
    paths, export = [], api.export

    def counted(model, path, **options):
        paths.append(path)
        return export(model, path, **options)

    monkeypatch.setattr(api, "export", counted)
    return paths


def forget(model):
    """What a new process knows of a model."""
    compiled._compilations.pop(model, None)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


# Strategies do not depend on the runtime: each is run in one.
STRATEGIES = {
    "onnx": [Greedy(), Beam(3)],
    "litert": [Sample(seed=5, top_k=7, top_p=0.9, temperature=1.3)],
}


@pytest.mark.shipped
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_tokens_equal_keras_and_files_are_found_again(runtime, tmp_path, exports):
    model = randomize(varied("gpt2_small", num_layers=1), seed=1)
    where = {"runtime": runtime, "cache_dir": tmp_path}
    for strategy in STRATEGIES[runtime]:
        options = {"strategy": strategy, "end_token_id": 4}
        expected = generate(model, PROMPTS, 9, **options)
        answer = generate(model, PROMPTS, 9, **options, **where)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
        np.testing.assert_allclose(answer.scores, expected.scores, rtol=0, atol=1e-4)
    calls = []
    expected = generate(model, PROMPTS, 5, on_token=calls.append, **where)
    np.testing.assert_array_equal(np.stack(calls, axis=1), expected.token_ids)
    assert len(exports) == 1
    # Another process: the same layers, whose operations Keras numbers differently.
    other = varied("gpt2_small", num_layers=1)
    other.set_weights(model.get_weights())
    answer = generate(other, PROMPTS, 5, **where)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    assert len(exports) == 1 and len(files(tmp_path)) == 1


@pytest.mark.shipped
def test_kernels_of_integers_are_multiplied_as_such(tmp_path, exports):
    model = randomize(varied("gpt2_small", num_layers=1), seed=1)
    float_digest = decoder_cache.digest(model.incremental(max_length=16), "onnx")
    model.quantize("int8")
    pair = model.incremental(max_length=16)
    assert decoder_cache.digest(pair, "onnx") != float_digest
    expected = generate(model, PROMPTS, 9)
    answer = generate(model, PROMPTS, 9, runtime="onnx", cache_dir=tmp_path)
    np.testing.assert_allclose(answer.scores, expected.scores, rtol=0.05)
    assert FORMATS["onnx"].quantization_of(exports[0]) == "int8_dynamic"


@pytest.mark.shipped
def test_other_weights_are_shipped_anew(tmp_path, exports):
    model = table_model(np.eye(5))
    where = {"runtime": "onnx", "cache_dir": tmp_path}
    assert generate(model, {"token_ids": [[3]]}, 3, **where).token_ids.tolist() == [
        [3] * 3
    ]
    model.set_weights([np.roll(np.eye(5), 1, axis=1)])
    answer = generate(model, {"token_ids": [[3]]}, 3, **where)
    assert answer.token_ids.tolist() == [[4, 0, 1]]
    assert len(exports) == len(files(tmp_path)) == 2


@pytest.mark.shipped
@pytest.mark.variation
def test_encoder_decoder_in_a_runtime(tmp_path):
    model = varied("transformer_base", num_layers=1)
    inputs = {
        "token_ids": [[7, 3, 11], [2, 5, 0]],
        "padding_mask": [[1] * 3, [1, 1, 0]],
    }
    options: Any = {"start_token_id": 1, "end_token_id": 4}
    expected = generate(model, inputs, 6, **options)
    answer = generate(model, inputs, 6, **options, runtime="onnx", cache_dir=tmp_path)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)


@pytest.mark.shipped
def test_files_that_are_damaged_incomplete_or_old(tmp_path, exports, monkeypatch):
    model = table_model(np.arange(25).reshape(5, 5) % 7)
    where = {"runtime": "litert", "cache_dir": tmp_path / "made"}
    expected = generate(model, {"token_ids": [[3]]}, 4).token_ids

    def in_new_process():
        forget(model)
        answer = generate(model, {"token_ids": [[3]]}, 4, **where)
        np.testing.assert_array_equal(answer.token_ids, expected)

    in_new_process()
    (name,) = files(tmp_path / "made")
    in_new_process()
    assert len(exports) == 1
    # Damaged: written anew.
    path = tmp_path / "made" / name
    path.write_bytes(path.read_bytes()[:100])
    in_new_process()
    assert len(exports) == 2
    # An export that fails, or is killed, leaves no file; the next one removes the
    # folder of the killed one.
    path.unlink()
    left = path.parent / f".{name}-abcd1234.partial"
    other = path.parent / f".{name.replace(name[7:39], '0' * 32)}-abcd1234.partial"
    for folder in (left, other):
        folder.mkdir()
        (folder / "half").write_bytes(b"half")
    write = api.Verification.run
    monkeypatch.setattr(api.Verification, "run", lambda *_: 1 / 0)
    forget(model)
    with pytest.raises(ZeroDivisionError):
        generate(model, {"token_ids": [[3]]}, 4, **where)
    assert not path.exists()
    monkeypatch.setattr(api.Verification, "run", write)
    # All but the files that were used last go when one is written.
    olds = [path.parent / f"litert-{index:032}.tflite" for index in range(9)]
    for age, old in enumerate(olds):
        old.write_bytes(b"old")
        os.utime(old, (1000 - age, 1000 - age))
    strange = path.parent / "litert-mine.tflite"
    strange.write_bytes(b"mine")
    in_new_process()
    assert files(path.parent) == sorted(
        [name, strange.name, *(old.name for old in olds[:7])]
    )


@pytest.mark.shipped
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_no_damaged_byte_is_used(runtime, tmp_path, exports, caplog):
    """In a third of a file, in its weights, at its end, or a file of another export."""
    model = table_model(np.random.default_rng(1).permuted(np.eye(23), axis=1))
    prompt, where = {"token_ids": [[3]]}, {"runtime": runtime, "cache_dir": tmp_path}
    expected = generate(model, prompt, 5).token_ids

    def in_new_process():
        forget(model)
        answer = generate(model, prompt, 5, **where)
        np.testing.assert_array_equal(answer.token_ids, expected)

    in_new_process()
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
        in_new_process()
        assert seals.is_sealed(path)
        assert len(exports) == count + 2
        assert "is damaged or incomplete, and is written again" in caplog.text
        caplog.clear()
    in_new_process()
    assert len(exports) == len(parts) + 2 and not caplog.text
    # A kill before the digest, an empty file, and a file that is missing.
    parts[0].write_bytes(parts[0].read_bytes()[: -seals.LENGTH] + b"0" * seals.LENGTH)
    assert not seals.is_sealed(path)
    parts[0].write_bytes(b"")
    in_new_process()
    parts[-1].unlink()
    in_new_process()
    assert len(exports) == len(parts) + 4


@pytest.mark.shipped
def test_two_processes_at_once(tmp_path, monkeypatch):
    """Another process writes the same file while this one exports."""
    model = table_model(np.arange(25).reshape(5, 5) % 7)
    where = {"runtime": "onnx", "cache_dir": tmp_path}
    expected = generate(model, {"token_ids": [[3]]}, 4).token_ids
    export, depth = api.export, []

    def meanwhile(pair, path, **options):
        if not depth:
            depth.append(1)
            generate(model, {"token_ids": [[3]]}, 4, **where)
            assert seals.is_sealed(path)
            forget(model)
        return export(pair, path, **options)

    monkeypatch.setattr(api, "export", meanwhile)
    answer = generate(model, {"token_ids": [[3]]}, 4, **where)
    np.testing.assert_array_equal(answer.token_ids, expected)
    (name,) = files(tmp_path)
    assert seals.is_sealed(tmp_path / name)


def test_digest_depends_on_all_that_a_file_holds():
    model = create("gpt2_small")
    pairs = [model.incremental(max_length=length) for length in (8, 9)]
    digests = {decoder_cache.digest(pair, name) for pair in pairs for name in RUNTIMES}
    assert len(digests) == 4
    again = model.incremental(max_length=8)
    assert decoder_cache.digest(again, "onnx") in digests
    # The smallest change of one weight.
    bias = model.get_layer("block_0").self_attention.output_projection.bias
    changed = bias.numpy()
    changed[3] = np.nextafter(changed[3], np.float32(9))
    bias.assign(changed)
    digests.add(decoder_cache.digest(again, "onnx"))
    assert len(digests) == 5
    # Rows of a table that change places.
    table = model.get_layer("token_embedding").embeddings
    table.assign(table.numpy()[::-1])
    assert decoder_cache.digest(again, "onnx") not in digests


def test_runtimes_that_cannot_run(tmp_path, monkeypatch):
    model = table_model(np.eye(5))

    def in_runtime(runtime="onnx", model: Any = model, **options):
        where = {"cache_dir": tmp_path / "folder", **options}
        return generate(model, {"token_ids": [[3]]}, 4, runtime=runtime, **where)

    message = r'`runtime` must be one of "onnx", "litert".* Received: runtime=\'trt\''
    with pytest.raises(ValueError, match=message):
        in_runtime("trt")
    for runtime, package in (("onnx", "onnxruntime"), ("litert", "ai_edge_litert")):
        with monkeypatch.context() as patched:
            patched.setitem(sys.modules, package, None)
            message = rf"Generation with .* needs `{package}`.*keras-attn\[export\]"
            with pytest.raises(ImportError, match=message):
                in_runtime(runtime)
    from decoding.toys import HostRunner

    with pytest.raises(ValueError, match=r"`runtime` must be None for an exported"):
        in_runtime(model=HostRunner(model.incremental()))
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
    assert decoder_cache.default_folder() == tmp_path / "a" / "keras_attn"
    monkeypatch.setenv("KERAS_ATTN_CACHE", str(tmp_path / "b"))
    assert decoder_cache.default_folder() == tmp_path / "b"
