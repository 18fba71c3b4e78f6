"""The simulated scene: what people do, what is seen, and what is refused."""

import numpy as np
import pytest
from refusals import refuses

from keras_attn.data import SocialScene
from keras_attn.data.synthetic.social_scene import FACING, OFFERING, PASSING

WAIT, LOOK, WAVE, SHAKE = range(4)
STEPS = 7


def played(actions, episodes, image_size: int | tuple[int, int] = 2):
    """Observations (B, T, H, W) by name, phases and rewards (B, T) of a policy."""
    scene = SocialScene(image_size=image_size, num_steps=STEPS, seed=5)
    observed = scene.reset(episodes)
    kept: dict[str, list] = {"gray": [], "depth": [], "phase": [], "rewards": []}
    masks = []
    for step in range(STEPS):
        for name, values in observed.items():
            kept[name].append(values)
        kept["phase"].append(scene.phase)
        masks.append(scene.masks)
        observed, rewards, is_last = scene.step(actions(scene))
        kept["rewards"].append(rewards)
        assert (is_last == (step == STEPS - 1)).all()
    return {name: np.stack(values, 1) for name, values in kept.items()}, masks


def always(action):
    """A policy of one action."""
    return lambda scene: np.full(len(scene.phase), action)


def test_an_episode_depends_on_its_number_and_the_actions_alone():
    def best(scene):
        return scene.best_actions()

    one, _ = played(best, [3, 11, 4], (19, 23))
    other, _ = played(best, [11], (19, 23))
    for name in one:
        np.testing.assert_array_equal(one[name][1:2], other[name])
    assert (one["gray"][0] != one["gray"][2]).any()
    assert one["gray"].shape == (3, STEPS, 19, 23, 1) and one["gray"].dtype == "uint8"


def test_people_answer_with_the_stated_probabilities():
    episodes = np.arange(1500)
    for action, faces, offers in ((WAIT, 0.1, 0.1), (WAVE, 0.7, 0.1), (LOOK, 0.1, 0.7)):
        seen, _ = played(always(action), episodes)
        assert not seen["rewards"].any()
        before, after = seen["phase"][:, :-1], seen["phase"][:, 1:]
        for phase, following, chance in (
            (PASSING, FACING, faces),
            (PASSING, OFFERING, 0.0),
            (FACING, OFFERING, offers),
            (FACING, PASSING, 0.2),
            (OFFERING, PASSING, 0.5),
            (OFFERING, FACING, 0.0),
        ):
            share = (after[before == phase] == following).mean()
            assert share == pytest.approx(chance, abs=0.08), (action, phase, following)


def test_only_an_offered_hand_is_worth_a_handshake():
    rng = np.random.default_rng(0)
    seen, _ = played(lambda scene: rng.integers(0, 4, len(scene.phase)), range(400))
    rng = np.random.default_rng(0)
    actions = np.stack([rng.integers(0, 4, 400) for _ in range(STEPS)], axis=1)
    shakes, offered = actions == SHAKE, seen["phase"] == OFFERING
    expected = np.where(shakes, np.where(offered, 1.0, -0.1), 0.0)
    np.testing.assert_allclose(seen["rewards"], expected, rtol=1e-6)
    assert (shakes & offered).sum() > 30
    # After a handshake, of whatever kind, the person walks on.
    assert (seen["phase"][:, 1:][shakes[:, :-1]] == PASSING).all()


def test_the_best_actions_are_the_best():
    """By the values of all policies: dynamic programming over the three phases."""
    chances = np.zeros((4, 3, 3))
    for action in range(4):
        face = 0.7 if action == WAVE else 0.1
        offer = 0.7 if action == LOOK else 0.1
        chances[action] = [
            [1 - face, face, 0],
            [0.2, 0.8 - offer, offer],
            [0.5, 0, 0.5],
        ]
    chances[SHAKE] = [[1, 0, 0]] * 3
    rewards = np.zeros((4, 3))
    rewards[SHAKE] = [-0.1, -0.1, 1.0]
    value, last = np.zeros(3), None
    for _ in range(STEPS):
        last = rewards + chances @ value
        value = last.max(0)
    assert last is not None
    best = last.argmax(0)
    scene = SocialScene(image_size=5, num_steps=STEPS)
    scene.reset([1, 2, 3])
    scene.phase = np.arange(3)
    np.testing.assert_array_equal(scene.best_actions(), best)
    seen, _ = played(lambda scene: scene.best_actions(), range(1500))
    mean = seen["rewards"].sum(1).mean()
    assert mean == pytest.approx(value[PASSING], abs=0.06)


def test_face_and_hand_are_where_the_masks_say():
    seen, masks = played(lambda scene: scene.best_actions(), range(40), (19, 23))
    for step, mask in enumerate(masks):
        phase = seen["phase"][:, step]
        gray = seen["gray"][:, step, ..., 0].astype(float)
        depth = seen["depth"][:, step, ..., 0] / 255 * 6
        assert mask["hand"].shape == gray.shape and mask["hand"].dtype == bool
        offers, passes = phase == OFFERING, phase == PASSING
        assert not mask["hand"][~offers].any() and not mask["face"][passes].any()
        assert mask["hand"][offers].any((1, 2)).sum() >= 0.9 * offers.sum()
        for row in np.flatnonzero(offers & mask["hand"].any((1, 2))):
            hand, face = mask["hand"][row], mask["face"][row]
            # Bright, and in front of everything else of the person.
            assert gray[row][hand].mean() > 120
            if face.any():
                nearer = np.median(depth[row][face]) - np.median(depth[row][hand])
                assert 0.2 < nearer < 1.0


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda scene: SocialScene(image_size=0), "`image_size` must be a posit"),
        (lambda scene: SocialScene(num_steps=0), "`num_steps` must be a posit"),
        (lambda scene: scene.reset([]), r"`episodes` must be .*episodes=\[\]"),
        (lambda scene: scene.reset([0.5]), "`episodes` must be non-negative int"),
        (lambda scene: scene.reset([1, -1]), r"`episodes` must be .*es=\[1, -1\]"),
        (lambda scene: SocialScene(seed=-1), "`seed` must be a non-neg.*seed=-1"),
        (
            lambda scene: SocialScene(seed=0.5),  # pyright: ignore[reportArgumentType]
            "`seed` must be a non-negative integer.*seed=0.5",
        ),
        (lambda scene: scene.reset(3), "`episodes` must be non-negative int"),
        (lambda scene: scene.step([0]), r"`actions` must be indices in \[0, 4\), one"),
        (lambda scene: scene.step([0, 4]), "`actions` must be indices .*Received: ac"),
        (lambda scene: scene.step([0.0, 1.0]), "`actions` must be indices"),
        (lambda scene: SocialScene().step([0]), "`step` needs episodes that have not"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    scene = SocialScene(image_size=7, num_steps=2)
    scene.reset([1, 2])
    refuses(message, make, scene)
    scene.step([0, 1])
    scene.step([2, 3])
    refuses("call `reset` first. Received: .* 2 of 2 step", scene.step, [0, 0])
