"""The same search on a GPU, a whole step of it captured as one graph and replayed: no Python between two tokens.

A step of a small model is hundreds of kernels that each take microseconds, less than Python needs to launch them. So
everything from the last tokens to the next ones (the model, the choice, what the hypotheses remember) is captured once
for each shape that occurs and replayed from then on. Every step leaves what it decided in a log, which the search reads
some steps at a time; what was decoded of a sentence behind its end is ignored. What is chosen, and how, is the search's
own code (choosing.py): the answers are those of the search without graphs.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from threading import RLock
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.cache import rounded
from regard.inference.decoding.candidates import Candidates, Grid, Turn
from regard.inference.decoding.search import DecoderState, Ensemble, Search, Steps

LOOK = 8  # steps between two looks at what was decided
WARM = 2  # steps before a capture, in which libraries set themselves up
MOST = 16  # graphs that wait for another search of their shape

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]


@runtime_checkable
class FixedState(DecoderState, Protocol):
    """A decoding in progress that can be moved to storage of fixed shape."""

    def room(self, width: int, steps: int) -> Hashable:
        """The size of the storage for so many hypotheses and steps."""
        ...

    def restart(self, state: Any) -> None:
        """Begin anew, in a state of fixed shape, with what `state` has read."""
        ...


@runtime_checkable
class FixedSteps(Steps, Protocol):
    """A model that can be decoded without any shape changing from step to step."""

    def fixed(self, state: Any, width: int, room: Any) -> FixedState:
        """An empty state of fixed shape for what `state` has read."""
        ...


def captured(steps: Steps, device: torch.device) -> Steps:
    """The same model, its search captured where that is possible: on a GPU, unless its state has no fixed shape."""
    possible = device.type == "cuda" and all(isinstance(member, FixedSteps) for member in _members(steps))
    return Captured(cast(FixedSteps, steps)) if possible else steps


def cuda_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture what a step does on the device; the result does it again."""
    with torch.cuda.device(device):
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM):
                step()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may go on meanwhile
            step()
    return graph.replay


class Captured:
    """A model that runs searches by itself, as a `Runner`; `capture` turns a step into something that repeats it."""

    def __init__(self, steps: FixedSteps, capture: Capture = cuda_graph):
        self.steps, self.capture = steps, capture
        self.idle: list[tuple[Hashable, Loop]] = []
        self.lock = RLock()  # a search may end, and hand its loop back, while another one begins
        self.failed = False

    def start(self, source: Int[Tensor, "S L"], source_mask: Tensor) -> DecoderState:
        return self.steps.start(source, source_mask)

    def step(self, tokens: Int[Tensor, "S W"], state: DecoderState) -> Float[Tensor, "S W V"]:
        return self.steps.step(tokens, state)

    @torch.inference_mode()
    def begin(self, search: Search) -> Replays | None:
        """Take over a search, unless its caller must be asked before a beam can go on."""
        if self.failed or (search.stop is not None and search.width > 1):
            return None
        start = Start(search)
        key = start.key
        loop = self._taken(key) or self._captured(start)
        if loop is None:
            search.state.keep(torch.arange(len(search.limits), device=search.tokens.device))
            return None
        loop.restart(start)
        replays = Replays(loop, len(search.limits), max(search.limits))
        weakref.finalize(replays, self._give_back, key, loop)  # also when somebody stops listening
        return replays

    def _captured(self, start: Start) -> Loop | None:
        """A new loop; None where there is no room for one, or if a kernel of this model cannot be captured here."""
        try:
            return Loop(self.steps, start, self.capture)
        except torch.OutOfMemoryError:  # storage that grows needs less
            with self.lock:
                self.idle.clear()
        except RuntimeError as error:
            self.failed = True
            warnings.warn(f"the search goes on without graphs, which failed: {error}", stacklevel=2)
        return None

    def _taken(self, key: Hashable) -> Loop | None:
        with self.lock:
            for place, (known, loop) in enumerate(self.idle):
                if known == key:
                    del self.idle[place]
                    return loop
        return None

    def _give_back(self, key: Hashable, loop: Loop) -> None:
        with self.lock:
            self.idle.append((key, loop))
            del self.idle[:-MOST]


class Start:
    """Where a search stands before its first step, with sentences added so that their number is a power of four."""

    def __init__(self, search: Search):
        settings, device = search.settings, search.tokens.device
        count, limit = len(search.limits), max(search.limits)
        self.sentences, self.width, self.steps = power_of_four(count), search.width, rounded(limit)
        rows = torch.arange(self.sentences, device=device).clamp(max=count - 1)
        if self.sentences > count:
            search.state.keep(rows)
        self.state, self.choosing, self.vocabulary = cast(FixedState, search.state), search.choosing, search.vocabulary
        self.tokens = search.tokens[rows]
        prompt = search.prompt[rows] if settings.repetition_penalty != 1 else self.tokens[:, :0]
        longer = prompt[:, -1:].expand(-1, rounded(prompt.shape[1]) - prompt.shape[1])  # said before, so nothing new
        self.prompt = torch.cat([prompt, longer], dim=1)
        self.forced = self._forced(search, rows) if search.prefixes else None
        self.draws = self._draws(search, limit, rows) if settings.sample else None
        self.room = self.state.room(self.width, self.steps)
        what = settings.model_dump_json(exclude={"seed", "max_length", "max_ratio", "max_extra", "context"})
        self.key = (
            self.sentences, self.width, self.steps, self.room, self.prompt.shape[1], self.forced is None,
            self.vocabulary, what,
        )  # fmt: skip

    def _forced(self, search: Search, rows: Tensor) -> Int[Tensor, "S T"]:
        """The token that must come at each step; -1 where any may."""
        assert search.prefixes is not None
        table = torch.full((len(search.prefixes), self.steps), -1)
        for row, prefix in enumerate(search.prefixes):
            table[row, : len(prefix)] = torch.tensor(prefix[: self.steps], dtype=torch.long)
        return table.to(rows.device)[rows]

    def _draws(self, search: Search, limit: int, rows: Tensor) -> Float[Tensor, "S T"]:
        """The chances of all steps that may come."""
        table = torch.zeros(len(search.noise), self.steps)
        table[:, :limit] = torch.tensor([[noise.random() for _ in range(limit)] for noise in search.noise])
        return table.to(rows.device)[rows]


