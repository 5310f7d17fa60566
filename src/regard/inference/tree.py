"""A beam search as a tree: every candidate it weighed, and what became of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from regard.inference.search import Candidates, Hypothesis, Search

ROOT = 0


@dataclass(frozen=True)
class Node:
    """One candidate: a token behind its parent, with the log-probability of everything up to it."""

    id: int
    parent: int
    step: int
    token: int
    total: float
    score: float
    state: Literal["live", "ended", "dropped"]


def grow_tree(search: Search) -> tuple[list[Node], list[Hypothesis]]:
    """Run a search for one sentence to its end, noting every candidate of every step; and what it found."""
    nodes: list[Node] = []
    live, step = [ROOT], 0
    while not search.done:
        search.advance()
        assert search.last is not None and search.live is not None
        step += 1
        survivors = [(origin, token) for total, origin, token in _listed(search.live) if total > -math.inf]
        places: dict[tuple[int, int], int] = {}
        for rank, (total, origin, token) in enumerate(_listed(search.last)):
            if total == -math.inf:
                continue
            ended = token == search.vocabulary.end and rank < search.width
            went_on = (origin, token) in survivors and not search.done
            places[origin, token] = number = len(nodes) + 1
            score = total / step**search.settings.length_penalty
            state: Literal["live", "ended", "dropped"] = "ended" if ended else "live" if went_on else "dropped"
            nodes.append(Node(number, live[origin], step, token, total, score, state))
        live = [places[way] for way in survivors if way in places]
    return nodes, search.results()[0]


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
