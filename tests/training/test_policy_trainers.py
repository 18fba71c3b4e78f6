"""PPO, RLOO and GRPO: rollouts, losses, runs that resume.

`test_policy_optima.py` tests what they learn.
"""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from backend import skip_module_without_tensorflow
from event_files import events_of
from feedback_cases import untyped
from policy_cases import (
    END,
    Numbers,
    probabilities,
    tiny_policy,
    weights_of,
)

from keras_attn.data import CharacterTokenizer, completion_dataset, prompt_dataset
from keras_attn.decoding import Sample, generate
from keras_attn.losses import ppo_policy_loss, ppo_value_loss
from keras_attn.models import as_reward_model, build_gpt_token_classifier
from keras_attn.training import (
    GRPO,
    PPO,
    RLOO,
    AdaptiveKL,
    BackupAndResume,
    CompletionSampling,
    SampleTexts,
    adapters_off,
    enable_lora,
    generalized_advantages,
    token_rewards,
    whiten,
)

pytestmark = [
    pytest.mark.compiled,
    # `tf.data` stays a graph.
    pytest.mark.filterwarnings("ignore:Even though the `tf.config.experimental_run_f"),
]

skip_module_without_tensorflow("its data is a tf.data pipeline")

PROMPTS = [[1, 3], [1], [1, 4, 5, 6], [1, 6]]
SAMPLING = CompletionSampling(5, END, temperature=0.7)


def count_fives(prompts, completions):
    """A reward: how often a completion has token 5."""
    return [text.split().count("5") for text in completions]


@pytest.fixture(scope="module")
def policy():
    """One policy for all tests, so that its loop is compiled once; with weights."""
    network = tiny_policy()
    return network, network.get_weights()


