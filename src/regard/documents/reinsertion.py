"""Put marks into a translation, beside the target words aligned with their neighbours in the source.

Source and target are split into units: the core of a whitespace word, its leading and its trailing punctuation. Pairs
of tags form a tree that is laid out from the root: every pair gets a span of target units inside its parent's span, and
siblings do not overlap. So tags stay nested whatever the alignment is.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Links = Sequence[tuple[int, int]]
MAX_DEPTH = 50  # of nested tags; deeper ones are treated as single marks


@dataclass(slots=True)
class Slot:
    """A mark's position in the source text: its offset, and whether white space or an end of the text is beside it."""

    offset: int
    space_before: bool
    space_after: bool
    order: int
    role: Literal["single", "open", "close"] = "single"
    key: object = None
    firm: bool = False
    wraps: bool = False  # one end of a pair that has text inside
    unit: int = 0  # the number of source units before it


class Unit(NamedTuple):
    """A span of text: the core of a whitespace word (part 0), or punctuation before (-1) or after it (1)."""

    start: int
    end: int
    word: int
    part: int


@dataclass(slots=True)
class Node:
    """A single mark, or a pair with its children; `start` and `end` delimit the source units inside it."""

    opening: Slot
    closing: Slot
    start: int
    end: int
    children: list[Node] = field(default_factory=list)


def reinsert(source: str, slots: Sequence[Slot], target: str, links: Links) -> list[str | int]:
    """The target text in pieces, with the number of each mark at its position."""
    return _Layout(source, slots, target, links).pieces() if slots else [target]


def split_units(text: str) -> list[Unit]:
    """The units of a text."""
    units = []
    for number, word in enumerate(re.finditer(r"\S+", text)):
        start, end = word.span()
        core = re.search(r"\w", word[0])
        last = re.search(r"\w", word[0][::-1])
        left, right = (start + core.start(), end - last.start()) if core and last else (start, end)
        spans = ((start, left, -1), (left, right, 0), (right, end, 1))
        units += [Unit(a, b, number, part) for a, b, part in spans if a < b]
    return units


def build_tree(slots: Sequence[Slot], units: Sequence[Unit]) -> Node:
    """Match the ends of pairs; an end without a partner is a single mark."""
    starts, ends = [unit.start for unit in units], [unit.end for unit in units]
    edge = Slot(0, True, True, -1)
    stack = [Node(edge, edge, 0, len(units))]
    for slot in slots:
        slot.unit = after = bisect_left(starts, slot.offset)
        if slot.role == "open" and (slot.firm or len(stack) <= MAX_DEPTH):
            stack.append(Node(slot, slot, bisect_right(ends, slot.offset), after))
        elif slot.role == "close" and (depth := _partner(stack, slot)):
            _flatten_open(stack, depth)
            pair = stack.pop()
            pair.closing, pair.end = slot, max(pair.start, after)
            pair.opening.wraps = slot.wraps = pair.start < pair.end
            stack[-1].children.append(pair)
        else:
            stack[-1].children.append(Node(slot, slot, after, after))
    _flatten_open(stack, 0)
    return stack[0]


def _partner(stack: Sequence[Node], closing: Slot) -> int:
    for depth in range(len(stack) - 1, 0, -1):
        opening = stack[depth].opening
        if (opening.key, opening.firm) == (closing.key, closing.firm):
            return depth
        if opening.firm:
            break
    return 0


def _flatten_open(stack: list[Node], depth: int) -> None:
    """Turn all open pairs above `depth` into single marks, and move their children to the node below."""
    while len(stack) > depth + 1:
        node = stack.pop()
        inside, node.children, node.end = node.children, [], node.start
        stack[-1].children += [node, *inside]


