"""Listen, attend and walk: parity, and decoding in an environment in every format."""

import functools
from typing import Any

import keras
import numpy as np
import pytest
from lstm_reference import numpy_step, torch_step
from model_cases import create, inputs_for, numpy, outputs_of, tiny
from model_family import C, M, U

from keras_attn.decoding import Beam, Greedy, Sample, generate, walk, walk_candidates

CASE = "listen_attend_walk"
IS_TENSORFLOW = keras.backend.backend() == "tensorflow"


def states_of(step, weights, inputs):
    """The states of an LSTM over inputs (n, …), (n, U)."""
    h = c = np.zeros(U)
    states = []
    for x in inputs:
        h, c = step(weights, x, h, c)
        states.append(h)
    return np.array(states)


def follow(step, weights, words, worlds):
    """Logits and alignments of one row, equation by equation."""
    (table, *lstms, Ew, v, Wq, Wk, W, R, b, Ls, Lz, L0) = weights
    x = table[words]
    forward = states_of(step, lstms[:3], x)
    backward = states_of(step, lstms[3:], x[::-1])[::-1]
    memory = np.concatenate([x, forward, backward], -1)
    s = c = np.zeros(U)
    logits, alignments = [], []
    for y in worlds:
        beta = np.tanh(s @ Wq + memory @ Wk) @ v[:, 0]
        alpha = np.exp(beta - beta.max())
        alpha /= alpha.sum()
        z = alpha @ memory
        s, c = step((W, R, b), np.concatenate([y @ Ew, z]), s, c)
        logits.append((y @ Ew + s @ Ls + z @ Lz) @ L0)
        alignments.append(alpha)
    return np.array(logits), np.array(alignments)


def weights_of(model):
    """Weights of the layers, in the order of the equations."""
    names = ("word_embedding", "encoder", "world_embedding", "decoder")
    names += ("state_readout", "context_readout", "logits")
    found = {name: model.get_layer(name).weights for name in names}
    found["decoder"] = sorted(
        found["decoder"], key=lambda weight: "attention" not in weight.path
    )
    return [np.asarray(numpy(w), "float64") for name in names for w in found[name]]


@pytest.mark.parametrize(
    "step", [numpy_step, pytest.param(torch_step, marks=pytest.mark.parity)]
)
def test_the_model_follows_mei_et_al(step):
    model = tiny(f"{CASE}-scores")
    inputs = inputs_for(model)
    outputs = outputs_of(model, inputs)
    for row, length in enumerate(inputs["padding_mask"].sum(1)):
        words = inputs["token_ids"][row, :length]
        worlds = inputs["world_state"][row].astype("float64")
        logits, alignments = follow(step, weights_of(model), words, worlds)
        np.testing.assert_allclose(outputs["logits"][row], logits, atol=1e-5)
        scores = outputs["attention_scores"][row, 0]
        np.testing.assert_allclose(scores[:, :length], alignments, atol=1e-5)
        assert not scores[:, length:].any()


class Ring:
    """An environment in which an action is a step forward, and half are impossible.

    A state is the place and whether the walk has stopped; what is seen depends on the
    place and on the row, which is part of the state.
    """

    stop_action = C - 1

    def __init__(self, rows=2, open_actions=C):
        self.rows, self.open_actions = rows, open_actions
        self.moves: list[Any] = []

    def start(self):
        return [(row, 0, False) for row in range(self.rows)]

    def observe(self, walks):
        worlds, possible = [], []
        for row, place, is_done in walks:
            rng = np.random.default_rng([row, place])
            worlds.append(rng.normal(size=M))
            allowed = rng.random(C) < 0.5
            allowed[self.open_actions :] = False
            allowed &= not is_done
            allowed[self.stop_action] = True
            possible.append(allowed)
        return np.array(worlds, "float32"), np.array(possible)

    def move(self, walks, actions):
        possible = self.observe(walks)[1]
        assert possible[np.arange(len(walks)), actions].all()
        self.moves.append(np.array(actions))
        return [
            (row, place + (0 if action == self.stop_action else 1 + int(action)), done)
            if action != self.stop_action
            else (row, place, True)
            for (row, place, done), action in zip(walks, actions, strict=True)
        ]


