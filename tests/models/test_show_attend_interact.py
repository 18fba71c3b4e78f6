"""Show, attend and interact: its equations, its model of one step, what it refuses."""

import numpy as np
import pytest
from attention_reference import softmax
from lstm_reference import numpy_step
from model_cases import create, inputs_for, numpy, tiny
from model_contract import close
from model_family import B, T

from keras_attn import models
from keras_attn.viz import capture_attention

CASE = "show_attend_interact-scores"
CAMERAS = ("gray", "depth")


def convolve(image, kernel, bias, stride):
    """A convolution and ReLU of one image, (H, W, C), window by window."""
    size = kernel.shape[0]
    rows, columns = ((n - size) // stride + 1 for n in image.shape[:2])
    out = np.zeros((rows, columns, kernel.shape[-1]))
    for row in range(rows):
        for column in range(columns):
            top, left = stride * row, stride * column
            window = image[top : top + size, left : left + size]
            out[row, column] = np.tensordot(window, kernel, 3) + bias
    return np.maximum(out, 0)


def weights_of(model, camera):
    """Weights of a camera's network by the end of their paths."""
    return {
        weight.path.removeprefix(f"{camera}_"): numpy(weight).astype("float64")
        for weight in model.weights
        if weight.path.startswith(camera)
    }


def reference(model, camera, frames):
    """Q-values (T, N) and attention (T, P) of one episode, step by step."""
    w = weights_of(model, camera)
    lstm = [w[f"lstm/cell/{name}"] for name in ("kernel", "recurrent_kernel", "bias")]
    h = c = np.zeros(len(lstm[1]))
    values, attention = [], []
    for frame in frames.astype("float64"):
        x = np.pad(frame, ((1, 1), (1, 1), (0, 0)))
        for index, stride in enumerate((3, 2)):
            kernel, bias = (w[f"conv_{index}/conv/{n}"] for n in ("kernel", "bias"))
            x = convolve(x, kernel, bias, stride)
        places = x.reshape(-1, x.shape[-1])
        projected = places @ w["lstm/attention/key/kernel"]
        projected += w["lstm/attention/key/bias"] + h @ w["lstm/attention/query/kernel"]
        scores = np.tanh(projected) @ w["lstm/attention/score_vector"]
        weights = softmax(scores[:, 0])
        h, c = numpy_step(lstm, weights @ places, h, c)
        values.append(h @ w["q_values/kernel"] + w["q_values/bias"])
        attention.append(weights)
    return np.array(values), np.array(attention)


def test_it_follows_the_equations_step_by_step():
    model, inputs = tiny(CASE), inputs_for(tiny(CASE))
    outputs = numpy(model(inputs))
    fused = 0.0
    for index, camera in enumerate(CAMERAS):
        for row in range(B):
            values, attention = reference(model, camera, inputs[camera][row])
            got = outputs[f"{camera}_q_values"][row]
            np.testing.assert_allclose(got, values, rtol=0, atol=2e-5)
            got = outputs["attention_scores"][row, index]
            np.testing.assert_allclose(got, attention, rtol=0, atol=2e-5)
        values = outputs[f"{camera}_q_values"]
        fused = fused + 0.5 * values / np.abs(values).sum(-1, keepdims=True)
    np.testing.assert_allclose(outputs["q_values"], fused, rtol=0, atol=1e-6)
    # Attention has to differ between places, steps and cameras to be compared.
    assert outputs["attention_scores"].std(-1).min() > 1e-3
    captured = capture_attention(model, inputs)
    assert [path.split("/")[-1] for path in captured] == ["gray_lstm", "depth_lstm"]
    both = np.concatenate(list(captured.values()), axis=1)
    np.testing.assert_allclose(both, outputs["attention_scores"], rtol=0, atol=1e-6)


def steps_of(run, inputs, state):
    """The outputs of a step model over all steps, stacked."""
    outputs = []
    for step in range(T):
        now = {camera: inputs[camera][:, step] for camera in CAMERAS}
        result = run({**now, **state})
        state = {name: numpy(result[name]) for name in state}
        outputs.append({n: numpy(x) for n, x in result.items() if n not in state})
    return {name: np.stack([o[name] for o in outputs], -2) for name in outputs[0]}


@pytest.mark.parametrize("case", ["show_attend_interact", CASE])
def test_the_model_of_one_step_gives_the_same_as_the_sequence(case):
    model = tiny(case)
    inputs = inputs_for(model)
    step = model.step_model()
    assert step.name == f"{model.name}_step"
    assert not {id(w) for w in step.weights} ^ {id(w) for w in model.weights}
    got = steps_of(step, inputs, model.initial_state(B))
    close(got, numpy(model(inputs)), 1e-5)


@pytest.mark.shipped
@pytest.mark.parametrize("format", ["saved_model", "litert", "onnx"])
def test_the_model_of_one_step_ships(format, tmp_path):
    from export_formats import SUFFIXES

    from keras_attn.export import export, load_runner

    model = tiny(CASE)
    inputs = inputs_for(model)
    path = tmp_path / f"step{SUFFIXES[format]}"
    report = export(model.step_model(), path, batch_size=B)
    assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-4
    # The state goes through the artefact from step to step.
    got = steps_of(load_runner(path), inputs, model.initial_state(B))
    close(got, numpy(model(inputs)), 2e-5)


def test_the_grid_is_that_of_the_published_images():
    # Map sizes 64, 29, 12 and 7 of the authors' convolutions.
    model = models.create("show_attend_interact", hidden_dims=(2, 2, 2, 2))
    assert model.grid_size == (7, 7)
    assert model.output["q_values"].shape == (None, None, 4)
    assert tiny(CASE).grid_size == (2, 3)
    assert tiny(CASE).output["attention_scores"].shape[-1] == 6


@pytest.mark.parametrize(
    "options, match",
    [
        ({"image_size": (19, 6)}, "`image_size` must be large .*Received: image_size="),
        ({"strides": (3,)}, "must have one number per convolution. Received: hidden_d"),
    ],
)
def test_an_error_names_the_size(options, match):
    with pytest.raises(ValueError, match=match):
        create("show_attend_interact", **options)
