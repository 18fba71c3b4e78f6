"""People who pass a robot: a simulated scene with a gray camera and a depth camera.

Legend: B episodes that are played at once, H and W pixels, X right, Y up and Z ahead of
the camera in meters.
"""

from typing import Any

import numpy as np

from keras_attn.checks.arguments import check_pair, check_positive, is_whole

ACTIONS = ("wait", "look", "wave", "handshake")
PASSING, FACING, OFFERING = range(3)
_WAIT, _LOOK, _WAVE, _SHAKE = range(4)
_WALL, _FARTHEST = 5.0, 6.0  # Meters; the second is 1 in the depth image.
_FOCAL = 0.9  # Focal length as a share of the image's height.
# Drawn once for each step of an episode, in this order.
_TURN, _SPEED, _BALL_X, _BALL_Y = range(4)
# The same, drawn once per episode.
_NUM_TRAITS = 14


class SocialScene:
    """Episodes in which a person passes a robot, which may greet.

    A person walks past with the head turned away, faces the robot, or offers a hand. In
    every step the robot takes one of the `ACTIONS`, and the person responds:

    | the person | probability of the next step |
    |---|---|
    | passes | faces the robot: 0.7 if it waves, else 0.1 |
    | faces it | offers a hand: 0.7 if it looks at the person, else 0.1; walks on: 0.2 |
    | offers a hand | walks on: 0.5 |

    A handshake has the reward 1 if a hand is offered and -0.1 otherwise, and in both
    cases the person walks on; all other actions have the reward 0. So the best action
    depends only on the phase (see `best_actions`), and the phase is visible only in the
    face and the hand. Some people carry an object that looks like a hand, at the
    distance of the body; a ball flies through the room, and a face hangs on the wall.

    The authors' robot met real people and had the same actions and rewards; how people
    respond here is our own design.

    An episode depends on `seed`, its number and the actions, not on the other episodes
    of its batch.

    Args:
        image_size: H and W in pixels, one number or two.
        num_steps: Number of steps of an episode.
        seed: Seed of all episodes.

    Attributes:
        num_actions: 4.
        observations: Shape and dtype of each observation of one step, by name: `gray`,
            brightness, and `depth`, the distance from 0 to 6 meters, both (H, W, 1)
            uint8.
        phase: What each person does, (B,): 0 passes, 1 faces the robot, 2 offers a
            hand.
        masks: Visible pixels of the last observation by name, bool (B, H, W): `face`,
            turned to the robot, and `hand`, offered.

    Raises:
        ValueError: If `image_size` or `num_steps` is not a positive integer, or `seed`
            is not a nonnegative integer.

    Reference:
        Qureshi et al. 2017 (arXiv:1702.08626): the actions and the rewards.
    """

    num_actions = len(ACTIONS)

    def __init__(
        self,
        *,
        image_size: int | tuple[int, int] = 64,
        num_steps: int = 12,
        seed: int = 0,
    ):
        self.image_size = check_pair("image_size", image_size)
        self.num_steps = check_positive("num_steps", num_steps)
        if not is_whole(seed) or seed < 0:
            raise ValueError(
                f"`seed` must be a non-negative integer. Received: seed={seed!r}"
            )
        self.seed = seed
        self.observations = {
            name: ((*self.image_size, 1), "uint8") for name in ("gray", "depth")
        }
        self.phase = np.zeros(0, "int64")
        self.masks: dict[str, np.ndarray] = {}
        self._step = self.num_steps

    def reset(self, episodes) -> dict[str, np.ndarray]:
        """Starts episodes.

        Args:
            episodes: Their numbers, (B,).

        Returns:
            The first observations, (B, H, W, 1) by name.

        Raises:
            ValueError: If `episodes` is empty, or a number is not an integer or is
                negative.
        """
        numbers = np.asarray(episodes)
        are_integers = numbers.ndim == 1 and numbers.dtype.kind in "iu"
        if not are_integers or not len(numbers) or numbers.min() < 0:
            raise ValueError(
                "`episodes` must be non-negative integers, (batch,). Received: "
                f"episodes={episodes!r}"
            )
        streams = [np.random.default_rng([self.seed, int(n)]) for n in numbers]
        draws = [rng.random((self.num_steps, 4), "float32") for rng in streams]
        self._uniforms = np.stack(draws, axis=1)  # (T, B, 4)
        traits = np.stack([rng.random(_NUM_TRAITS, "float32") for rng in streams])
        self._noise = streams
        side, distance, *self._traits = traits.T
        self.phase = np.full(len(numbers), PASSING)
        self._x = 1.6 * side - 0.8
        self._z = 2.2 + 0.8 * distance
        self._direction = np.where(side < 0.5, 1.0, -1.0)
        self._step = 0
        return self._observe()

    def step(self, actions) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
        """Takes one step in every episode.

        Args:
            actions: Indices of `ACTIONS`, (B,).

        Returns:
            The next observations, (B, H, W, 1) by name, the rewards (B,), and whether
            the step was the last, (B,).

        Raises:
            ValueError: If an action is not an index of `ACTIONS`, or if called before
                `reset` or after the last step.
        """
        actions = np.asarray(actions)
        if self._step >= self.num_steps:
            raise ValueError(
                "`step` needs episodes that have not ended: call `reset` first. "
                f"Received: a call after {self._step} of {self.num_steps} steps"
            )
        are_integers = actions.dtype.kind in "iu" and actions.shape == self.phase.shape
        if not are_integers or actions.min() < 0 or actions.max() >= self.num_actions:
            raise ValueError(
                f"`actions` must be indices in [0, {self.num_actions}), one for each "
                f"of the {len(self.phase)} episodes. Received: actions={actions!r}"
            )
        chance = self._uniforms[self._step, :, _TURN]
        is_shake = actions == _SHAKE
        rewards = np.where(is_shake, np.where(self.phase == OFFERING, 1.0, -0.1), 0.0)
        faces = chance < np.where(actions == _WAVE, 0.7, 0.1)
        offers = chance < np.where(actions == _LOOK, 0.7, 0.1)
        leaves = chance > np.where(self.phase == FACING, 0.8, 0.5)
        following = np.select(
            [
                is_shake,
                (self.phase == PASSING) & faces,
                (self.phase == FACING) & offers,
                (self.phase != PASSING) & leaves,
            ],
            [PASSING, FACING, OFFERING, PASSING],
            self.phase,
        )
        self._move(following)
        self.phase = following
        self._step += 1
        is_last = np.full(len(actions), self._step == self.num_steps)
        return self._observe(), rewards.astype("float32"), is_last

    def best_actions(self) -> np.ndarray:
        """The actions that maximize the expected sum of rewards, (B,).

        Wave at a person who passes, look at a person who faces the robot, and shake an
        offered hand: every other action reaches an offered hand later, or loses it.
        """
        return np.array([_WAVE, _LOOK, _SHAKE])[self.phase]

    def _move(self, following):
        """People who pass walk on and turn back at the end; others come closer."""
        speed = 0.15 + 0.15 * self._uniforms[self._step, :, _SPEED]
        walks = following == PASSING
        self._x = self._x + np.where(walks, speed * self._direction, 0.0)
        self._direction = np.where(
            np.abs(self._x) > 0.8, -np.sign(self._x), self._direction
        )
        self._x = np.clip(self._x, -0.9, 0.9)
        self._z = np.clip(self._z + np.where(walks, 0.2, -0.3), 1.6, 3.0)

    def _observe(self):
        """Draws the scene of this moment, and its masks."""
        rows, columns = self.image_size
        batch = len(self.phase)
        step = min(self._step, self.num_steps - 1)
        canvas = _Canvas(batch, rows, columns)
        wall, cloth, skin, poster_x, poster_y, *others = self._traits
        ball_size, slope, carries, *ball = others
        canvas.background(0.3 + 0.4 * wall, 0.3 * (slope - 0.5))
        self._draw_poster(canvas, 1.6 * poster_x - 0.8, 0.4 + 0.4 * poster_y)
        flight = self._uniforms[step]
        radius = 0.07 + 0.05 * ball_size
        canvas.ellipsoid(
            2.0 * ball[0] - 1.0 + 0.4 * flight[:, _BALL_X],
            0.8 * ball[1] - 0.4 + 0.3 * flight[:, _BALL_Y],
            2.0 + 2.0 * ball[2],
            radius,
            radius,
            radius,
            0.6 + 0.3 * ball[3],
        )
        self._draw_person(canvas, 0.15 + 0.3 * cloth, 0.65 + 0.3 * skin, carries < 0.5)
        self.masks = {"face": canvas.owner == _FACE, "hand": canvas.owner == _HAND}
        return self._images(canvas)

    def _draw_poster(self, canvas, x, y):
        """A flat face on the wall."""
        z = _WALL - 0.01
        canvas.ellipsoid(x, y, z, 0.3, 0.4, 0.0, 0.8)
        for side in (-0.12, 0.12):
            canvas.ellipsoid(x + side, y + 0.1, z - 0.001, 0.06, 0.06, 0.0, 0.1)

    def _draw_person(self, canvas, cloth, skin, carries):
        """A body, arms and a head, all made of ellipsoids."""
        x, z = self._x, self._z
        is_turned = self.phase != PASSING
        offers = self.phase == OFFERING
        canvas.ellipsoid(x, -0.45, z, 0.22, 0.55, 0.15, cloth)
        for side in (-1, 1):
            hangs = ~offers if side == 1 else np.ones_like(offers)
            canvas.ellipsoid(
                x + 0.27 * side, -0.4, z, 0.07, 0.4, 0.07, 0.8 * cloth, visible=hangs
            )
        # A head that is turned away shows its hair.
        canvas.ellipsoid(x, 0.32, z, 0.15, 0.2, 0.14, 0.12)
        canvas.ellipsoid(
            x, 0.28, z - 0.05, 0.12, 0.16, 0.12, skin, visible=is_turned, owner=_FACE
        )
        for side in (-0.05, 0.05):
            canvas.ellipsoid(
                *(x + side, 0.32, z - 0.18, 0.025, 0.03, 0.0, 0.05),
                visible=is_turned,
                owner=_FACE,
            )
        canvas.ellipsoid(
            *(x + 0.2, -0.2, z - 0.16, 0.12, 0.12, 0.05, skin),
            visible=carries & ~offers,
        )
        canvas.ellipsoid(
            x + 0.2, -0.15, z - 0.35, 0.08, 0.09, 0.2, 0.8 * cloth, visible=offers
        )
        canvas.ellipsoid(
            *(x + 0.16, -0.12, z - 0.65, 0.09, 0.09, 0.05, skin),
            visible=offers,
            owner=_HAND,
        )

    def _images(self, canvas):
        """The images of the cameras, with noise."""
        noise = np.stack(
            [
                rng.normal(0, 0.02, (2, *self.image_size)).astype("float32")
                for rng in self._noise
            ],
            axis=1,
        )
        values = np.stack([canvas.gray, canvas.depth / _FARTHEST]) + noise
        gray, depth = (255 * values.clip(0, 1) + 0.5).astype("uint8")[..., None]
        return {"gray": gray, "depth": depth}


