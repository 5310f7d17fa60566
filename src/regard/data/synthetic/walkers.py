"""The built-in walkers: people who cross a square by known rules.

A scene is a function of (seed, number). Everyone walks at a speed of their own towards a goal. Rules that a model can
learn: at the fork, a circle about the middle of the square, some turn left and the others right by the same angle;
pairs walk side by side; and who would come within a metre of another person gives way to the right.
"""

from __future__ import annotations

import numpy as np

from regard.data.trajectories.tracks import Tracks

STEP = 0.4  # seconds
SIDE, FORK = 8.0, 2.5  # metres from the middle to where walkers start, and to the fork
TURN = np.radians(40.0)  # at the fork, to the left or to the right
SPEEDS = (0.9, 1.5)  # metres a second
NEAR, AHEAD, ASIDE = 1.0, 0.3, 0.35  # metres to a person in front at which one gives way; by how much in a step
PAIR = 0.7  # metres between two who walk together
TOGETHER = 0.3  # share of arrivals that are pairs
ARRIVALS = 4.0  # steps between two arrivals, in the mean
NOISE = 0.01  # metres by which positions are noted wrongly


class _Square:
    """The people on the square: where they are, where they look, how fast they walk, and how they turn at the fork."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.places, self.headings = np.zeros((0, 2)), np.zeros((0, 2))
        self.speeds, self.turns = np.zeros(0), np.zeros(0)
        self.count = 0

    def arrive(self, rng: np.random.Generator) -> None:
        """One person, or two who walk together, at the edge of the square."""
        angle, speed, turn = rng.uniform(0, 2 * np.pi), rng.uniform(*SPEEDS), float(rng.choice((-TURN, TURN)))
        heading = -np.array([np.cos(angle), np.sin(angle)])
        together = 1 + (rng.random() < TOGETHER)
        beside = PAIR * np.outer(np.arange(together), _right(heading))
        self.names += range(self.count, self.count + together)
        self.count += together
        self.places = np.concatenate([self.places, beside - SIDE * heading])
        self.headings = np.concatenate([self.headings, np.tile(heading, (together, 1))])
        self.speeds, self.turns = np.append(self.speeds, [speed] * together), np.append(self.turns, [turn] * together)

    def advance(self) -> None:
        """One step of everyone; who has crossed the square leaves."""
        turning = np.where(np.linalg.norm(self.places, axis=-1) < FORK, self.turns, 0.0)
        cos, sin = np.cos(turning), np.sin(turning)
        x, y = self.headings.T
        self.headings = np.stack([cos * x - sin * y, sin * x + cos * y], axis=-1)
        self.turns = self.turns * (turning == 0)
        away = self.places[None] - self.places[:, None]
        front = np.einsum("ijk,ik->ij", away, self.headings)
        blocked = ((np.linalg.norm(away, axis=-1) < NEAR) & (front > AHEAD)).any(axis=1)
        step = self.headings * (self.speeds * STEP)[:, None]
        self.places = self.places + step + _right(self.headings) * (ASIDE * blocked)[:, None]
        stays = np.linalg.norm(self.places, axis=-1) < SIDE + 1
        self.names = [name for name, stay in zip(self.names, stays, strict=True) if stay]
        self.places, self.headings = self.places[stays], self.headings[stays]
        self.speeds, self.turns = self.speeds[stays], self.turns[stays]


def _right(headings: np.ndarray) -> np.ndarray:
    return np.stack([headings[..., 1], -headings[..., 0]], axis=-1)


def built_in_walkers(seed: int, number: int, steps: int = 40) -> Tracks:
    """One scene of `steps` steps."""
    rng, square = np.random.default_rng([seed, 3, number]), _Square()
    times, names, places = [], [], []
    for time in range(-int(2 * SIDE / STEP), steps):
        for _ in range(rng.poisson(1 / ARRIVALS)):
            square.arrive(rng)
        square.advance()
        if time >= 0:
            times += [time] * len(square.names)
            names += square.names
            places.append(square.places + rng.normal(0, NOISE, square.places.shape))
    agents = sorted(set(names))
    return Tracks(
        f"walkers-{seed}-{number:03d}", [str(each) for each in agents], np.array(times), np.searchsorted(agents, names),
        np.concatenate(places), 0.0, 10.0,
    )  # fmt: skip
