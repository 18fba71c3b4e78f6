"""A callback that writes plots of a speech recognizer's attention to TensorBoard."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from keras_attn.viz.callbacks.base import AttentionPlots
from keras_attn.viz.speech import plot_speech_attention


class SpeechAttentionMaps(AttentionPlots):
    """Writes a speech recognizer's attention to TensorBoard after each epoch.

    Like `AttentionMaps`, but with the spectrogram above the characters; see
    `viz.plot_speech_attention`.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        inputs: Inputs of the model by name, batch first, padded at the end.
        target_tokens: For each example, the labels of the characters to predict.
        features: Log-mel features to draw, (B, T, F). None takes the features in
            `inputs`.
        frame_lengths: (B,), the real frames of `features`. None takes them from the
            `padding_mask` of `inputs`, which must then mask frames.
        layer: A regular expression, searched for in the layers' paths. None = all.
        every: Epochs between plots, starting with epoch 0.
        max_examples: Maximum number of examples drawn, the first of `inputs`.
        **options: Further arguments of `viz.plot_speech_attention`, such as
            `reduction`.

    Raises:
        ValueError: If features are missing, or the numbers of features and token lists
            differ; at the start of training, if no layer matches, and as for
            `viz.plot_speech_attention`.

    Example:
        ```python
        import numpy as np
        from keras_attn import viz

        inputs = {"features": np.ones((2, 24, 40)), "padding_mask": np.ones((2, 24))}
        inputs["decoder_token_ids"] = np.array([[1, 4, 5, 6, 7, 7], [1, 8, 9, 7, 0, 0]])
        letters = [list("three"), list("one")]
        maps = viz.callbacks.SpeechAttentionMaps("runs/digits", inputs, letters)
        # model.fit(dataset, epochs=20, callbacks=[maps])
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        inputs: Mapping,
        target_tokens: Sequence[Sequence[str]],
        *,
        features=None,
        frame_lengths: Sequence[int] | None = None,
        layer: str | None = None,
        every: int = 1,
        max_examples: int = 4,
        **options,
    ):
        super().__init__(log_dir, layer, every, max_examples)
        if features is None:
            features = inputs.get("features")
        if frame_lengths is None and "padding_mask" in inputs:
            frame_lengths = np.asarray(inputs["padding_mask"]).astype(bool).sum(1)
        counts = {
            len(x) for x in (features, frame_lengths, target_tokens) if x is not None
        }
        if features is None or frame_lengths is None or len(counts) != 1:
            raise ValueError(
                "`features`, `frame_lengths` and `target_tokens` must have one entry "
                "for each example of `inputs`. Received: inputs named "
                f"{list(inputs)}, {len(target_tokens)} target_tokens"
            )
        rows = slice(max_examples)
        self.inputs = {name: np.asarray(x)[rows] for name, x in inputs.items()}
        self.frames = [
            np.asarray(frames)[:length]
            for frames, length in zip(features[rows], frame_lengths[rows], strict=True)
        ]
        self.target_tokens = list(target_tokens)[rows]
        self.options = options

    def _figures(self):
        for path, scores in self._capture(self.inputs).items():
            examples = zip(scores, self.frames, self.target_tokens, strict=True)
            for index, example in enumerate(examples):
                figure = plot_speech_attention(*example, title=path, **self.options)
                yield f"attention/{path}/{index}", figure