_NOBODY, _FACE, _HAND = range(3)


class _Canvas:
    """Brightness and distance images, in which nearer objects hide farther ones."""

    def __init__(self, batch, rows, columns):
        focal = _FOCAL * rows
        self._right = (np.arange(columns, dtype="float32") + 0.5 - columns / 2) / focal
        self._up = (rows / 2 - 0.5 - np.arange(rows, dtype="float32")) / focal
        self.gray = np.zeros((batch, rows, columns), "float32")
        self.depth = np.full((batch, rows, columns), _WALL, "float32")
        self.owner = np.full((batch, rows, columns), _NOBODY, "int8")

    def background(self, brightness, slope):
        """A wall whose brightness grows to the right."""
        shade = brightness[:, None] + slope[:, None] * self._right
        self.gray[:] = shade[:, None, :]

    def ellipsoid(
        self, x, y, z, width, height, length, brightness, *, visible=True, owner=_NOBODY
    ):
        """Draws an ellipsoid, brighter in its middle.

        Args:
            x: Its center in meters, like y and z; each a number or (B,).
            y: See x.
            z: See x.
            width: Semi-axis to the right in meters; likewise height upwards and length
                ahead.
            height: See width.
            length: See width.
            brightness: From 0 to 1, a number or (B,).
            visible: Whether it is there, a boolean or (B,).
            owner: The number that marks its pixels in the masks.
        """
        shape = (len(self.gray), 1, 1)
        x, y, z, width, height, length, brightness, visible = (
            np.broadcast_to(np.asarray(value), len(self.gray)).reshape(shape)
            for value in (x, y, z, width, height, length, brightness, visible)
        )
        across = ((self._right - x / z) * z / width) ** 2
        upwards = ((self._up[:, None] - y / z) * z / height) ** 2
        inside = np.maximum(1 - across - upwards, 0.0)
        bulge = np.sqrt(inside)
        depth = (z - length * bulge).astype("float32")
        shown = (inside > 0) & visible & (depth < self.depth)
        shade: Any = brightness * (0.75 + 0.25 * bulge)
        np.copyto(self.gray, shade, where=shown, casting="same_kind")
        np.copyto(self.depth, depth, where=shown)
        self.owner[shown] = owner