class Narrow(Ring):
    """A ring with fewer actions than the model."""

    def observe(self, walks):
        worlds, possible = super().observe(walks)
        return worlds, possible[:, -2:]


@functools.cache
def instruction():
    inputs = inputs_for(tiny(CASE))
    return {name: inputs[name] for name in ("token_ids", "padding_mask")}


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def replayed(walkers, ring, row, actions):
    """Log-probability of actions in one row, from the whole path, averaged."""
    states, worlds, possible = [(row, 0, False)], [], []
    for action in actions:
        seen, allowed = ring.observe(states)
        worlds.append(seen[0])
        possible.append(allowed[0])
        states = ring.move(states, [action])
    inputs = {name: value[[row]] for name, value in instruction().items()}
    inputs["world_state"] = np.stack(worlds)[None]
    probabilities = np.mean(
        [np.exp(log_softmax(outputs_of(m, inputs)["logits"][0])) for m in walkers], 0
    )
    probabilities = np.where(possible, probabilities, 0)
    probabilities /= probabilities.sum(-1, keepdims=True)
    log_probs = np.log(np.where(possible, probabilities, 1))
    return np.where(possible, log_probs, -np.inf), states[0]


def until_stop(actions, stop):
    """The actions up to the one that stops."""
    ends = np.flatnonzero(actions == stop)
    return actions[: ends[0] + 1] if len(ends) else actions


@functools.cache
def different():
    """An ensemble of two models with different weights."""
    second = create(CASE)
    second.set_weights([0.7 * w[::-1] for w in tiny(CASE).get_weights()])
    return [tiny(CASE), second]


@pytest.mark.each_value
@pytest.mark.parametrize("ensemble", [False, True])
@pytest.mark.parametrize("strategy", [Greedy(), Sample(seed=5), Beam(3, 0.0)])
def test_scores_are_those_of_the_whole_path(strategy, ensemble):
    chosen = different() if ensemble else [tiny(CASE)]
    ring = Ring()
    walked = walk(
        chosen if ensemble else chosen[0], instruction(), ring, 6, strategy=strategy
    )
    assert walked.actions.shape == (2, 6) and walked.world_states.shape == (2, 6, M)
    for row in range(2):
        actions = until_stop(walked.actions[row], ring.stop_action)
        assert (walked.actions[row, len(actions) :] == ring.stop_action).all()
        log_probs, state = replayed(chosen, ring, row, actions)
        taken = log_probs[np.arange(len(actions)), actions]
        np.testing.assert_allclose(walked.scores[row], taken.sum(), atol=1e-4)
        assert walked.walks[row] == state
        if isinstance(strategy, Greedy):
            np.testing.assert_array_equal(actions, log_probs.argmax(-1))
    again = walk(chosen, instruction(), Ring(), 6, strategy=strategy)
    np.testing.assert_array_equal(again.actions, walked.actions)


def test_a_beam_of_all_paths_finds_the_best():
    model, ring = tiny(CASE), Ring(rows=2, open_actions=4)
    walked = walk(model, instruction(), ring, 3, strategy=Beam(40, 0.0))
    # At every step some of the 40 beams have no action left.
    assert len(ring.moves[0]) == 80
    best, paths = -np.inf, [((), 0.0)]
    for step in range(3):
        longer = []
        for path, score in paths:
            # The path with the stop, for the probabilities of its last step.
            log_probs, _ = replayed([model], ring, 0, [*path, ring.stop_action])
            for action in np.flatnonzero(np.isfinite(log_probs[-1])):
                found = score + log_probs[-1][action]
                if step == 2 or action == ring.stop_action:
                    best = max(best, found)
                else:
                    longer.append(((*path, int(action)), found))
        paths = longer
    assert len(paths) == 0
    np.testing.assert_allclose(walked.scores[0], best, atol=1e-4)


