"""Tracks of agents, read from files: one row for each agent that is seen in a frame, as frame, agent, x, y.

ETH/UCY's text files and any CSV are read: columns are separated by commas, semicolons, tabs or spaces, with or without
a header; between semicolons or tabs, numbers may have a decimal comma. Times are counted in steps, the most common
distance between frames that follow each other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import PositiveInt

from regard.config import Config
from regard.data.sources import Part
from regard.errors import DataError

FILE = "scenes.json"


class SceneSettings(Config):
    """Written beside the weights."""

    leave_out: str = ""
    trained: tuple[str, ...] = ()  # names of files
    every: PositiveInt = 1

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.model_dump(mode="json"), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The settings of a folder; a folder without them has none to know."""
        file = folder / FILE
        return cls.parse(json.loads(file.read_text(encoding="utf-8")), where=str(file)) if file.is_file() else cls()


COLUMNS: dict[str, tuple[str, ...]] = {  # names that a header may use
    "frame": ("frame", "frame_id", "frameid", "frame_number", "time", "t", "timestamp", "step"),
    "agent": (
        "agent", "agent_id", "agentid", "id", "ped", "ped_id", "pedestrian", "pedestrian_id", "person_id", "track",
        "track_id", "trackid", "object_id",
    ),
    "x": ("x", "pos_x", "x_m", "world_x", "xcenter"),
    "y": ("y", "pos_y", "y_m", "world_y", "ycenter"),
}  # fmt: skip
SEPARATOR = re.compile(r"\s*,\s*|\s+")
SCATTERED = 0.1  # share of the frames beyond which their distances scatter, and the step is the mean of them
FARTHEST = 1e8  # metres: farther than any place on Earth is from another
NEAR = 4096.0  # metres: nearer to zero, single precision keeps millimetres


@dataclass(frozen=True, eq=False)
class Tracks:
    """The positions of agents in metres, row by row in the order of time; no agent has two rows at one time."""

    name: str
    agents: list[str]
    times: Int[np.ndarray, " R"]  # of every row, in steps from the first frame
    rows: Int[np.ndarray, " R"]  # the agent of every row
    positions: Float[np.ndarray, "R 2"]
    first: float  # the frame of time 0
    step: float  # frames from one step to the next

    @property
    def last(self) -> int:
        return int(self.times[-1])

    def frame(self, time: int) -> float:
        return self.first + time * self.step

    def to_csv(self) -> str:
        """The rows of a file, with a header."""
        rows = zip(self.times, self.rows, self.positions, strict=True)
        lines = [f"{frame_text(self.frame(time))},{self.agents[agent]},{x:.4f},{y:.4f}" for time, agent, (x, y) in rows]
        return "\n".join(["frame,agent,x,y", *lines, ""])

    def window(self, begin: int, steps: int) -> tuple[Int[np.ndarray, " N"], np.ndarray, np.ndarray]:
        """The agents that are seen within `steps` times from `begin` on, their positions [N T 2], and when they are
        seen [N T]; other positions are NaN."""
        low, high = np.searchsorted(self.times, (begin, begin + steps))
        agents, inverse = np.unique(self.rows[low:high], return_inverse=True)
        positions = np.full((len(agents), steps, 2), np.nan)
        positions[inverse, self.times[low:high] - begin] = self.positions[low:high]
        return agents, positions, ~np.isnan(positions[..., 0])

    def present(
        self, now: int, past: int, future: int
    ) -> tuple[Int[np.ndarray, " N"], Float[np.ndarray, "N T 2"], Bool[np.ndarray, "N T"]]:
        """The same of `past` + `future` times, of the agents that are seen at the last time of the past, `now`."""
        agents, positions, seen = self.window(now - past + 1, past + future)
        there = seen[:, past - 1]
        return agents[there], positions[there], seen[there]


def frame_text(frame: float) -> str:
    """A frame as it would be written in a file: all digits of large numbers, at most six decimals."""
    return f"{frame:.6f}".rstrip("0").rstrip(".")


class _Row(NamedTuple):
    line: int
    frame: float
    agent: str
    x: float
    y: float


def read_tracks(source: str | Path | bytes, *, every: int = 1, name: str = "", bad: list[str] | None = None) -> Tracks:
    """Read a file of tracks, or its bytes; of the frames, the last and every `every`-th before it are kept.

    A wrong row is an error that names its line, unless `bad` is given: then it is left out, and a message is added.
    """
    if not isinstance(source, bytes):
        if not Path(source).is_file():
            raise DataError(f"{source} is not a file; expected rows of frame, agent, x, y")
        name, source = name or str(source), Path(source).read_bytes()
    try:
        text = source.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{name or 'the scene'} is not text; expected rows of frame, agent, x, y") from None
    rows = list(_rows(text, name or "the scene", bad))
    if not rows:
        raise DataError(f"{name or 'the scene'} has no row; expected rows of frame, agent, x, y")
    return _tracks(rows, name or "scene", every, bad)


