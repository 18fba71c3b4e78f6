"""The base of PPO, RLOO and GRPO: `fit` samples, scores and learns by batches.

A step is `_learn`, whose formulas are at the head of `ppo.py`:

    rollout         tokens (N, T) of completions.py, by the compiled loop of `generate`;
                    their log-probabilities (N, C) by `call` and by the reference, which
                    token_scores.py computes; and scores (N,) of rewards.py
    _advantages     of the rollout, with whatever else the loss reads
    compute_loss    `num_passes` times over the N rows, an update for each minibatch

Legend: B prompts, G completions of each, N = B·G, C sampled tokens, T tokens of prompt
and completion.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_attn.checks.arguments import (
    check_at_least_zero,
    check_choice,
    check_positive,
)
from keras_attn.kernels.runtime import has_distribution_strategy
from keras_attn.layers.adaptation.switching import adapters_off
from keras_attn.losses.policy_gradients import ClipRange, check_clip_range
from keras_attn.training.feedback.completions import (
    Completions,
    CompletionSampling,
    penalize_missing_end,
)
from keras_attn.training.feedback.kl_weights import AdaptiveKL, FixedKL
from keras_attn.training.feedback.pretraining import Pretraining
from keras_attn.training.feedback.rewards import Reward, reward_function
from keras_attn.training.feedback.token_scores import (
    TokenScorer,
    check_finite_scores,
    frozen_reference,
)

KLWeight = float | FixedKL | AdaptiveKL
Reference = keras.Model | Literal["adapters_off"] | None

# Seeds of validation are apart from seeds of training.
_VALIDATION = 1 << 31


class Rollout(NamedTuple):
    """Completions with everything that a policy learns from; see `PPO.rollout`.

    Attributes:
        completions: N = B·G rows, the G completions of a prompt one after another.
        log_probabilities: log π of the sampled tokens, float32 (N, C).
        entropies: Entropy of the policy at each of them, (N, C).
        values: The value before each of them, (N, C), or None.
        reference: log π_ref of them, (N, C).
        scores: The reward of each completion, (N,), less what a missing end costs.
    """

    completions: Completions
    log_probabilities: np.ndarray
    entropies: np.ndarray
    values: np.ndarray | None
    reference: np.ndarray
    scores: np.ndarray


class PolicyTrainer(keras.Model):
    """Trains a language model on rewards; a subclass has advantages and a loss.

    Args:
        network: The policy: a model that `generate` takes, from `token_ids` and
            `padding_mask` to logits (B, T, V), such as of `build_gpt`.
        reward: A model from `token_ids` and `padding_mask` (padding at the right) to
            scores (B, 1), such as of `as_reward_model`, with the vocabulary of the
            policy; or a function of a list of prompts and a list of completions, all
            texts, which returns a number for each completion.
        sampling: How completions are sampled, and where they end.
        reference: The reference model; or `"adapters_off"`, the network without its
            low-rank updates. Default: a copy of the network as it is now.
        tokenizer: An object with `decode`, from ids to a text; needed if `reward` is a
            function of texts.
        kl_weight: β, a number; or a `FixedKL`, or an `AdaptiveKL`.
        group_size: Completions of each prompt, at least 2 where they are compared.
        missing_end_penalty: What `penalize_missing_end` takes. None = nothing.
        missing_end: `"replace"` or `"subtract"`; see `penalize_missing_end`.
        clip_range: ε of the loss.
        num_passes: Passes over the completions of a batch.
        num_minibatches: Updates of each pass.
        pretraining: Batches of `(inputs, labels, weights)`, such as of
            `completion_dataset` or `causal_lm_dataset`, whose cross-entropy is added to
            the loss of each update (PPO-ptx). It is read anew in each epoch.
        pretraining_weight: Weight of that cross-entropy, a mean over its tokens.
        seed: Seed of the sampling and of the order of minibatches.
        **kwargs: `name`, … of a Keras model.
    """

    # What the loss reports of each update.
    reported: tuple[str, ...] = ()

    def __init__(
        self,
        network,
        reward: Reward,
        sampling: CompletionSampling,
        *,
        reference: Reference,
        tokenizer: Any,
        kl_weight: KLWeight,
        group_size: int = 1,
        missing_end_penalty: float | None,
        missing_end: Literal["replace", "subtract"],
        clip_range: ClipRange,
        num_passes: int,
        num_minibatches: int,
        pretraining: Iterable | None = None,
        pretraining_weight: float = 1.0,
        seed: int,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not isinstance(network, keras.Model) or not hasattr(network, "incremental"):
            raise TypeError(
                "`network` must be a Keras model that `generate` takes, such as of "
                f"`build_gpt`. Received: network={network!r}"
            )
        if not isinstance(sampling, CompletionSampling):
            raise TypeError(
                "`sampling` must be a `CompletionSampling`. "
                f"Received: sampling={sampling!r}"
            )
        if has_distribution_strategy():
            # Each replica would learn from the whole batch.
            raise ValueError(
                "A trainer on rewards must be made outside a `tf.distribute` strategy: "
                f"it runs on one device. Received: {type(self).__name__} in a strategy"
            )
        check_choice("missing_end", missing_end, ("replace", "subtract"))
        if missing_end_penalty is not None:
            penalize_missing_end(np.zeros(1), np.ones(1, bool), missing_end_penalty)
        self.group_size = check_positive("group_size", group_size)
        self.num_passes = check_positive("num_passes", num_passes)
        self.num_minibatches = check_positive("num_minibatches", num_minibatches)
        self.network = network
        self.sampling = sampling
        self.tokenizer = tokenizer
        self.missing_end_penalty = missing_end_penalty
        self.missing_end: Any = missing_end
        self.seed = seed
        # Not an attribute: the weights of a reward model are not part of the trainer.
        self._score = reward_function(reward, tokenizer, sampling.pad_token_id)
        is_model = isinstance(reference, keras.Model)
        if not is_model and reference not in (None, "adapters_off"):
            raise TypeError(
                '`reference` must be a Keras model, "adapters_off" or None. '
                f"Received: reference={reference!r}"
            )
        frozen = frozen_reference(network, reference)
        self._reference = TokenScorer(
            network if frozen == "adapters_off" else frozen,
            sampling.max_new_tokens,
            sampling.temperature,
        )
        if not isinstance(kl_weight, FixedKL | AdaptiveKL):
            kl_weight = FixedKL(kl_weight)
        self._kl = kl_weight
        # As weights, so that a backup has them.
        start = keras.initializers.Constant(kl_weight.weight)
        self.kl_weight = self.add_weight(
            (), start, "float32", trainable=False, name="kl_weight"
        )
        self.iteration = self.add_weight(
            (), "zeros", "int32", trainable=False, name="iteration"
        )
        self._jit_compile: Any = "auto"
        check_clip_range("clip_range", clip_range)
        self.clip_range = clip_range
        self.pretraining_weight = check_at_least_zero(
            "pretraining_weight", pretraining_weight
        )
        self._pretraining = None if pretraining is None else Pretraining(pretraining)
        names = (*self.reported, *(["pretraining_loss"] if self._pretraining else []))
        self._means = {name: keras.metrics.Mean(name=name) for name in names}

    @property
    def reference(self) -> Any:
        """The reference model; the network itself if that is the base of adapters."""
        return self._reference.network

    def compile(self, optimizer: Any = "rmsprop", **kwargs):
        """As of any Keras model, with an optimizer and no loss.

        Args:
            optimizer: The optimizer.
            **kwargs: `jit_compile`, `run_eagerly`, … of a Keras model. `jit_compile`
                also holds for the sampling loop.
        """
        super().compile(optimizer, **kwargs)
        self._jit_compile = kwargs.get("jit_compile", "auto")
        shared = {"jit_compile", "run_eagerly"} & set(kwargs)
        for model in self._compiled_models():
            model.compile(**{name: kwargs[name] for name in shared})

    def fit(
        self,
        x: Iterable[Mapping[str, Any]],
        *,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_data: Iterable[Mapping[str, Any]] | None = None,
        validation_freq: int = 1,
        initial_epoch: int = 0,
        shuffle: bool = False,
    ) -> keras.callbacks.History:
        """Samples completions of each batch of prompts, scores them, and learns.

        Args:
            x: Batches of prompts, as of `prompt_dataset`, read once in each epoch.
            epochs: Passes over the prompts.
            verbose: As of `keras.Model.fit`.
            callbacks: Keras callbacks, such as `TensorBoard`, `EarlyStopping`,
                `SampleTexts` and, as the last one, `BackupAndResume`.
            validation_data: Batches of prompts for `evaluate`, logged as `val_…`.
            validation_freq: Epochs between validations.
            initial_epoch: Number of the first epoch.
            shuffle: False: `prompt_dataset` shuffles.

        Returns:
            The history of the logs.

        Raises:
            ValueError: If a reward or a log-probability is not finite: the batch is
                named, and nothing of it was learned; if a prompt leaves no room for
                the tokens to sample; or if `shuffle` is set.
        """
        if shuffle:
            raise ValueError(
                "`shuffle` must be False; give `prompt_dataset` a `shuffle_seed`. "
                f"Received: shuffle={shuffle}"
            )
        self._assert_compile_called("fit")
        verbose = 1 if verbose == "auto" else verbose
        callbacks = self._callback_list(callbacks, x, verbose, epochs, history=True)
        self.stop_training = False
        callbacks.on_train_begin()
        logs: dict[str, float] = {}
        for epoch in range(self._initial_epoch or initial_epoch, epochs):
            callbacks.on_epoch_begin(epoch)
            if self._pretraining is not None:
                # A run that resumes reads what an uninterrupted one reads.
                self._pretraining.restart()
            found = []
            for step, prompts in enumerate(x):
                callbacks.on_train_batch_begin(step)
                found.append(self._learn(prompts, f"batch {step} of epoch {epoch}"))
                callbacks.on_train_batch_end(step, found[-1])
                if self.stop_training:
                    break
            if not found:
                raise ValueError(
                    f"`x` must have batches of prompts. Received: none in epoch {epoch}"
                )
            logs = _mean(found)
            if validation_data is not None and (epoch + 1) % validation_freq == 0:
                held_out = self.evaluate(
                    validation_data, callbacks=callbacks, return_dict=True
                )
                logs |= {f"val_{name}": value for name, value in held_out.items()}
            callbacks.on_epoch_end(epoch, logs)
            if self.stop_training:
                break
        if epochs > 0:
            self.optimizer.finalize_variable_values(self.trainable_variables)
        callbacks.on_train_end(logs)
        return self.history

    def evaluate(
        self,
        x: Iterable[Mapping[str, Any]],
        *,
        verbose: Any = 0,
        callbacks: Any = None,
        return_dict: bool = False,
    ) -> Any:
        """Scores one completion of each prompt, the same ones for the same weights.

        Args:
            x: Batches of prompts.
            verbose: As of `keras.Model.evaluate`.
            callbacks: Keras callbacks.
            return_dict: Whether the result is a dictionary; otherwise it is a list of
                its values.

        Returns:
            Means over the batches: `reward`, `score`, `kl`, `entropy`, `length` and
            `share_without_end`.
        """
        self._assert_compile_called("evaluate")
        callbacks = self._callback_list(callbacks, x, 0, 1, history=False)
        callbacks.on_test_begin()
        found = []
        for step, prompts in enumerate(x):
            callbacks.on_test_batch_begin(step)
            rollout = self.rollout(
                prompts,
                seed=_seed(self.seed, _VALIDATION + step),
                group_size=1,
                label=f"validation batch {step}",
            )
            described = self._describe(rollout)
            del described["kl_weight"]
            found.append(described)
            callbacks.on_test_batch_end(step, described)
        logs = _mean(found)
        callbacks.on_test_end(logs)
        return logs if return_dict else list(logs.values())

    def rollout(
        self,
        prompts: Mapping[str, Any],
        *,
        seed: int | None = None,
        group_size: int | None = None,
        label: str = "the batch",
    ) -> Rollout:
        """Samples completions and scores them; nothing is learned.

        Args:
            prompts: `token_ids` and `padding_mask`, (B, P), with padding on either
                side.
            seed: Seed of the sampling. None = different completions in every call.
            group_size: G. Default: the trainer's.
            label: What the batch is called in a message.

        Raises:
            ValueError: If a reward or a log-probability is not finite.
        """
        count = self.group_size if group_size is None else group_size
        prompts = {
            name: np.repeat(ops.convert_to_numpy(x), count, axis=0)
            for name, x in prompts.items()
        }
        completions = self.sampling.sample(
            self.network, prompts, seed=seed, jit_compile=self._jit_compile
        )
        inputs = {
            "token_ids": completions.token_ids,
            "padding_mask": completions.padding_mask,
        }
        policy = self.predict_on_batch(inputs)
        with adapters_off(self.network):  # Their base may be the reference.
            reference = self._reference.predict_on_batch(inputs)
        check_finite_scores(policy, reference, completions.is_learned, label)
        return Rollout(
            completions,
            policy["log_probabilities"],
            policy["entropies"],
            policy.get("values"),
            reference["log_probabilities"],
            self.score(completions, label),
        )

    def score(self, completions: Completions, label: str = "the batch") -> np.ndarray:
        """The reward of each completion, less what a missing end costs, (N,).

        Args:
            completions: Completions, as of `CompletionSampling.sample`.
            label: What they are called in a message.

        Raises:
            ValueError: If a reward is not finite.
        """
        scores = self._score(completions, label)
        if self.missing_end_penalty is None:
            return scores
        lowered = penalize_missing_end(
            scores, completions.has_end, self.missing_end_penalty, how=self.missing_end
        )
        return ops.convert_to_numpy(lowered)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        """The loss of an update; see the class.

        Args:
            x: The rows of a rollout with their advantages.
            y: Nothing.
            y_pred: What `call` returned.
            sample_weight: Nothing.
            training: Whether the network is trained.

        Returns:
            A scalar.
        """
        x, y_pred = x or {}, y_pred or {}
        losses = [*self._update_losses(x, y_pred), *self.losses]
        if self._pretraining is not None:
            loss = self._pretraining.loss(self.network, x)
            losses.append(self.pretraining_weight * loss)
            self._report(pretraining_loss=loss)
        return ops.sum(ops.stack([ops.cast(x, "float32") for x in losses]))

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The loss and what `compute_loss` has measured."""
        return self.get_metrics_result()

    def _advantages(self, rollout: Rollout) -> dict[str, np.ndarray]:
        """The advantages, (N, C) or (N,), and what else the loss reads, by name."""
        raise NotImplementedError

    def _update_losses(self, rows, predicted) -> list:
        """The scalars whose sum is the loss, of rows and of what `call` returned."""
        raise NotImplementedError

    def _compiled_models(self) -> list:
        """The models that this one runs apart from itself."""
        return [self._reference]

    def _learn(self, prompts, label) -> dict[str, float]:
        """One batch of prompts: samples, scores, and updates."""
        iteration = int(self.iteration)
        rollout = self.rollout(prompts, seed=_seed(self.seed, iteration), label=label)
        completions = rollout.completions
        rows = {
            "token_ids": completions.token_ids,
            "padding_mask": completions.padding_mask,
            "is_learned": completions.is_learned,
            "old_log_probabilities": rollout.log_probabilities,
            **self._advantages(rollout),
        }
        count = len(rollout.scores)
        random = np.random.default_rng(_seed(self.seed, iteration))
        found = []
        for _ in range(self.num_passes):
            order = np.arange(count)
            if self.num_minibatches > 1:
                order = random.permutation(count)
            for part in np.array_split(order, min(self.num_minibatches, count)):
                batch = {name: values[part] for name, values in rows.items()}
                if self._pretraining is not None:
                    batch |= self._pretraining.rows()
                found.append(self.train_on_batch(batch, return_dict=True))
        described = self._describe(rollout)
        self._kl.weight = float(self.kl_weight)
        self.kl_weight.assign(self._kl.update(described["kl"], count))
        self.iteration.assign(iteration + 1)
        return {**_mean(found), **described}

    def _describe(self, rollout) -> dict[str, float]:
        """The logs of a rollout: means over its completions or tokens."""
        learned = rollout.completions.is_learned
        lengths = rollout.completions.is_text.sum(axis=1)
        ratios = rollout.log_probabilities - rollout.reference
        kl = np.where(learned, ratios, 0.0).sum(axis=1)
        weight = float(self.kl_weight)
        return {
            "reward": float((rollout.scores - weight * kl).mean()),
            "score": float(rollout.scores.mean()),
            "kl": float(kl.mean()),
            "kl_weight": weight,
            "entropy": float(rollout.entropies[learned].mean()),
            "length": float(lengths.mean()),
            "share_without_end": float(1 - rollout.completions.has_end.mean()),
        }

    def _report(self, **values) -> None:
        """Adds means to the logs of an update."""
        for name, value in values.items():
            self._means[name].update_state(value)

    def _callback_list(self, callbacks, x, verbose, epochs, *, history):
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        steps = len(x) if isinstance(x, Sequence) else -1
        if hasattr(x, "cardinality"):
            steps = int(x.cardinality())  # Negative if it is not known.
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=history,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=steps if steps >= 0 else None,
            model=self,
        )


def _seed(seed: int, number: int) -> int:
    """A seed for one use of many."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _mean(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of logs with the same names."""
    return {name: float(np.mean([x[name] for x in logs])) for name in logs[0]}
