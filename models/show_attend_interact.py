"""Show, attend and interact: a robot that watches people and responds with an action.

A deep attention recurrent Q-network for each of two cameras, of brightness (gray) and
of distance (depth). For each frame x_t of a camera:

    v_t = CNN(x_t)                                `gray_conv_0` … `gray_places`
    e_ti = wᵀ tanh(W v_ti + b + U h_{t-1})        `gray_lstm`: score of location i
    g_t = softmax(e_t)                            `gray_lstm`: attention
    z_t = Σ_i g_ti v_ti                           `gray_lstm`: context
    h_t, c_t = LSTM(z_t, h_{t-1}, c_{t-1})        `gray_lstm`: h_0 and c_0 are zero
    Q_t = W_q h_t + b_q                           `gray_q_values`: one per action

and the same for `depth_…`. The robot takes the action with the largest fused value

    Q̄_ta = ½ Q_ta / Σ_b |Q_tb| + the same for depth

The forward pass is `_see`, `_watch`, `_fuse` below; e, g, z and h are computed by
`layers/recurrent/frame_attention_rnn.py` with the score of
`layers/attention/additive_attention.py`. Each camera's network learns from its own
Q-values, see `training.DeepQ`.

Legend: B batch, T steps, H and W pixels, F channels of a frame, P locations of the map,
C channels of the map, U units, N actions.
Layers: for each `<camera>`, gray and depth: `<camera>_padding`, `<camera>_conv_0`, …,
`<camera>_places`, `<camera>_lstm`, `<camera>_q_values`. `step_model` finds them by
these names.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.layers import LSTMCell, ZeroPadding2D

from keras_attn.checks.arguments import check_pair
from keras_attn.layers import AdditiveAttention, Conv2D, FrameAttentionRNN, PerFrame
from keras_attn.models.catalog.cards import model_cards
from keras_attn.models.catalog.registry import registered
from keras_attn.models.catalog.variants import FROM_VARIANT
from keras_attn.models.parts.functional import Functional, by_name, numbered
from keras_attn.models.parts.heads import logits_layer

# Qureshi et al. 2017. The sizes are from the authors' code (CNN.lua, LSTM.lua and
# NeuralQLearner.lua of their project "Perceivable Human-Robot Interaction using Neural
# Attention Q-Networks"), which reads 8 frames before each action. Its LSTM has two
# biases per gate, and its score has a further bias, which the softmax cancels, so it
# has 1,025 more parameters per camera than our 1,382,532. The actions are to wait, to
# look towards a person, to wave, and to offer a handshake.
VARIANTS = {
    "base": {
        "image_size": 198,
        "num_channels": 1,
        "hidden_dims": (16, 32, 64, 256),
        "kernel_sizes": (9, 8, 7, 6),
        "strides": (3, 2, 2, 1),
        "attention_dim": 256,
        "hidden_dim": 256,
        "num_actions": 4,
    }
}
CARDS = model_cards(
    "show_attend_interact",
    {"base": None},
    notes="learned by a robot in 14 days among people",
    title="Show, attend and interact: the values of a robot's actions",
    paper="Qureshi et al. 2017, arXiv:1702.08626",
    task="human-robot interaction",
    inputs={
        "gray": "(B, T, 198, 198, 1) float, brightness",
        "depth": "(B, T, 198, 198, 1) float, distance",
    },
    outputs={
        "q_values": "(B, T, 4), both cameras' values as shares, averaged",
        "gray_q_values": "(B, T, 4), expected sums of rewards",
        "depth_q_values": "(B, T, 4), expected sums of rewards",
    },
)
CAMERAS = ("gray", "depth")
_EPSILON = 1e-6


@registered(CARDS, VARIANTS)
def build_show_attend_interact(
    variant: str = "base",
    *,
    image_size: int | tuple[int, int] = FROM_VARIANT,
    num_channels: int = FROM_VARIANT,
    hidden_dims: Sequence[int] = FROM_VARIANT,
    kernel_sizes: Sequence[int] = FROM_VARIANT,
    strides: Sequence[int] = FROM_VARIANT,
    attention_dim: int = FROM_VARIANT,
    hidden_dim: int = FROM_VARIANT,
    num_actions: int = FROM_VARIANT,
    return_attention_scores: bool = False,
    name: str = "show_attend_interact",
) -> "ShowAttendInteract":
    """The values of a robot's actions, from what two cameras have seen so far.

    The authors divide Q-values by their sum, which prefers the worst action if the sum
    is negative. Here they are divided by the sum of their absolute values, which is the
    same if all values are positive.

    Args:
        variant: A row of `VARIANTS`, which supplies every argument not given.
        image_size: H and W, one number or two.
        num_channels: F; above 1 for a stack of frames at every step.
        hidden_dims: Channels of the convolutions; C is the last.
        kernel_sizes: Their kernel sizes, in pixels. The input of the first is padded by
            one pixel.
        strides: Their strides, in pixels.
        attention_dim: Units of the score.
        hidden_dim: U.
        num_actions: N.
        return_attention_scores: Whether the model also returns the attention.
        name: Name of the model.

    Returns:
        A model from `gray` and `depth`, both (B, T, H, W, F), to a dictionary of
        `q_values`, Q̄, `gray_q_values` and `depth_q_values`, all (B, T, N); with
        `return_attention_scores=True` also `attention_scores` (B, 2, T, P), for gray
        and for depth, the locations row by row.

    Raises:
        ValueError: If a size is not a positive integer, `hidden_dims`, `kernel_sizes`
            and `strides` differ in length, or `image_size` is too small for the
            convolutions.

    Reference:
        Qureshi, Nakamura, Yoshikawa, Ishiguro 2017, "Show, Attend and Interact:
        Perceivable Human-Robot Social Interaction through Neural Attention Q-Network"
        (arXiv:1702.08626); the attention is from Sorokin et al. 2015, "Deep
        Attention Recurrent Q-Network" (arXiv:1512.01693).
    """
    size = check_pair("image_size", image_size)
    convolutions = _convolutions(hidden_dims, kernel_sizes, strides)
    _map_size(size, convolutions)
    layers = by_name(
        layer
        for camera in CAMERAS
        for layer in _camera_layers(
            camera, convolutions, attention_dim, hidden_dim, num_actions
        )
    )
    inputs = {
        camera: keras.Input((None, *size, num_channels), name=camera)
        for camera in CAMERAS
    }
    watched = {
        camera: _watch(
            layers, camera, _see(layers, camera, inputs[camera]), scores=True
        )
        for camera in CAMERAS
    }
    return ShowAttendInteract(
        inputs=inputs, outputs=_outputs(watched, return_attention_scores), name=name
    )


def _camera_layers(camera, convolutions, attention_dim, hidden_dim, num_actions):
    """The layers of the network of one camera."""
    return [
        PerFrame(ZeroPadding2D(1), name=f"{camera}_padding"),
        *(
            PerFrame(
                Conv2D(filters, size, strides=stride, activation="relu", name="conv"),
                name=f"{camera}_conv_{index}",
            )
            for index, (filters, size, stride) in enumerate(convolutions)
        ),
        PerFrame(
            keras.layers.Reshape((-1, convolutions[-1][0]), name="places"),
            name=f"{camera}_places",
        ),
        FrameAttentionRNN(
            LSTMCell(hidden_dim, name="cell"),
            AdditiveAttention(attention_dim, use_bias=True, name="attention"),
            name=f"{camera}_lstm",
        ),
        logits_layer(num_actions, f"{camera}_q_values"),
    ]


def _see(layers, camera, frames):
    """The locations v of every frame, (B, T, P, C)."""
    maps = layers[f"{camera}_padding"](frames)
    for convolution in numbered(layers, f"{camera}_conv"):
        maps = convolution(maps)
    return layers[f"{camera}_places"](maps)


def _watch(layers, camera, places, state=None, scores=False):
    """Q of every step (B, T, N) as `q_values`, and the outputs of the LSTM."""
    watched = layers[f"{camera}_lstm"](places, state, return_attention_scores=scores)
    return {**watched, "q_values": layers[f"{camera}_q_values"](watched["states"])}


def _fuse(values):
    """Q̄ (B, T, N), the mean of the Q-values of both cameras as shares."""
    shares = [
        one / ops.maximum(ops.sum(ops.abs(one), axis=-1, keepdims=True), _EPSILON)
        for one in values
    ]
    return 0.5 * (shares[0] + shares[1])


def _outputs(watched, return_attention_scores):
    """The model's outputs, from the outputs of `_watch` by camera."""
    values = {f"{camera}_q_values": watched[camera]["q_values"] for camera in CAMERAS}
    outputs = {"q_values": _fuse(list(values.values())), **values}
    if return_attention_scores:
        scores = [watched[camera]["attention_scores"] for camera in CAMERAS]
        outputs["attention_scores"] = ops.concatenate(scores, axis=1)
    return outputs