def _rows(text: str, name: str, bad: list[str] | None) -> Iterator[_Row]:
    """The rows of a file, with their line numbers."""
    columns: Sequence[int] | None = None
    count = 0
    for number, line in enumerate(text.splitlines(), 1):
        fields = _fields(line)
        if fields == [""] or line.lstrip().startswith("#"):
            continue
        if columns is None:
            columns, is_header = _columns(fields, f"{name}, line {number}")
            count = len(fields)
            if is_header:
                continue
        try:
            if len(fields) != count:
                raise ValueError(f"{len(fields)} columns, where the first row has {count}; expected frame, agent, x, y")
            yield _row(number, fields, columns)
        except ValueError as error:
            message = f"{name}, line {number}: {error}"
            if bad is None:
                raise DataError(message) from None
            bad.append(message)


def _fields(line: str) -> list[str]:
    for separator in (";", "\t"):
        if separator in line.strip():
            return [field.strip().strip('"').replace(",", ".") for field in line.strip().split(separator)]
    return [field.strip('"') for field in SEPARATOR.split(line.strip())]


def _columns(fields: Sequence[str], where: str) -> tuple[Sequence[int], bool]:
    """Which columns are frame, agent, x and y, by the first row, and whether that row is a header."""
    if _is_number(fields[0]) and len(fields) >= len(COLUMNS):
        if len(fields) > len(COLUMNS):
            raise DataError(f"{where}: {len(fields)} columns without a header; name them, or give frame, agent, x, y")
        return range(len(COLUMNS)), False
    lowered = [field.lower() for field in fields]
    columns = [next((lowered.index(name) for name in names if name in lowered), -1) for names in COLUMNS.values()]
    if -1 in columns:
        missing = list(COLUMNS)[columns.index(-1)]
        raise DataError(f"{where}: no column {missing!r} in {', '.join(fields)[:60]!r}; expected frame, agent, x, y")
    return columns, True


def _row(number: int, fields: Sequence[str], columns: Sequence[int]) -> _Row:
    frame, agent, x, y = (fields[column] for column in columns)
    for value in (frame, x, y):
        if not _is_number(value):
            raise ValueError(f"{value[:40]!r} is not a number; expected frame, agent, x, y")
    if max(abs(float(x)), abs(float(y))) > FARTHEST:
        raise ValueError(f"({x[:20]}, {y[:20]}) is too far away; expected metres, up to {FARTHEST:,.0f}")
    if not agent:
        raise ValueError("the agent has no name; expected frame, agent, x, y")
    if _is_number(agent) and float(agent).is_integer():  # a whole number is written without decimals
        agent = str(int(float(agent)))
    return _Row(number, float(frame), agent, float(x), float(y))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _tracks(rows: list[_Row], name: str, every: int, bad: list[str] | None) -> Tracks:
    frames = np.unique([row.frame for row in rows])
    step = _step(frames)
    last = round((frames[-1] - frames[0]) / step)
    shift = last % every
    kept: dict[tuple[int, str], _Row] = {}
    for row in rows:
        time, rest = divmod(round((row.frame - frames[0]) / step) - shift, every)
        if rest:
            continue
        other = kept.setdefault((time, row.agent), row)
        if (other.x, other.y) == (row.x, row.y):  # the first row at its time, or one that is given twice
            continue
        message = f"{name}, line {row.line}: {_contradiction(row, other, step)}"
        if bad is None:
            raise DataError(message)
        bad.append(message)
    names = {agent for _, agent in kept}  # numbers come in their order, then names in theirs
    agents = sorted(names, key=lambda each: (0, float(each), each) if _is_number(each) else (1, 0.0, each))
    number = {agent: place for place, agent in enumerate(agents)}
    placed = sorted((time, number[agent], row) for (time, agent), row in kept.items())
    first = placed[0][0]
    return Tracks(
        name, agents, np.array([time - first for time, _, _ in placed]), np.array([agent for _, agent, _ in placed]),
        np.array([(row.x, row.y) for _, _, row in placed], dtype=np.float64),
        float(frames[0] + (first * every + shift) * step), step * every,
    )  # fmt: skip


def _step(frames: Float[np.ndarray, " F"]) -> float:
    """The distance between frames that follow each other: the most common one. Where distances scatter around it, as
    those of seconds that were rounded do, it is their mean: a step that is a little wrong would leave out times."""
    gaps = np.diff(frames).round(9)
    if not len(gaps):
        return 1.0
    values, counts = np.unique(gaps, return_counts=True)
    common = values[counts.argmax()]
    near = gaps[np.abs(gaps - common) < common / 2]
    return float(near.mean() if np.mean(near != common) > SCATTERED else common)