class Loop:
    """Storage for searches of one shape, and the step that changes it."""

    def __init__(self, steps: FixedSteps, start: Start, capture: Capture):
        self.steps, self.choosing = steps, start.choosing
        self.state = steps.fixed(start.state, start.width, start.room)
        self.tokens = start.tokens.expand(-1, start.width).clone()
        self.totals = torch.empty(start.sentences, start.width, device=self.tokens.device)
        self.length = torch.zeros((), dtype=torch.long, device=self.tokens.device)
        self.history = self.tokens[:, :, None].repeat(1, 1, start.steps if self.choosing.remembers else 0)
        self.prompt, self.forced, self.draws = (
            None if part is None else part.clone() for part in (start.prompt, start.forced, start.draws)
        )
        self.vocab = 0
        self.restart(start)
        decided = self._decide()  # shows how much there is to be noted
        ways = decided.candidates.total.shape[1] + start.width
        self.total = torch.zeros(start.steps, start.sentences, ways, device=self.tokens.device)
        self.way = torch.zeros(start.steps, start.sentences, ways, dtype=torch.long, device=self.tokens.device)
        # a graph reads weights where they were when it was captured: they must stay there
        self.weights = [tensor.detach() for model in _members(steps) for tensor in _tensors(model)]
        self.replay = capture(self.step, self.tokens.device)

    def restart(self, start: Start) -> None:
        """Begin another search of the same shape."""
        self.state.restart(start.state)
        self.tokens.copy_(start.tokens.expand_as(self.tokens))
        self.totals.fill_(-math.inf)
        self.totals[:, 0] = 0.0  # one hypothesis, and no other yet
        self.length.zero_()
        self.history.fill_(self.vocab)  # no token
        for mine, new in ((self.prompt, start.prompt), (self.forced, start.forced), (self.draws, start.draws)):
            if mine is not None and new is not None:
                mine.copy_(new)

    def step(self) -> None:
        """One step of all sentences, noted in the log."""
        candidates, _, live = self._decide()
        where = self.length[None]
        total, origin, token = (torch.cat(parts, dim=1) for parts in zip(candidates, live, strict=True))
        self.total.index_copy_(0, where, total[None])
        self.way.index_copy_(0, where, (origin * self.vocab + token)[None])
        self.state.reorder(live.origin)
        if self.history.shape[2]:
            moved = self.history.gather(1, live.origin[:, :, None].expand_as(self.history))
            self.history.copy_(moved.index_copy(2, where, live.token[:, :, None]))
        self.tokens.copy_(live.token)
        self.totals.copy_(live.total)
        self.length += 1

    def _decide(self) -> Turn:
        logits = self.steps.step(self.tokens, cast(DecoderState, self.state))
        self.vocab = logits.shape[-1]
        grid = Grid(self.totals, self.history, self.length, cast(Tensor, self.prompt))
        now = self.length[None]
        forced = None if self.forced is None else self.forced.index_select(1, now)[:, 0]
        draws = None if self.draws is None else self.draws.index_select(1, now)
        candidates = self.choosing(logits, grid, forced, draws)
        ended = candidates.token == self.choosing.end
        return Turn(candidates, ended, self.choosing.live(candidates, ended))

    def read(self, first: int, last: int, sentences: int) -> Iterator[Turn]:
        """What these steps decided, on the host: this is where it waits for the device."""
        total, way = (log[first:last, :sentences].cpu() for log in (self.total, self.way))
        origin, token = way // self.vocab, way % self.vocab
        ended, count = token == self.choosing.end, total.shape[2] - self.tokens.shape[1]
        for step in range(last - first):
            parts = total[step], origin[step], token[step]
            candidates = Candidates(*(part[:, :count] for part in parts))
            yield Turn(candidates, ended[step, :, :count], Candidates(*(part[:, count:] for part in parts)))


class Replays:
    """One search on a loop."""

    def __init__(self, loop: Loop, sentences: int, limit: int):
        self.loop, self.sentences, self.limit, self.taken = loop, sentences, limit, 0

    @torch.inference_mode()
    def turns(self) -> list[Turn]:
        """Take some steps, none behind the longest answer's limit, and read what they decided."""
        first, self.taken = self.taken, min(self.taken + LOOK, self.limit)
        for _ in range(first, self.taken):
            self.loop.replay()
        return list(self.loop.read(first, self.taken, self.sentences))


def power_of_four(count: int) -> int:
    """The smallest one that is at least `count`: few sizes occur, and a GPU hardly notices the rows that are added."""
    return 4 ** (((count - 1).bit_length() + 1) // 2)


def _members(steps: Steps) -> list[Steps]:
    return list(steps.members) if isinstance(steps, Ensemble) else [steps]


def _tensors(model: object) -> Iterator[Tensor]:
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