@pytest.fixture
def eagerly():
    """Nothing is traced: a test takes few steps."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def network(policy):
    """The policy with its first weights."""
    network, weights = policy
    network.trainable = True
    network.set_weights(weights)
    return network


def eager(trainer, rate=0.02):
    """Compiled so that a step takes long, but nothing is traced before."""
    trainer.compile(keras.optimizers.Adam(rate), run_eagerly=True, jit_compile=False)
    return trainer


def batches(**options):
    """The prompts."""
    return prompt_dataset(PROMPTS, **{"batch_size": 2, **options})


def first(dataset) -> Any:
    """Its first batch, as arrays."""
    return next(iter(dataset.as_numpy_iterator()))


def test_a_rollout_has_the_probabilities_of_the_training_forward(network):
    """By another policy than the reference, padding left and right, row by row."""
    trainer = eager(GRPO(network, count_fives, SAMPLING, tokenizer=Numbers()))
    before = network.get_weights()
    network.set_weights([1.3 * w for w in before])
    left = first(batches(batch_size=4))
    right = {name: np.zeros_like(x) for name, x in left.items()}
    for row, prompt in enumerate(PROMPTS):
        right["token_ids"][row, : len(prompt)] = prompt
        right["padding_mask"][row, : len(prompt)] = 1
    found = trainer.rollout(left, seed=3, group_size=2)
    again = trainer.rollout(right, seed=3, group_size=2)
    other = trainer.rollout(left, seed=4, group_size=2)
    for one, two in zip(found.completions, again.completions, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(found.completions.token_ids, other.completions.token_ids)
    np.testing.assert_array_equal(found.log_probabilities, again.log_probabilities)
    lengths, ends = set(), set()
    for row in range(8):
        prompt = PROMPTS[row // 2]
        is_text = found.completions.is_text[row]
        completion = found.completions.token_ids[row, 4:][is_text].tolist()
        lengths.add(len(completion))
        ends.add(completion[-1] == END)
        assert found.completions.has_end[row] == (completion[-1] == END)
        assert END not in completion[:-1] and is_text.tolist() == sorted(is_text)[::-1]
        for weights, values in (
            ([1.3 * w for w in before], found.log_probabilities),
            (before, found.reference),
        ):
            network.set_weights(weights)
            wanted = np.log(probabilities(network, prompt + completion, 0.7))
            wanted = wanted[np.arange(len(completion)) + len(prompt) - 1, completion]
            np.testing.assert_allclose(
                values[row, : len(completion)], wanted, atol=1e-4
            )
        assert found.scores[row] == completion.count(5)
    assert len(lengths) > 1 and ends == {True, False}
    # The loop's own sum, of a temperature that leaves logits as they are.
    network.set_weights(before)
    sampling = CompletionSampling(5, END)
    plain = eager(RLOO(network, count_fives, sampling, tokenizer=Numbers()))
    found = plain.rollout(left, seed=1, group_size=1)
    scores = generate(
        network, left, 5, strategy=Sample(seed=1), end_token_id=END
    ).scores
    sums = np.where(found.completions.is_learned, found.log_probabilities, 0).sum(1)
    np.testing.assert_allclose(sums, scores, atol=1e-4)
    np.testing.assert_array_equal(found.log_probabilities, found.reference)


def test_all_sampled_tokens_are_learned_and_the_text_is_scored(eagerly, network):
    """As OpenAI's experiments: the end counts from the third token on."""
    sampling = CompletionSampling(5, [5, END], min_length=2, learn_after_end=True)
    seen = []

    def reward(prompts, completions):
        seen.extend(zip(prompts, completions, strict=True))
        return [1.0] * len(prompts)

    trainer = eager(
        PPO(
            network,
            reward,
            sampling,
            tokenizer=Numbers(),
            missing_end_penalty=3.0,
            missing_end="subtract",
        )
    )
    prompts = first(batches(batch_size=4))
    found = trainer.rollout({x: np.repeat(y, 4, 0) for x, y in prompts.items()}, seed=0)
    completions = found.completions
    assert completions.is_learned.all()
    assert completions.padding_mask[:, 4:].all()
    for row, (prompt, text) in enumerate(seen):
        assert prompt == " ".join(map(str, PROMPTS[row // 4]))
        sampled = completions.token_ids[row, 4:].tolist()
        stops = [i for i in range(2, 5) if sampled[i] in (5, END)]
        length = stops[0] + 1 if stops else 5
        assert text == " ".join(map(str, sampled[:length]))
        assert found.scores[row] == (1.0 if stops else -2.0)
        assert completions.has_end[row] == bool(stops)
    assert 0 < completions.has_end.sum() < 16
    # A reward model reads prompt and text without a gap.
    token_ids, mask = completions.right_padded(9)
    for row, (prompt, text) in enumerate(seen):
        read = [int(x) for x in f"{prompt} {text}".split()]
        assert token_ids[row].tolist() == read + [9] * (9 - len(read))
        assert mask[row].tolist() == [1] * len(read) + [0] * (9 - len(read))


def test_a_reward_model_reads_prompts_and_texts(eagerly, network):
    """As it reads each row alone; its weights are not those of the trainer."""
    model = as_reward_model(tiny_policy(seed=3))
    trainer = eager(PPO(network, model, SAMPLING))
    rollout = trainer.rollout(first(batches(batch_size=4)), seed=1)
    completions = rollout.completions
    for row, prompt in enumerate(PROMPTS):
        read = completions.token_ids[row, 4:][completions.is_text[row]].tolist()
        read = prompt + read
        alone = {
            "token_ids": np.array([read]),
            "padding_mask": np.ones((1, len(read)), "int32"),
        }
        wanted = float(model(alone, training=False)[0, 0])
        assert rollout.scores[row] == pytest.approx(wanted, abs=1e-5)
    mine = {id(x) for x in trainer.variables}
    assert not mine & {id(x) for x in model.variables}


# --- Losses, values, pretraining ---------------------------------------------------


@pytest.mark.parametrize("separate", [False, True], ids=["head", "value model"])
def test_the_loss_of_ppo(eagerly, network, separate):
    """Of a policy that has moved since it sampled, from the parts it is made of."""
    pairs = completion_dataset(
        [[1, 4], [1]], [[3], [5, 6]], max_length=6, batch_size=2, end_token_id=END
    )
    options: dict[str, Any] = {}
    if separate:
        other = tiny_policy(seed=2)
        options["value_model"] = build_gpt_token_classifier(other, num_classes=1)
    trainer = eager(
        PPO(
            network,
            count_fives,
            SAMPLING,
            tokenizer=Numbers(),
            kl_weight=0.3,
            discount=0.9,
            gae_lambda=0.8,
            whiten_rewards=True,
            num_passes=1,
            pretraining=pairs,
            pretraining_weight=0.7,
            **options,
        ),
        rate=0.0,
    )
    assert len(trainer.trainable_variables) == len(network.trainable_variables) + (
        len(options["value_model"].trainable_variables) if separate else 2
    )
    prompts = first(batches(batch_size=4))
    network.set_weights([1.2 * w for w in network.get_weights()])
    rollout = trainer.rollout(prompts, seed=5)
    mask = rollout.completions.is_learned
    values = np.zeros_like(rollout.log_probabilities)
    if separate:
        found = keras.ops.convert_to_numpy(
            options["value_model"](
                {
                    "token_ids": rollout.completions.token_ids,
                    "padding_mask": rollout.completions.padding_mask,
                }
            )
        )
        values = found[:, 3:8, 0]  # At the positions before the five tokens.
        assert np.abs(values).max() > 0.01
    np.testing.assert_allclose(np.array(rollout.values), values, atol=1e-6)
    kl = rollout.log_probabilities - rollout.reference
    rewards = whiten(
        token_rewards(rollout.scores, kl, mask, 0.3), mask, shift_mean=False
    )
    advantages, returns = generalized_advantages(
        rewards, values, mask, discount=0.9, gae_lambda=0.8
    )
    trainer.rollout = lambda *args, **kwargs: rollout
    network.set_weights([1.01 * w for w in network.get_weights()])
    inputs = {
        "token_ids": rollout.completions.token_ids,
        "padding_mask": rollout.completions.padding_mask,
    }
    now = trainer.predict_on_batch(inputs)
    wanted = ppo_policy_loss(
        now["log_probabilities"],
        rollout.log_probabilities,
        whiten(advantages, mask),
        mask,
    )
    of_values = ppo_value_loss(now["values"], values, returns, mask)
    (read, labels, weights), *_ = pairs.as_numpy_iterator()
    logits = keras.ops.convert_to_numpy(network(read, training=False))
    logits = logits.astype("float64")
    cross_entropy = np.mean(
        [
            np.log(np.exp(logits[b, t]).sum()) - logits[b, t, labels[b, t]]
            for b, t in np.argwhere(weights)
        ]
    )
    history = trainer.fit([prompts], verbose=0).history
    logs = {name: values[0] for name, values in history.items()}
    assert logs["policy_loss"] == pytest.approx(float(wanted.loss), rel=1e-3)
    assert logs["ratio"] == pytest.approx(float(wanted.ratio), rel=1e-4) != 1
    assert logs["value_loss"] == pytest.approx(float(of_values.loss), rel=1e-3)
    assert logs["pretraining_loss"] == pytest.approx(cross_entropy, rel=1e-4)
    total = float(wanted.loss) + 0.1 * float(of_values.loss) + 0.7 * cross_entropy
    assert logs["loss"] == pytest.approx(total, rel=1e-3)


# --- Runs --------------------------------------------------------------------------


def test_a_run_that_a_bad_reward_stopped_resumes_exactly(network, tmp_path):
    """Nothing of the bad batch is learned, and the rest is as if nothing happened."""
    calls = itertools.count()
    bad_call = None

    def reward(prompts, completions):
        scores: list[float] = count_fives(prompts, completions)
        if next(calls) == bad_call:
            scores[1] = float("nan")
        return scores

    pairs = completion_dataset(
        [[1, 4], [1], [1, 3]],
        [[3], [5, 6], [4]],
        max_length=6,
        batch_size=1,
        end_token_id=END,
    )
    trainer = PPO(
        network,
        reward,
        SAMPLING,
        tokenizer=Numbers(),
        kl_weight=AdaptiveKL(0.1, target=0.5, horizon=50),
        num_passes=1,
        num_minibatches=2,
        pretraining=pairs,
    )
    trainer.compile(keras.optimizers.Adam(0.02), jit_compile=False)
    trainer.optimizer.build(trainer.trainable_variables)
    variables = [*trainer.variables, *trainer.optimizer.variables]
    start = [keras.ops.convert_to_numpy(x) for x in variables]

    def run(folder):
        backup = BackupAndResume(folder, delete_checkpoint=False)
        data = batches(shuffle_seed=0, epoch=backup.epoch)
        return trainer.fit(
            data, epochs=2, validation_data=batches(), verbose=0, callbacks=[backup]
        ).history

    whole = run(tmp_path / "whole")
    assert len(set(whole["kl_weight"])) == len(set(whole["val_reward"])) == 2
    end = weights_of(network)
    for variable, value in zip(variables, start, strict=True):
        variable.assign(value)
    # An epoch has two batches of training and two of validation; this is the second
    # batch of epoch 1.
    calls, bad_call = itertools.count(), 5
    seen: list[list[np.ndarray]] = []
    learn = trainer._learn
    trainer._learn = lambda *args: (seen.append(weights_of(network)), learn(*args))[1]
    with pytest.raises(
        ValueError,
        match="`reward` must return finite numbers; the batch was not learned. "
        "Received: nan for row 1 of batch 1 of epoch 1: '1",
    ):
        run(tmp_path / "parts")
    trainer._learn = learn
    assert len(seen) == 4
    for now, then in zip(weights_of(network), seen[-1], strict=True):
        np.testing.assert_array_equal(now, then)
    # As a new process: nothing is left but the backup and the arguments.
    for variable in variables:
        variable.assign(keras.ops.ones_like(variable))
    trainer._kl.weight = 77.0
    bad_call = None
    assert run(tmp_path / "parts") == whole
    for now, then in zip(weights_of(network), end, strict=True):
        np.testing.assert_array_equal(now, then)


def test_adapters_learn_and_their_base_is_the_reference(eagerly, tmp_path):
    network = tiny_policy()
    enable_lora(network, rank=2, targets=("query", "expand"), seed=0)
    with pytest.raises(ValueError, match='"adapters_off" for its base, or a model'):
        RLOO(network, count_fives, SAMPLING, tokenizer=Numbers())
    tokenizer = CharacterTokenizer.train(["abc"])
    assert tokenizer.vocabulary_size == 7 and tokenizer.end_token_id == END

    def reward(prompts, completions):
        assert not any("<" in text for text in [*prompts, *completions])
        return [text.count("c") for text in completions]

    trainer = eager(
        RLOO(network, reward, SAMPLING, reference="adapters_off", tokenizer=tokenizer),
        rate=0.1,
    )
    fixed = [x for x in network.variables if not x.trainable]
    before = [keras.ops.convert_to_numpy(x) for x in fixed]
    shown = first(batches(batch_size=4))
    samples = SampleTexts(tmp_path, shown, every=2, max_examples=3)
    data = batches(batch_size=4)
    history = trainer.fit(data, epochs=3, verbose=0, callbacks=[samples]).history
    assert history["kl"][0] == pytest.approx(0, abs=1e-6)
    assert abs(history["kl"][-1]) > 1e-3
    for variable, value in zip(fixed, before, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), value)
    # Sample texts: before, and after two epochs.
    (events,) = [x for tag, x in events_of(tmp_path).items() if "samples" in tag]
    assert [step for step, _ in events] == [0, 2]
    tables = [np.char.decode(table.astype("S"), "utf-8") for _, table in events]
    assert tables[0][0].tolist() == ["prompt", "reference", "score", "policy", "score"]
    np.testing.assert_array_equal(tables[0][1:, 1:3], tables[0][1:, 3:])
    with adapters_off(network):
        base = SAMPLING.sample(network, shown, seed=0).texts(tokenizer)
    assert tables[1][1:, 0].tolist() == base[0][:3]
    assert tables[1][1:, 1].tolist() == base[1][:3]
    texts = tables[1][1:, 3].tolist()
    assert texts != base[1][:3]
    assert tables[1][1:, 4].tolist() == [f"{x.count('c'):.3f}" for x in texts]


def test_wrong_arguments_are_named(eagerly, network):
    wrong = untyped(PPO)
    with pytest.raises(TypeError, match="`network` must be a Keras model that `gen"):
        wrong("gpt2_small", count_fives, SAMPLING)
    with pytest.raises(TypeError, match="`sampling` must be a `CompletionSampling`"):
        wrong(network, count_fives, 24)
    with pytest.raises(TypeError, match="`reward` must be a Keras model, or a func"):
        wrong(network, 1.0, SAMPLING)
    with pytest.raises(TypeError, match="`tokenizer` must be given, with a method"):
        wrong(network, count_fives, SAMPLING)
    given = (network, count_fives, SAMPLING)
    numbers: dict[str, Any] = {"tokenizer": Numbers()}
    with pytest.raises(TypeError, match="`reference` must be a Keras model"):
        wrong(*given, reference=1.0, **numbers)
    with pytest.raises(ValueError, match="`reference` must be a model of its own"):
        PPO(*given, reference=network, **numbers)
    with pytest.raises(
        ValueError, match='`reference` may be "adapters_off" only after'
    ):
        PPO(*given, reference="adapters_off", **numbers)
    with pytest.raises(TypeError, match="`value_model` must be a Keras model"):
        wrong(*given, value_model="gpt2", **numbers)
    for name, value, text in (
        ("clip_range", -0.2, "must be a number above 0"),
        ("value_clip_range", (0.1,), "must be a number above 0"),
        ("value_weight", -1, "must be .*at least 0"),
        ("gae_lambda", 1.5, "must be .*0.* 1"),
        ("missing_end", "remove", "must be one of"),
        ("missing_end_penalty", -1, "must be a number above 0"),
        ("num_passes", 0, "must be a positive integer"),
        ("whiten_rewards", 1, "must be True or False"),
    ):
        name = "penalty" if name == "missing_end_penalty" else name
        key = "missing_end_penalty" if name == "penalty" else name
        with pytest.raises((ValueError, TypeError), match=f"`{name}` {text}"):
            wrong(*given, **numbers, **{key: value})
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with (
        strategy.scope(),
        pytest.raises(ValueError, match="outside a `tf.distribute` .* RLOO in"),
    ):
        RLOO(*given, **numbers)
    for cls in (RLOO, GRPO):
        with pytest.raises(ValueError, match="`group_size` must be at least 2"):
            cls(*given, group_size=1, **numbers)
    with pytest.raises(ValueError, match="`kl_weight` must be"):
        GRPO(*given, kl_weight=-0.1, **numbers)
    with pytest.raises(ValueError, match="`min_length` must be less than `max_new_t"):
        CompletionSampling(5, END, min_length=5)
    with pytest.raises(ValueError, match="`temperature` must be a number above 0"):
        CompletionSampling(5, END, temperature=0)

    def count(prompts, completions):
        return [1.0] * (len(prompts) - 1)

    trainer = eager(PPO(network, count, SAMPLING, **numbers))
    with pytest.raises(ValueError, match=r"one number for each.*\(1,\) for 2 compl"):
        trainer.fit(batches(), verbose=0)
    with pytest.raises(ValueError, match="`shuffle` must be False; give `prompt_dat"):
        trainer.fit(batches(), shuffle=True)
    with pytest.raises(ValueError, match="`x` must have batches of prompts"):
        trainer.fit([], verbose=0)
    long = prompt_dataset([[1] * 9], batch_size=1)
    with pytest.raises(ValueError, match="`max_new_tokens` exceeds the model's 13 po"):
        trainer.fit(long, verbose=0)
    network.set_weights([np.full_like(w, np.nan) for w in network.get_weights()])
    with pytest.raises(
        ValueError, match="of the policy must be finite.*row 0 of batch 0 of epoch 0"
    ):
        trainer.fit(batches(), verbose=0)
    with pytest.raises(TypeError, match="`SampleTexts` needs a `PPO`"):
        model = keras.Sequential([keras.layers.Dense(1)])
        texts = SampleTexts("logs", {"token_ids": np.ones((1, 1))})
        texts.set_model(model)
        texts.on_train_begin()