class _Layout:
    def __init__(self, source: str, slots: Sequence[Slot], target: str, links: Links) -> None:
        self.target = target
        self.units = split_units(target)
        source_units = split_units(source)
        self.tree = build_tree(slots, source_units)
        self.aligned = _align(source_units, self.units, links)

    def pieces(self) -> list[str | int]:
        items = list(self._emit(self.tree, 0, len(self.units)))
        return list(self._render(items))

    def _emit(self, node: Node, low: int, high: int) -> Iterator[int | Slot]:
        """Target units (as numbers) and marks in their final order."""
        done = low
        for start, end, child in self._arrange(node, low, high):
            yield from range(done, start)
            yield child.opening
            if child.closing is not child.opening:
                yield from self._emit(child, start, end)
                yield child.closing
            done = end
        yield from range(done, high)

    def _arrange(self, node: Node, low: int, high: int) -> list[tuple[int, int, Node]]:
        """Spans of target units for a node's children, disjoint and within [low, high)."""
        spans = self._wrap([child for child in node.children if child.start < child.end], node, low, high)
        placed = [(*span, child) for child, span in spans]
        wrapped = {id(child) for child, _ in spans}
        for child in node.children:
            if id(child) not in wrapped:
                gap = self._gap(child, node, low, high)
                for other, (start, end) in spans:
                    if start < gap < end:
                        gap = end if other.opening.order < child.opening.order else start
                placed.append((gap, gap, child))
        return sorted(placed, key=lambda item: (item[0], item[1], item[2].opening.order))

    def _wrap(self, pairs: Sequence[Node], node: Node, low: int, high: int) -> list[tuple[Node, tuple[int, int]]]:
        """For each pair, the longest run of target units that are aligned with its inside and not with its outside."""
        if len(pairs) == 1 and (pairs[0].start, pairs[0].end) == (node.start, node.end) and low < high:
            return [(pairs[0], (low, high))]
        inside = {unit: pair for pair in pairs for unit in range(pair.start, pair.end)}
        owner: dict[int, Node | None] = {}
        for unit in range(node.start, node.end):
            for place in self.aligned[unit]:
                if low <= place < high and owner.get(place) is None:
                    owner[place] = inside.get(unit)
        runs: dict[int, list[int]] = {}
        for run in _runs(owner):
            pair = owner[run[0]]
            if pair is not None and len(run) > len(runs.get(id(pair), ())):
                runs[id(pair)] = run
        self._place_unaligned([pair for pair in pairs if id(pair) not in runs], runs, node, low, high)
        return [(pair, (runs[id(pair)][0], runs[id(pair)][-1] + 1)) for pair in pairs if id(pair) in runs]

    def _place_unaligned(
        self, unaligned: Sequence[Node], runs: dict[int, list[int]], node: Node, low: int, high: int
    ) -> None:
        """Give each pair without aligned words the nearest word that no other pair has, if there is one."""
        if not unaligned:
            return
        taken = {place for run in runs.values() for place in range(run[0], run[-1] + 1)}
        free = [place for place in range(low, high) if self.units[place].part == 0 and place not in taken]
        for pair in unaligned:
            gap = self._gap(pair, node, low, high)
            right = bisect_left(free, gap)
            near = free[max(right - 1, 0) : right + 1]
            if near:
                place = min(near, key=lambda each: abs(each + 0.4 - gap))  # of equals the one after the gap
                free.remove(place)
                runs[id(pair)] = [place]

    def _gap(self, child: Node, node: Node, low: int, high: int) -> int:
        """The target gap for a mark: after the word aligned with the word before it, or before that of the next one."""
        before, after = child.opening, child.closing
        if child.start <= node.start:
            return low
        if child.end >= node.end and not before.space_before:
            return high
        following = self._nearest(range(child.start - 1, node.start - 1, -1), low, high)
        preceding = self._nearest(range(child.end, node.end), low, high)
        lefts = {min(place + 1 + (after.space_after and self._has(place, 1)), high) for place in following}
        rights = {max(place - (before.space_before and self._has(place, -1)), low) for place in preceding}
        if lefts & rights:
            return min(lefts & rights)
        glued_right = before.space_before and not after.space_after
        if rights and (glued_right or not lefts):
            return min(rights)
        return max(lefts, default=high)

    def _nearest(self, source_units: Iterable[int], low: int, high: int) -> list[int]:
        inside = ([place for place in self.aligned[unit] if low <= place < high] for unit in source_units)
        return next((places for places in inside if places), [])

    def _has(self, place: int, part: Literal[-1, 1]) -> bool:
        """Whether a unit is the core of a word with punctuation on that side; a spaced mark is put outside of that."""
        core = self.units[place]
        return core.part == 0 and 0 <= place + part < len(self.units) and self.units[place + part].word == core.word

    def _is_space(self, gap: int) -> bool:
        return 0 < gap < len(self.units) and self.units[gap - 1].word != self.units[gap].word

    # White space beside marks: as in the source, and every space of the translation is kept

    def _render(self, items: Sequence[int | Slot]) -> Iterator[str | int]:
        marks: list[Slot] = []
        unit = 0
        for item in items:
            if isinstance(item, Slot):
                marks.append(item)
                continue
            yield from self._render_gap(marks, item)
            yield self.target[self.units[item].start : self.units[item].end]
            marks, unit = [], item + 1
        yield from self._render_gap(marks, unit)

    def _render_gap(self, marks: Sequence[Slot], gap: int) -> Iterator[str | int]:
        needed = self._is_space(gap)
        spaces = [False] * (len(marks) + 1)
        if marks:
            spaces[0] = gap > 0 and self._space_beside(marks[0], -1, gap)
            spaces[-1] = gap < len(self.units) and self._space_beside(marks[-1], 1, gap)
            spaces[1:-1] = map(_space_between, marks, marks[1:])
        if needed and not any(spaces):
            spaces[next((n for n, mark in enumerate(marks) if mark.role == "open"), len(marks))] = True
        for space, mark in zip(spaces, [*marks, None], strict=True):
            if space:
                yield " "
            if mark:
                yield mark.order

    def _space_beside(self, mark: Slot, side: Literal[-1, 1], gap: int) -> bool:
        """Whether there is white space between a mark and the unit on that side of it."""
        stated = mark.space_before if side < 0 else mark.space_after
        outer = "open" if side < 0 else "close"
        if mark.wraps:
            return self._is_space(gap) if mark.role == outer else stated
        beside = (gap - 1, mark.unit - 1) if side < 0 else (gap, mark.unit)
        glued_to_it = beside[0] in self.aligned.get(beside[1], ())
        return stated or (self._is_space(gap) and not glued_to_it)


