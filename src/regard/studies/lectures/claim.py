"""What a claim of the lectures is, and what a test of it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Outcome = Literal["holds", "does not hold", "depends"]
Row = dict[str, object]


@dataclass(frozen=True)
class ClaimOptions:
    """How claims that train are tested: with how many seeds, for how many steps (None: as each says), and where."""

    seeds: int = 3
    steps: int | None = None
    runs: Path = Path("runs/claims")


@dataclass(frozen=True)
class Verdict:
    """What a test found: the outcome, one sentence of why, and the figures it rests on."""

    outcome: Outcome
    words: str
    rows: list[Row] = field(default_factory=list)


@dataclass(frozen=True)
class Claim:
    """A claim of a lecture, and the test of it. `regard claims NAME` runs the test."""

    name: str
    lecture: str  # the part of the lectures that makes it
    statement: str
    test: Callable[[ClaimOptions], Verdict]
    trains: bool = False  # takes minutes, not seconds


def judge(holds: bool, words: str, rows: list[Row] | None = None) -> Verdict:
    """The verdict on a claim that holds or does not."""
    return Verdict("holds" if holds else "does not hold", words, rows or [])
