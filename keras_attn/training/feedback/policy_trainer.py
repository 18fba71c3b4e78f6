"""The base of PPO, RLOO and GRPO: `fit` samples, scores and learns by batches.

    sampling.py     completions, by the compiled loop of `generate`
    rewards.py      their scores
    policies.py     log-probabilities by the policy and the reference, and values
    ppo.py, group_trainers.py   targets and losses

Legend: B prompts, G completions of each, C sampled tokens, T tokens of prompt and
completion.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_attn.checks.arguments import check_choice, check_positive
from keras_attn.kernels.runtime import has_distribution_strategy
from keras_attn.layers.adaptation.switching import adapters_off
from keras_attn.training.feedback.completions import penalize_missing_end
from keras_attn.training.feedback.kl_weights import AdaptiveKL, FixedKL
from keras_attn.training.feedback.policies import TokenScorer, check_reference
from keras_attn.training.feedback.rewards import Reward, reward_function
from keras_attn.training.feedback.sampling import Completions, CompletionSampling

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
    """Trains a language model on rewards; `PPO`, `RLOO` and `GRPO` describe it."""

    def __init__(
        self,
        network,
        reward: Reward,
        sampling: CompletionSampling,
        *,
        reference: Reference = None,
        tokenizer: Any = None,
        kl_weight: KLWeight = 0.05,
        group_size: int = 1,
        missing_end_penalty: float | None = None,
        missing_end: Literal["replace", "subtract"] = "replace",
        num_passes: int = 1,
        num_minibatches: int = 1,
        pretraining: Iterable | None = None,
        seed: int = 0,
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
        self._score: Callable = reward_function(
            reward, tokenizer, sampling.pad_token_id
        )
        self._reference = self._reference_scorer(reference)
        self._reads_base = reference == "adapters_off"
        self._pretraining = pretraining
        self._pretraining_batches: Any = None
        if not isinstance(kl_weight, FixedKL | AdaptiveKL):
            kl_weight = FixedKL(kl_weight)
        self._kl = kl_weight
        # As weights, so that a backup has them.
        self.kl_weight = self.add_weight(
            shape=(),
            initializer=keras.initializers.Constant(kl_weight.weight),
            dtype="float32",
            trainable=False,
            name="kl_weight",
        )
        self.iteration = self.add_weight(
            shape=(),
            initializer="zeros",
            dtype="int32",
            trainable=False,
            name="iteration",
        )
        self._jit_compile: Any = "auto"
        self._means: dict[str, Any] = {}

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
        for model in self._compiled_models():
            model.compile(
                **{
                    k: v
                    for k, v in kwargs.items()
                    if k in ("jit_compile", "run_eagerly")
                }
            )

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
            # A run that resumes reads what an uninterrupted one reads.
            self._pretraining_batches = _endless(self._pretraining)
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
        if not isinstance(callbacks, keras.callbacks.CallbackList):
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
            name: np.repeat(keras.ops.convert_to_numpy(x), count, axis=0)
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
        if self._reads_base:
            with adapters_off(self.network):
                reference = self._reference.predict_on_batch(inputs)
        else:
            reference = self._reference.predict_on_batch(inputs)
        learned = completions.is_learned
        for who, what, found in (
            ("policy", "log-probabilities", policy["log_probabilities"]),
            ("reference", "log-probabilities", reference["log_probabilities"]),
            ("policy", "values", policy.get("values")),
        ):
            if found is None:
                continue
            finite = np.isfinite(found) | ~learned
            if not finite.all():
                row = int(np.argmin(finite.all(axis=1)))
                raise ValueError(
                    f"The {what} of the {who} must be finite; the batch was not "
                    "learned, and the learning rate may be too high. Received: NaN or "
                    f"infinity in row {row} of {label}"
                )
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
        return keras.ops.convert_to_numpy(lowered)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        """The loss and what `compute_loss` has measured."""
        return self.get_metrics_result()

    def _targets(self, rollout: Rollout) -> dict[str, np.ndarray]:
        """The targets of the loss of each row, by name, (N, …)."""
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
            **self._targets(rollout),
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
                    batch |= self._next_pretraining()
                found.append(self.train_on_batch(batch, return_dict=True))
        described = self._describe(rollout)
        self.kl_weight.assign(self._adapted(described["kl"], count))
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

    def _adapted(self, kl: float, episodes: int) -> float:
        """The weight of the KL for the next batch."""
        self._kl.weight = float(self.kl_weight)
        return self._kl.update(kl, episodes)

    def _report(self, **values) -> None:
        """Adds means to the logs of an update."""
        for name, value in values.items():
            self._means[name].update_state(value)

    def _next_pretraining(self) -> dict[str, np.ndarray]:
        """A batch of `pretraining`, among the inputs of an update."""
        inputs, labels, weights = next(self._pretraining_batches)
        named = {f"pretraining/{name}": value for name, value in inputs.items()}
        return {**named, "pretraining_labels": labels, "pretraining_weights": weights}

    def _reference_scorer(self, reference) -> TokenScorer:
        network = self.network
        check_reference(network, reference)
        if reference == "adapters_off":
            reference = network
        elif reference is None:
            reference = keras.models.clone_model(network)
            reference.set_weights(network.get_weights())
        elif not isinstance(reference, keras.Model) or reference is network:
            raise TypeError(
                '`reference` must be another Keras model, "adapters_off" or None. '
                f"Received: reference={reference!r}"
            )
        if reference is not network:
            # A frozen model that was loaded has sublayers that are not, and assigning
            # the value that an attribute has does nothing.
            reference.trainable = True
            reference.trainable = False
        return TokenScorer(
            reference, self.sampling.max_new_tokens, self.sampling.temperature
        )

    def _callback_list(self, callbacks, x, verbose, epochs, *, history):
        if isinstance(callbacks, keras.callbacks.CallbackList):
            return callbacks
        steps = None
        if hasattr(x, "cardinality"):
            steps = int(x.cardinality())
        elif isinstance(x, Sequence):
            steps = len(x)
        return keras.callbacks.CallbackList(
            callbacks,
            add_history=history,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=steps if steps is None or steps >= 0 else None,
            model=self,
        )


def _seed(seed: int, number: int) -> int:
    """A seed for one use of many."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _mean(logs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of logs with the same names."""
    return {name: float(np.mean([x[name] for x in logs])) for name in logs[0]}


def _endless(dataset):
    """The batches of a dataset as arrays, again and again."""
    if dataset is None:
        return None
    return (
        keras.tree.map_structure(keras.ops.convert_to_numpy, batch)
        for batch in itertools.chain.from_iterable(itertools.repeat(dataset))
    )
