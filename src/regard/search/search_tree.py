"""A beam search as a tree: every candidate of every step, and whether it was kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.search.candidates import Candidates
from regard.search.search import Hypothesis, Search

ROOT = 0


@dataclass(frozen=True)
class Node:
    """One candidate: a token after its parent, with the log-probability of all tokens up to it."""

    id: int
    parent: int
    step: int
    token: int
    total: float
    score: float
    state: Literal["live", "ended", "dropped"]


class Growth:
    """Collects every candidate of every step of the first search that it watches."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.search: Search | None = None
        self._live, self._step = [ROOT], 0

    def watch(self, search: Search) -> None:
        """Collect the candidates of the last step of a search for one sentence."""
        self.search = self.search or search
        if search is not self.search:
            return
        assert search.last is not None and search.live is not None
        self._step += 1
        survivors = [(origin, token) for total, origin, token in _listed(search.live) if total > -math.inf]
        places: dict[tuple[int, int], int] = {}
        for rank, (total, origin, token) in enumerate(_listed(search.last)):
            if total == -math.inf:
                continue
            ended = token == search.vocabulary.end and rank < search.width
            went_on = (origin, token) in survivors and not search.done
            places[origin, token] = number = len(self.nodes) + 1
            score = total / self._step**search.settings.length_penalty
            state: Literal["live", "ended", "dropped"] = "ended" if ended else "live" if went_on else "dropped"
            self.nodes.append(Node(number, self._live[origin], self._step, token, total, score, state))
        self._live = [places[way] for way in survivors if way in places]


def path_to(nodes: Sequence[Node], answer: Hypothesis, end: int) -> set[int]:
    """The nodes on the way to an answer."""
    wanted, children = [*answer.tokens, *([end] if answer.finished else [])], dict[tuple[int, int], int]()
    for node in nodes:
        children[node.parent, node.token] = node.id
    path: list[int] = []
    for token in wanted:
        path.append(children[path[-1] if path else ROOT, token])
    return set(path)


def _listed(candidates: Candidates) -> Iterator[tuple[float, int, int]]:
    """(log-probability, hypothesis continued, token added) of each candidate for the one sentence."""
    return zip(*(part[0].tolist() for part in candidates), strict=True)