@keras.saving.register_keras_serializable("keras_attn")
class ShowAttendInteract(Functional):
    """The model of `build_show_attend_interact`, with a model of one step."""

    def step_model(self, name=None) -> keras.Model:
        """A model of one step, for a robot: images and a state in, Q-values out.

        It shares the layers of this model and can be exported to every format.

        Args:
            name: Name of the new model. Default: the name of this model followed by
                `_step`.

        Returns:
            A model from `gray` and `depth` (B, H, W, F) and the state, `gray_hidden`,
            `gray_cell`, `depth_hidden`, `depth_cell` (B, U), to the new state under the
            same names, `q_values`, `gray_q_values` and `depth_q_values` (B, N), and, if
            this model returns it, the attention, `attention_scores` (B, 2, P).
        """
        layers = by_name(self.layers)
        shapes = {camera: self.input[camera].shape[2:] for camera in CAMERAS}
        images: dict[str, Any] = {
            camera: keras.Input(shape, name=camera) for camera, shape in shapes.items()
        }
        states: dict[str, Any] = {
            key: keras.Input(zeros.shape[1:], name=key)
            for key, zeros in self.initial_state(1).items()
        }
        has_scores = "attention_scores" in self.output
        watched = {
            camera: _watch(
                layers,
                camera,
                _see(layers, camera, ops.expand_dims(images[camera], 1)),
                [states[f"{camera}_{part}"] for part in ("hidden", "cell")],
                scores=True,
            )
            for camera in CAMERAS
        }
        outputs = _outputs(watched, has_scores)
        scores = outputs.pop("attention_scores", None)
        outputs = {key: value[:, 0] for key, value in outputs.items()}
        if scores is not None:
            outputs["attention_scores"] = scores[:, :, 0]
        after = [tensor for each in watched.values() for tensor in each["final_state"]]
        outputs |= dict(zip(states, after, strict=True))
        return Functional(
            inputs={**images, **states},
            outputs=outputs,
            name=name or f"{self.name}_step",
        )

    def initial_state(self, batch_size) -> dict[str, np.ndarray]:
        """The state of `step_model` before the first images: zeros, by name.

        Args:
            batch_size: B.
        """
        layers = by_name(self.layers)
        return {
            f"{camera}_{part}": np.zeros(
                (batch_size, layers[f"{camera}_lstm"].cell.units), "float32"
            )
            for camera in CAMERAS
            for part in ("hidden", "cell")
        }

    @property
    def grid_size(self) -> tuple[int, int]:
        """Rows and columns of the locations, for plots and `AttentionInside`."""
        layers = by_name(self.layers)
        convolutions = [
            (conv.layer.filters, conv.layer.kernel_size[0], conv.layer.strides[0])
            for conv in numbered(layers, "gray_conv")
        ]
        return _map_size(self.input["gray"].shape[2:4], convolutions)


def _convolutions(hidden_dims, kernel_sizes, strides):
    """Channels, kernel and stride of each convolution."""
    if not len(hidden_dims) == len(kernel_sizes) == len(strides):
        raise ValueError(
            "`hidden_dims`, `kernel_sizes` and `strides` must have one number per "
            f"convolution. Received: hidden_dims={hidden_dims}, "
            f"kernel_sizes={kernel_sizes}, strides={strides}"
        )
    return list(zip(hidden_dims, kernel_sizes, strides, strict=True))


def _map_size(image_size, convolutions) -> tuple[int, int]:
    """Rows and columns of the map of an image that is first padded by one pixel."""
    rows, columns = (
        list(
            itertools.accumulate(
                convolutions,
                lambda pixels, conv: (pixels - conv[1]) // conv[2] + 1,
                initial=pixels + 2,
            )
        )
        for pixels in image_size
    )
    if min(*rows, *columns) < 1:
        raise ValueError(
            "`image_size` must be large enough for the convolutions: pass larger "
            "images, or smaller `kernel_sizes` and `strides`. "
            f"Received: image_size={tuple(image_size)}"
        )
    return rows[-1], columns[-1]
