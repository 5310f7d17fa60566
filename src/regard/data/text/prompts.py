"""Tasks as text (Raffel et al. 2020): a prompt, which begins with an instruction, and its answer.

Three kinds of prompt are built in: `translate`, `reverse` and `question`. They use sentences of the phrasebook.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from regard.data.formats.lines import read_lines, refuse
from regard.data.formats.pairs import Pair
from regard.data.parts import Part
from regard.data.synthetic.phrasebook import phrases
from regard.errors import DataError, UsageError

BUILT_IN = "builtin:"


def _translate(pair: Pair) -> Pair:
    return Pair(f"Translate EN-ES: {pair.source}", pair.target)


def _reverse(pair: Pair) -> Pair:
    return Pair(f"Reverse: {pair.source}", " ".join(reversed(pair.source.split())))


def _question(pair: Pair) -> Pair:
    """Whether a sentence is a question. Without its question mark, only the order of its words tells."""
    return Pair(f"Is this a question: {pair.source.removesuffix('?')}", "yes" if pair.source.endswith("?") else "no")


PROMPTS: dict[str, Callable[[Pair], Pair]] = {"translate": _translate, "reverse": _reverse, "question": _question}


def prompts(kind: str, *, part: Part, count: int, seed: int, max_words: int = 8) -> Iterator[Pair]:
    """Prompts of a built-in kind; no sentence is in two parts."""
    if kind not in PROMPTS:
        raise UsageError(f"there is no built-in prompt {kind!r}; known are {', '.join(PROMPTS)}")
    return map(PROMPTS[kind], phrases("es", part=part, count=count, seed=seed, max_words=max_words))


def read_prompts(path: str, prefix: str) -> Iterator[Pair]:
    """Texts and answers of a table with two tab-separated columns (also .gz); the prefix is put before each text."""
    for number, line in enumerate(read_lines(path, refuse), 1):
        cells = line.split("\t")
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise DataError(f"{path}, line {number}: expected a text and its answer, separated by a tab")
        yield Pair(f"{prefix} {cells[0]}" if prefix else cells[0], cells[1])


def of_task(pairs: Iterator[Pair], task: str) -> Iterator[Pair]:
    """The pairs with the name of their task."""
    return (dataclasses.replace(pair, to=task) for pair in pairs)


def mixture(tasks: NDArray[np.integer], temperature: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """The rows of an epoch, as many as there are in all. A task with n rows gets a share proportional to
    n^(1/temperature); all its rows are used before any is repeated."""
    sizes = np.bincount(tasks)
    shares = np.where(sizes > 0, sizes.astype(float) ** (1 / temperature), 0)
    wanted = np.maximum(np.round(len(tasks) * shares / shares.sum()).astype(int), sizes > 0)
    rows: list[NDArray[np.int64]] = []
    for task, count in enumerate(wanted.tolist()):
        own = np.flatnonzero(tasks == task)
        rows += [rng.permutation(own)[: count - begun] for begun in range(0, count, max(1, len(own)))]
    return np.concatenate(rows)