def _contradiction(row: _Row, other: _Row, step: float) -> str:
    """Why two rows cannot both be right."""
    if other.frame != row.frame:
        return (
            f"frames {frame_text(other.frame)} (line {other.line}) and {frame_text(row.frame)} are less than a step "
            f"apart; most frames are {frame_text(step)} apart, and all must be"
        )
    return (
        f"agent {row.agent} is at ({row.x:g}, {row.y:g}) in frame {frame_text(row.frame)}, but at "
        f"({other.x:g}, {other.y:g}) by line {other.line}; an agent is at one place at a time"
    )


SCENES: dict[str, tuple[str, ...]] = {  # of ETH/UCY, and the files of each
    "eth": ("biwi_eth",),
    "hotel": ("biwi_hotel",),
    "univ": ("students001", "students003"),
    "zara1": ("crowds_zara01",),
    "zara2": ("crowds_zara02",),
}
FOLDERS: dict[Part, tuple[str, str]] = {"train": ("train", "_train"), "valid": ("val", "_val"), "test": ("all", "")}


def collection_files(folder: str | Path, left_out: str, part: Part) -> list[str]:
    """The files of a part of ETH/UCY: whole files of the scene that is left out to test on, and parts of all others."""
    if left_out not in SCENES:
        raise DataError(f"ETH/UCY has no scene {left_out!r}; the scenes are {', '.join(SCENES)}")
    if not all((Path(folder) / name).is_dir() for name, _ in FOLDERS.values()):
        raise DataError(f"{folder} lacks the folders all, train and val; expected ETH/UCY as its README describes it")
    place, suffix = FOLDERS[part]
    files = sorted((Path(folder) / place).glob(f"*{suffix}.txt"))
    own = [file for file in files if (file.stem.removesuffix(suffix) in SCENES[left_out]) == (part == "test")]
    if not own:
        raise DataError(f"{folder}/{place} has no file of scene {left_out!r}; expected {SCENES[left_out][0]}.txt")
    return [str(file) for file in own]


def whole_file(name: str) -> str:
    """The name of the file that a file for training is a part of, or its own; both without an ending."""
    return name.removesuffix(FOLDERS["train"][1])


def find_tracks(
    path: str, *, every: int = 1, part: Part = "test", leave_out: str = "", bad: list[str] | None = None
) -> list[Tracks]:
    """The scenes of a file, or of the folder of ETH/UCY as FOLDER#SCENE: the files of a part, with the scene left out.

    Of a folder without a scene, `leave_out` is the one.
    """
    place, _, scene = (path, "", "") if Path(path).is_file() else path.partition("#")
    files = [path]
    if scene or Path(place).is_dir():
        if not (scene or leave_out):
            raise DataError(
                f"{place} is a folder; name the scene of ETH/UCY to leave out, as data.leave_out of a recipe or "
                f"{place}#{next(iter(SCENES))}, or give files"
            )
        files = collection_files(place, scene or leave_out, part)
    return [read_tracks(file, every=every, bad=bad) for file in files]


def far_away(positions: Float[np.ndarray, "*shape 2"]) -> Float[np.ndarray, " 2"]:
    """What to subtract from positions before they become single precision: their mean in whole metres, if it is far
    from zero, as in the coordinates of maps. Models do not depend on where a scene is."""
    middle = np.nanmean(positions.reshape(-1, 2).astype(np.float64), axis=0) if positions.size else np.zeros(2)
    return np.where(np.abs(middle).max() > NEAR, middle.round(), 0.0)


def filled(positions: Float[np.ndarray, "N T 2"], seen: Bool[np.ndarray, "N T"]) -> Float[np.ndarray, "N T 2"]:
    """Positions without gaps: on a line between the steps where an agent is seen, and before and after them at the
    velocity next to it. Models mask these steps; the velocities of the steps beside them are then right."""
    whole = np.array(positions, dtype=np.float32)
    for agent in np.flatnonzero(~seen.all(axis=1)):
        known = np.flatnonzero(seen[agent])
        if not len(known):
            whole[agent] = 0.0
            continue
        begin, end = known[0], known[-1]
        steps = np.arange(len(seen[agent]))
        for axis in range(2):
            whole[agent, :, axis] = np.interp(steps, known, positions[agent, known, axis])
        if begin < end:
            before, after = whole[agent, begin + 1] - whole[agent, begin], whole[agent, end] - whole[agent, end - 1]
            whole[agent, :begin] = whole[agent, begin] - (begin - steps[:begin, None]) * before
            whole[agent, end + 1 :] = whole[agent, end] + (steps[end + 1 :, None] - end) * after
    return whole