def _space_between(one: Slot, other: Slot) -> bool:
    """Whether there is white space between two marks: as in the source if they were neighbours there."""
    if other.order == one.order + 1 and one.offset == other.offset:
        return one.space_after
    if one.role == other.role == "single":
        return one.space_after or other.space_before
    return one.space_after and other.space_before


def _runs(owner: dict[int, Node | None]) -> Iterator[list[int]]:
    """Consecutive places with the same owner."""
    run: list[int] = []
    for place in sorted(owner):
        if run and owner[place] is not owner[run[-1]]:
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _align(source: Sequence[Unit], target: Sequence[Unit], links: Links) -> dict[int, list[int]]:
    """Links between units: word core with core, leading with leading and trailing with trailing punctuation."""
    words = [units[-1].word + 1 if units else 0 for units in (source, target)]
    usable = {(i, j) for i, j in links if 0 <= i < words[0] and 0 <= j < words[1]}
    if not usable and all(words):  # no links: assume the same word order
        usable = {(i, i * words[1] // words[0]) for i in range(words[0])}
        usable |= {(j * words[0] // words[1], j) for j in range(words[1])}
    places = {(unit.word, unit.part): number for number, unit in enumerate(target)}
    linked = defaultdict(list)
    for i, j in sorted(usable):
        linked[i].append(j)
    return {
        number: [places[j, unit.part] for j in linked[unit.word] if (j, unit.part) in places]
        for number, unit in enumerate(source)
    }
