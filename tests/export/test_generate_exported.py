"""`generate` with exported decoders gives the same tokens as with Keras."""

import numpy as np
import pytest
from export_formats import OF_MOST_MODELS, SUFFIXES
from model_cases import create, varied

from keras_attn.decoding import Beam, Greedy, Sample, generate
from keras_attn.export import export, load_runner, verify

pytestmark = pytest.mark.shipped
CASES = ["gpt2_small", "gpt3_small", "transformer_base"]
LENGTH = 13  # Length of the caches.


@pytest.fixture(scope="module", params=CASES)
def model(request):
    # One block is enough if all are alike: exporting takes seconds.
    return varied(request.param, num_layers=2 if request.param == "gpt3_small" else 1)


@pytest.fixture(scope="module")
def artefact(model, tmp_path_factory):
    """`artefact(suffix)`: a runner of the model's pair, exported once."""
    folder, runners = tmp_path_factory.mktemp("pairs"), {}

    def load(suffix):
        if suffix not in runners:
            path = folder / f"pair{suffix}"
            export(model.incremental(max_length=LENGTH), path)
            runners[suffix] = load_runner(path)
        return runners[suffix]

    return load


def prompts(model):
    """Two prompts of unequal length, one padded on the left."""
    tokens, mask = [[5, 11, 2, 7], [0, 0, 13, 3]], [[1, 1, 1, 1], [0, 0, 1, 1]]
    if "decoder_token_ids" not in model.input:
        return {"token_ids": tokens, "padding_mask": mask}
    return {
        "token_ids": [[7, 3, 11], [2, 5, 0]],
        "padding_mask": [[1, 1, 1], [1, 1, 0]],
        "decoder_token_ids": tokens,
        "decoder_padding_mask": mask,
    }


@pytest.mark.parametrize("suffix", OF_MOST_MODELS)
def test_generated_tokens_equal_keras(model, artefact, suffix):
    runner, inputs = artefact(suffix), prompts(model)
    # Strategies do not depend on the format: one besides greedy is enough for each.
    others = {"": (Sample(seed=5, top_k=7), 3), ".tflite": (Beam(3), None)}
    for strategy, count in ((Greedy(), None), others.get(suffix, (Beam(2), 2))):
        options = {"strategy": strategy, "num_results": count, "end_token_id": 4}
        expected = generate(model, inputs, 9, **options)
        answer = generate(runner, inputs, 9, **options)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
        np.testing.assert_allclose(answer.scores, expected.scores, rtol=0, atol=1e-4)
    calls = []
    answer = generate(runner, inputs, 9, on_token=calls.append)
    np.testing.assert_array_equal(np.stack(calls, axis=1), answer.token_ids)


@pytest.mark.parametrize("suffix", SUFFIXES.values())
def test_runner_knows_the_maximum_length(model, artefact, suffix):
    runner = artefact(suffix)
    assert runner.max_length == LENGTH
    message = (
        rf"`max_new_tokens` exceeds the model's {LENGTH} positions; at most "
        rf"{LENGTH - 4} fit after this prompt. Received: max_new_tokens=10, prompt "
        r"length=4"
    )
    with pytest.raises(ValueError, match=message):
        generate(runner, prompts(model), 10)
    with pytest.raises(ValueError, match=r"must be in \[0, 19\), the vocabulary"):
        generate(runner, {**prompts(model), runner_prompt(model): [[19], [1]]}, 2)


def runner_prompt(model):
    names = model.input
    return "decoder_token_ids" if "decoder_token_ids" in names else "token_ids"


def test_recurrent_decoder_has_no_maximum_length(tmp_path):
    model = create("seq2seq_context")
    export(model, tmp_path / "pair")
    runner = load_runner(tmp_path / "pair")
    assert runner.max_length is None
    answer = generate(runner, {"token_ids": [[5, 3]]}, 40, start_token_id=1)
    expected = generate(model, {"token_ids": [[5, 3]]}, 40, start_token_id=1)
    np.testing.assert_array_equal(answer.token_ids, expected.token_ids)


@pytest.mark.parametrize("case", ["gpt2_small", "transformer_base"])
def test_every_shape_can_be_fixed(case, tmp_path):
    """What a runtime without dynamic shapes needs; shorter texts are padded."""
    model, path = varied(case, num_layers=1), tmp_path / "pair.tflite"
    sizes: dict = {"batch_size": 1, "sequence_length": 4, "num_beams": 3}
    if case == "transformer_base":
        lengths = {"token_ids": 4, "decoder_token_ids": 5}
        masks = {"padding_mask": 4, "decoder_padding_mask": 5}
        sizes["sequence_length"] = {**lengths, **masks}
    report = export(model, path, **sizes, max_length=LENGTH)
    shapes = [*report.inputs["prefill"].values(), *report.inputs["step"].values()]
    assert not [shape for shape in shapes if "?" in shape]
    assert report.inputs["prefill"]["token_ids"] == "int32 (1, 4)"
    assert report.inputs["step"]["token_ids"] == "int32 (3)"
    assert report.inputs["step"]["key_0"] == f"float32 (3, 3, {LENGTH}, 7)"
    assert report.outputs["step"]["new_key_0"] == "float32 (3, 3, 1, 7)"
    runner, inputs = load_runner(path), {}
    assert runner.max_length == LENGTH
    for size, penalty in ((1, 0.6), (3, 0.0)):
        inputs = {runner_prompt(model): [[5, 11, 2][:size]]}
        inputs.setdefault("token_ids", [[13, 3, 7][:size]])
        options = {"strategy": Beam(3, length_penalty=penalty), "end_token_id": 4}
        expected = generate(model, inputs, 8, **options)
        answer = generate(runner, inputs, 8, **options)
        np.testing.assert_array_equal(answer.token_ids, expected.token_ids)
    message = r"`strategy` must have 3 beams .* `num_beams`.* Received: .*num_beams=1"
    with pytest.raises(ValueError, match=message):
        generate(runner, inputs, 8)
    with pytest.raises(ValueError, match="`token_ids` must have at most 4 tokens"):
        generate(runner, {**inputs, "token_ids": [[1] * 5]}, 8, strategy=Beam(3))
    # `verify` reads the length of the caches from the file.
    difference = verify(model, path).max_abs_diff
    assert difference is not None and difference < 1e-4