def test_candidates_are_all_that_a_beam_found():
    model, ring = tiny(CASE), Ring(rows=2, open_actions=4)
    found = walk_candidates(model, instruction(), ring, 3, strategy=Beam(40, 0.0))
    walked = walk(model, instruction(), ring, 3, strategy=Beam(40, 0.0))
    for row, candidates in enumerate(found):
        scores = [each.score for each in candidates]
        assert scores == sorted(scores, reverse=True)
        assert candidates[0].score == walked.scores[row]
        assert candidates[0].walk == walked.walks[row]
        # Enough beams for all walks of up to three actions, each once.
        np.testing.assert_allclose(np.exp(scores).sum(), 1, atol=1e-4)
    few = walk_candidates(model, instruction(), ring, 3, strategy=Beam(3, 0.6))
    assert [len(candidates) for candidates in few] == [3, 3]
    best = walk(model, instruction(), ring, 3, strategy=Beam(3, 0.6))
    assert [each[0].walk for each in few] == best.walks
    greedy: Any = Greedy()
    with pytest.raises(TypeError, match="`strategy` must be a `Beam`.*Greedy"):
        walk_candidates(model, instruction(), ring, 3, strategy=greedy)
    with pytest.raises(ValueError, match="`max_steps` must be a positive integer"):
        walk_candidates(model, instruction(), ring, 0, strategy=Beam(2))


def test_bad_walks_are_refused():
    model, inputs = tiny(CASE), instruction()
    with pytest.raises(ValueError, match="`max_steps` must be a positive integer"):
        walk(model, inputs, Ring(), 0)
    with pytest.raises(TypeError, match="`strategy` must be a strategy"):
        walk(model, inputs, Ring(), 3, strategy="greedy")
    with pytest.raises(ValueError, match=r"`model` must be at least one.*model=\[\]"):
        walk([], inputs, Ring(), 3)
    with pytest.raises(ValueError, match="one row for each of the 3 states of .*rows="):
        walk(model, inputs, Ring(rows=3), 3)
    with pytest.raises(TypeError, match="`inputs` must be a dictionary of arrays"):
        walk(model, inputs["token_ids"], Ring(), 3)
    with pytest.raises(ValueError, match=r"`inputs` must be named.*unknown=\['words'"):
        walk(model, {**inputs, "words": inputs["token_ids"]}, Ring(), 3)
    with pytest.raises(ValueError, match=rf"logits of the 2 .*logits of \[{C}\] acti"):
        walk(model, inputs, Narrow(), 3)
    broken = keras.models.clone_model(model)
    broken.set_weights([weight * np.nan for weight in model.get_weights()])
    for strategy in (Greedy(), Beam(2)):
        with pytest.raises(ValueError, match=r"`model` must .*NaN in rows \[0, 1\]; a"):
            walk(broken, inputs, Ring(), 3, strategy=strategy)
    with pytest.raises(TypeError, match="can't decode: it has neither `incremental"):
        walk(keras.Model(model.inputs, model.outputs), inputs, Ring(), 3)
    speller = tiny("rnnsearch_50")
    with pytest.raises(TypeError, match="`model` must read a `world_state` at each"):
        walk(speller, inputs, Ring(), 3)
    with pytest.raises(TypeError, match="`model` must read a token.*`decoding.walk`"):
        generate(model, inputs, 3)


@pytest.mark.shipped
@pytest.mark.skipif(not IS_TENSORFLOW, reason="the exporters need TensorFlow")
def test_exported_models_walk(tmp_path):
    from export_formats import SUFFIXES

    from keras_attn.export import export, load_runner

    model, other = different()
    strategies: list[Any] = [Greedy(), Sample(seed=3), Beam(3)]
    expected = [
        walk([model, other], instruction(), Ring(), 5, strategy=strategy)
        for strategy in strategies
    ]
    for name, suffix in SUFFIXES.items():
        sizes: dict[str, Any] = {}
        if name == "litert":  # One word longer than the instructions, which are padded.
            sizes = {"batch_size": 2, "sequence_length": 6}
        path = tmp_path / f"walker{suffix}"
        report = export(model, path, **sizes)
        assert report.max_abs_diff is not None and report.max_abs_diff <= 1e-4
        # An ensemble of a file and a model.
        members = [load_runner(path), other]
        for strategy, walked in zip(strategies, expected, strict=True):
            got = walk(members, instruction(), Ring(), 5, strategy=strategy)
            np.testing.assert_array_equal(got.actions, walked.actions)
            np.testing.assert_allclose(got.scores, walked.scores, atol=1e-4)
            assert got.walks == walked.walks
