"""Decoding in an environment, where each action decides what the model sees next.

The strategies are the same as in `generate`. The loop runs on the host, because the
environment does, and calls models eagerly: a step consists of few operations. An
ensemble is several models, or exported pairs, whose probabilities are averaged at each
step.

Legend: B batch, K beams, A actions, F features of the world, L maximum number of steps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from keras import ops

from keras_attn.checks.arguments import check_positive
from keras_attn.decoding.compiled import get_compilations
from keras_attn.decoding.inputs import (
    as_arrays,
    check_beams,
    check_strategy,
    prepare,
)
from keras_attn.decoding.loop import next_state, reorder_by_parent, repeat_for_beams
from keras_attn.decoding.strategies import Beam, Greedy
from keras_attn.docstrings.descriptions import described_as
from keras_attn.ops import MASKED

WORLD = "world_state"


class Environment(Protocol):
    """The interface of an environment for `walk`, such as `data.WalkSimulator`.

    A state can be any object. `move` must not modify it, because beams share states.
    """

    stop_action: int

    def start(self) -> Sequence[Any]:
        """The B states before the first action."""
        ...

    def observe(self, walks: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """World states, float32 (N, F), and possible actions, bool (N, A)."""
        ...

    def move(self, walks: Sequence[Any], actions) -> Sequence[Any]:
        """The states after one action per state."""
        ...


class Walked(NamedTuple):
    """The result of `walk`.

    Attributes:
        actions: int32 (B, L), the actions including the stop action, which is repeated
            to the end of the row.
        scores: float32 (B,), the log-probability of those actions; for beam search
            divided by the length penalty.
        walks: The B states of the environment after these actions.
        world_states: float32 (B, L, F), what the model saw before each action; used to
            draw its attention.
    """

    actions: np.ndarray
    scores: np.ndarray
    walks: list[Any]
    world_states: np.ndarray


def walk(model, inputs, environment: Environment, max_steps, *, strategy=None):
    """Follows instructions in an environment, one action at a time.

    Impossible actions get a probability of 0. A walk that has not stopped after
    `max_steps` actions ends where it is.

    Args:
        model: A model whose `incremental()` reads a `world_state`, such as
            `listen_attend_walk`, its `IncrementalPair`, or an exported pair from
            `export.load_runner`; or a list of them, an ensemble, whose probabilities
            are averaged.
        inputs: The instructions, a dictionary of arrays: `token_ids` (B, S), and
            `padding_mask` (B, S).
        environment: The environment of the walks, with B states at the start.
        max_steps: L, the maximum number of actions.
        strategy: `Greedy()` (default), `Sample(...)` or `Beam(...)`.

    Returns:
        `Walked(actions, scores, walks, world_states)`.

    Raises:
        TypeError: If a model can't decode, or reads tokens at each step, or `strategy`
            is not a strategy.
        ValueError: If the model is missing; `inputs` is invalid as in `generate`; the
            number of rows of `inputs` is not the number of states; a model and the
            environment have different numbers of actions; a logit is NaN; an artefact
            was exported for a different number of beams; or `max_steps` is not a
            positive integer.

    Example:
        Needs the files of Room-to-Room:

        ```python
        from keras_attn import data, decoding, models

        walks = data.read_r2r("r2r/R2R_train.json", "r2r/connectivity")
        model = models.build_listen_attend_walk(vocabulary_size=walks.vocabulary_size)
        inputs = walks.encode(example.instruction for example in walks.examples)
        walked = decoding.walk(model, inputs, walks.simulator(), 20)
        ```

    Reference:
        Mei et al. 2016, section 4: beams of an ensemble (arXiv:1506.04089).
    """
    strategy = Greedy() if strategy is None else strategy
    search = _search(model, inputs, environment, max_steps, strategy)
    best = strategy.finish(search, max_steps)
    found, scores = (ops.convert_to_numpy(x)[:, 0] for x in best)
    states, worlds = list(environment.start()), []
    for column in found.T:
        worlds.append(environment.observe(states)[0])
        states = list(environment.move(states, column))
    return Walked(found, scores, states, np.stack(worlds, axis=1))


class Candidate(NamedTuple):
    """One of the walks that a beam search found.

    Attributes:
        walk: The state of the environment after its last action.
        score: The log-probability of its actions, divided by the length penalty.
    """

    walk: Any
    score: float


@described_as(walk)
def walk_candidates(
    model, inputs, environment: Environment, max_steps, *, strategy: Beam
) -> list[list[Candidate]]:
    """The walks that a beam search found for each instruction, for a second model.

    VLN-BERT chooses among the up to 30 walks of a follower.

    Args:
        strategy: `Beam(K)`.

    Returns:
        For each of the B instructions, up to K candidates, the best first. No two of
        them have the same actions.

    Raises:
        TypeError: As `walk`, or if `strategy` is not a `Beam`.
        ValueError: As `walk`.

    Example:
        Needs the files of Room-to-Room:

        ```python
        from keras_attn import data, decoding, models

        walks = data.read_r2r("r2r/R2R_train.json", "r2r/connectivity")
        model = models.build_listen_attend_walk(vocabulary_size=walks.vocabulary_size)
        inputs = walks.encode(example.instruction for example in walks.examples)
        beam, simulator = decoding.Beam(30), walks.simulator()
        found = decoding.walk_candidates(model, inputs, simulator, 7, strategy=beam)
        ```

    Reference:
        Majumdar et al. 2020, section 3 (arXiv:2004.14973).
    """
    if not isinstance(strategy, Beam):
        raise TypeError(
            "`strategy` must be a `Beam`, which finds several walks. "
            f"Received: strategy={strategy!r}"
        )
    search = _search(model, inputs, environment, max_steps, strategy)
    best = strategy.finish(search, max_steps, strategy.num_beams)
    found, scores = map(ops.convert_to_numpy, best)
    candidates: list[list[Candidate]] = [[] for _ in found]
    for actions, score in zip(
        np.moveaxis(found, 1, 0), np.moveaxis(scores, 1, 0), strict=True
    ):
        is_real = score > MASKED / 2
        # A beam that found nothing stays where it is.
        actions = np.where(is_real[:, None], actions, environment.stop_action)
        states = environment.start()
        for column in actions.T:
            states = environment.move(states, column)
        for row, state in enumerate(states):
            if is_real[row]:
                candidates[row].append(Candidate(state, float(score[row])))
    return candidates


def _search(model, inputs, environment, max_steps, strategy):
    """The state of a search after its last action."""
    check_positive("max_steps", max_steps)
    check_strategy(strategy, None)
    members = [
        _Member(each, strategy)
        for each in (model if isinstance(model, list | tuple) else [model])
    ]
    if not members:
        raise ValueError("`model` must be at least one model. Received: model=[]")
    states = list(environment.start())
    inputs = as_arrays(inputs)
    rows = {name: len(value) if value.ndim else 0 for name, value in inputs.items()}
    if set(rows.values()) != {len(states)}:
        raise ValueError(
            f"`inputs` must have one row for each of the {len(states)} states of "
            f"`environment`. Received: rows={rows}"
        )

    beams, stop = strategy.num_beams, environment.stop_action
    seen, is_possible = environment.observe(states)
    logits = [each.begin({**inputs, WORLD: seen}) for each in members]
    counts = [each.shape[-1] for each in logits]
    if set(counts) != {is_possible.shape[-1]}:
        raise ValueError(
            f"`model` must have logits of the {is_possible.shape[-1]} actions of "
            f"`environment`. Received: logits of {counts} actions"
        )
    logits = _average(logits)
    for each in members:
        each.repeat(beams)
    logits = repeat_for_beams(_only_possible(logits, is_possible), beams)
    states = [state for state in states for _ in range(beams)]
    is_possible = np.repeat(is_possible, beams, axis=0)
    uniform = strategy.uniform(len(states) // beams, max_steps)
    search = strategy.start(len(states) // beams, max_steps, stop, uniform)
    for index in range(max_steps):
        if index:
            seen, is_possible = environment.observe(states)
            logits = _average([each.step(seen) for each in members])
            logits = _only_possible(logits, is_possible)
        actions, parents, search = strategy.advance(search, logits, index, stop, stop)
        actions = np.asarray(ops.convert_to_numpy(actions))
        if parents is not None:
            parents = np.asarray(ops.convert_to_numpy(parents))
            states = [states[parent] for parent in parents]
            is_possible = is_possible[parents]
            for each in members:
                each.reorder(parents)
        # With fewer actions than beams, a beam with a probability of 0 stays where it
        # is.
        can_move = is_possible[np.arange(len(states)), actions]
        states = environment.move(states, np.where(can_move, actions, stop))
        if bool(ops.all(search["done"])):
            break
    return search


class _Member:
    """One model of an ensemble, and its state.

    Raises:
        TypeError: If `model` can't decode, or reads tokens.
    """

    def __init__(self, model, strategy):
        functions = get_compilations(model).decoding_functions(model, 1)
        if WORLD not in functions.step_inputs:
            raise TypeError(
                f"`model` must read a `{WORLD}` at each step; use `generate` for one "
                f"that reads tokens. Received: model={type(model).__name__}"
            )
        check_beams(functions, strategy)
        self._functions, self._num_beams = functions, strategy.num_beams
        # Keras takes tensors, an artefact arrays.
        as_input = ops.convert_to_tensor if functions.traceable else np.asarray
        self._as_inputs = lambda given: {name: as_input(x) for name, x in given.items()}
        self._state: dict[str, Any] = {}

    def begin(self, inputs: dict):
        """Logits (B, A) of the first action."""
        inputs = self._as_inputs(prepare(self._functions, inputs, None, 0))
        return self._keep({**inputs, **self._functions.prefill(inputs)})

    def step(self, world):
        """Logits (B·K, A) of the next action."""
        inputs = {**self._state, **self._as_inputs({WORLD: world})}
        return self._keep(next_state(self._state, self._functions.step(inputs)))

    def repeat(self, beams: int) -> None:
        """Each row once per beam."""
        self._state = {
            name: repeat_for_beams(value, beams) for name, value in self._state.items()
        }

    def reorder(self, parents) -> None:
        """Gives each beam the state of its parent."""
        self._state = reorder_by_parent(self._state, parents, self._num_beams)

    def _keep(self, state):
        names = set(self._functions.step_inputs) - {WORLD}
        self._state = {name: state[name] for name in names}
        return state["logits"]


def _average(logits: list):
    """The logarithm of the mean of the probabilities, (N, A)."""
    arrays = [np.asarray(ops.convert_to_numpy(each), "float32") for each in logits]
    if len(arrays) == 1:
        return arrays[0]
    log_probs = np.stack([_log_softmax(each) for each in arrays])
    return np.logaddexp.reduce(log_probs, axis=0) - np.log(np.float32(len(arrays)))


def _log_softmax(logits):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _only_possible(logits, is_possible):
    """Logits, with MASKED where an action is impossible.

    Raises:
        ValueError: If a logit is NaN, which a beam would turn into the stop action.
    """
    if np.isnan(logits).any():
        rows = np.flatnonzero(np.isnan(logits).any(axis=-1)).tolist()
        raise ValueError(
            "`model` must return logits that are numbers. Received: NaN in rows "
            f"{rows}; are its weights finite?"
        )
    return np.where(is_possible, logits, np.float32(MASKED))
