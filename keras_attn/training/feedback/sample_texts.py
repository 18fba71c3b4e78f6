"""A callback that shows what a policy writes, beside what the reference writes."""

import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_attn.checks.arguments import check_positive
from keras_attn.distribution.processes import event_writer
from keras_attn.layers.adaptation.switching import adapters_off
from keras_attn.training.feedback.policy_trainer import PolicyTrainer


class SampleTexts(keras.callbacks.Callback):
    """Writes completions of some prompts to TensorBoard after each epoch, as text.

    TensorBoard's "Text" tab then has a table with the prompts, the completions by the
    reference and by the policy, which are sampled with the same random numbers, and
    their scores. The table before training, at step 0, shows the policy at its start;
    that after epoch i is at step i + 1.

    Args:
        log_dir: Folder of the event file; the one given to TensorBoard.
        prompts: `token_ids` and `padding_mask`, (B, P), as of `prompt_dataset`.
        every: Epochs between tables.
        max_examples: Maximum number of prompts shown, the first ones.
        seed: Seed of the sampling.

    Raises:
        TypeError: When training begins, if the model is not a `PPO`, `RLOO` or `GRPO`,
            or has no tokenizer.

    Example:
        ```python
        from keras_attn import data, training

        tokenizer = data.CharacterTokenizer.train(["good day"])
        prompts = [tokenizer.encode_prompt(text) for text in ("a", "go")]
        batch = next(iter(data.prompt_dataset(prompts, batch_size=2)))
        shown = training.SampleTexts("runs/ppo/logs", batch)  # A callback of `PPO.fit`.
        ```
    """

    def __init__(
        self,
        log_dir: str | os.PathLike,
        prompts: Mapping[str, Any],
        *,
        every: int = 1,
        max_examples: int = 8,
        seed: int = 0,
    ):
        super().__init__()
        self.log_dir = os.fspath(log_dir)
        self.every = check_positive("every", every)
        count = check_positive("max_examples", max_examples)
        self.prompts = {
            name: keras.ops.convert_to_numpy(values)[:count]
            for name, values in prompts.items()
        }
        self.seed = seed
        self._columns: list[list[str]] = []

    def on_train_begin(self, logs=None):
        """Samples from the reference, and writes the first table."""
        trainer: Any = self.model
        if not isinstance(trainer, PolicyTrainer) or trainer.tokenizer is None:
            raise TypeError(
                "`SampleTexts` needs a `PPO`, `RLOO` or `GRPO` with a `tokenizer`. "
                f"Received: model={trainer!r}"
            )
        with adapters_off(trainer.network):  # Their base may be the reference.
            before = self._sample(trainer.reference)
        self._columns = [*before.texts(trainer.tokenizer), self._scores(before)]
        if not int(trainer.iteration):  # Not a run that resumes.
            self._write(0)

    def on_epoch_end(self, epoch, logs=None):
        """Writes the table of every `every`-th epoch."""
        if (epoch + 1) % self.every == 0:
            self._write(epoch + 1)

    def _sample(self, network):
        trainer: Any = self.model
        return trainer.sampling.sample(network, self.prompts, seed=self.seed)

    def _scores(self, completions):
        trainer: Any = self.model
        scores = trainer.score(completions)
        return [f"{score:.3f}" for score in np.asarray(scores)]

    def _write(self, step):
        trainer: Any = self.model
        now = self._sample(trainer.network)
        prompts, before, old_scores = self._columns
        columns = (
            prompts,
            before,
            old_scores,
            now.texts(trainer.tokenizer)[1],
            self._scores(now),
        )
        header = ["prompt", "reference", "score", "policy", "score"]
        rows = [header, *map(list, zip(*columns, strict=True))]
        writer = event_writer(self.log_dir)
        with writer.as_default(step=step):
            tf.summary.text("samples", tf.constant(rows))
        writer.close()
