"""Reward models: a scalar head on any encoder or decoder, and its normalization.

Legend: B batch, T tokens, D width.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_above_zero
from keras_attn.models.gpt import GPT
from keras_attn.models.gpt_tasks import build_gpt_encoder
from keras_attn.models.parts import heads
from keras_attn.models.parts.functional import Functional, sequence_inputs

_NORMALIZATION = "score_normalization"


def as_reward_model(encoder, *, name: str = "reward_model") -> Functional:
    """One score per text, from the pooled features of an encoder or a decoder.

    The head is a dense layer whose initial weights have a standard deviation of
    1 / √(D + 1). Train the model by `RankingLoss` on `ranking_dataset`, then let
    `normalize_scores` give its scores mean 0 and deviation 1.

    Args:
        encoder: A model from token ids to `pooled_output` (B, D), such as of
            `models.create("roberta_base")`; or a GPT, whose last real token is pooled.
            Its layers are shared. Inputs other than `token_ids` and `padding_mask`,
            such as BERT's `segment_ids`, are 0.
        name: Name of the model.

    Returns:
        A model from `token_ids` and `padding_mask`, each (B, T), to scores (B, 1).

    Raises:
        TypeError: If `encoder` is not a model with a `pooled_output`.

    Reference:
        Ziegler et al. 2019, section 2.1 (arXiv:1909.08593); the head's weights:
        Stiennon et al. 2020, appendix B (arXiv:2009.01325).
    """
    if isinstance(encoder, GPT):
        encoder = build_gpt_encoder(encoder)
    outputs = getattr(encoder, "output", None)
    if not isinstance(outputs, dict) or "pooled_output" not in outputs:
        raise TypeError(
            "`encoder` must be a model with a `pooled_output`, or a model from "
            f"`build_gpt`. Received: encoder={encoder!r}"
        )
    inputs = sequence_inputs("token_ids", "padding_mask")
    if set(encoder.input) == set(inputs):
        inputs, features = encoder.input, outputs["pooled_output"]
    else:
        zeros = {
            x: ops.zeros_like(inputs["token_ids"])
            for x in set(encoder.input) - set(inputs)
        }
        features = encoder({**inputs, **zeros})["pooled_output"]
    deviation = 1 / math.sqrt(features.shape[-1] + 1)
    head = heads.logits_layer(
        1,
        "score",
        kernel_initializer=keras.initializers.RandomNormal(stddev=deviation),
    )
    return Functional(inputs, head(features), name=name)


def normalize_scores(
    model: keras.Model, inputs, *, epsilon: float = 1e-6
) -> Functional:
    """A reward model whose scores of these texts have mean 0 and deviation 1.

    Scores matter only up to a constant where answers are ranked, so they may lie
    anywhere. As in OpenAI's experiments, take texts that the reference policy has
    sampled.

    Args:
        model: A model with scores (B, 1), such as of `as_reward_model`. Its layers
            are shared.
        inputs: Texts, as `model.predict` takes them: arrays, or a dataset.
        epsilon: The least deviation that can be scaled to 1.

    Returns:
        A model with the same inputs and layers, and a layer `score_normalization`,
        which replaces an earlier one.

    Raises:
        ValueError: If a score is not finite, or all are equal.

    Example:
        ```python
        import numpy as np
        from keras_attn import models

        gpt = models.build_gpt(num_layers=1, hidden_dim=32, vocabulary_size=100)
        model = models.as_reward_model(gpt)
        token_ids = np.random.randint(2, 100, (8, 6))
        inputs = {"token_ids": token_ids, "padding_mask": np.ones((8, 6))}
        model = models.normalize_scores(model, inputs)  # Mean 0, standard deviation 1.
        ```

    Reference:
        Ziegler et al. 2019, section 2.1 (arXiv:1909.08593).
    """
    check_above_zero("epsilon", epsilon)
    output = model.output
    if model.layers[-1].name == _NORMALIZATION:
        operation, number, _ = output._keras_history
        output = operation._inbound_nodes[number].input_tensors[0]
        model = Functional(model.input, output, name=model.name)
    scores = np.asarray(model.predict(inputs, verbose=0), "float64").reshape(-1)
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise ValueError(
            "The scores of `inputs` must be finite. "
            f"Received: {scores[row]} in row {row}"
        )
    deviation = scores.std()
    if deviation < epsilon:
        raise ValueError(
            "The scores of `inputs` must differ, or their deviation can't become 1. "
            f"Received: {len(scores)} scores with deviation {deviation:.3g}"
        )
    normalization = keras.layers.Rescaling(
        float(1 / deviation),
        float(-scores.mean() / deviation),
        dtype="float32",
        name=_NORMALIZATION,
    )
    return Functional(model.input, normalization(output), name=model.name)
