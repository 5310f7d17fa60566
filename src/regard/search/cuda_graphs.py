"""The same search on a GPU with every step captured as a CUDA graph: no Python runs between two tokens.

A step of a small model is hundreds of kernels of a few microseconds each, less than Python needs to launch them. So
everything from the last tokens to the next ones (the model, candidate selection, the history) is captured once for each
shape that occurs, and replayed from then on. Every step writes its decision to a log on the GPU, which the search reads
every few steps; tokens decoded after the end of a sentence are ignored. Candidates are selected by the search's own
code (candidates.py), so the answers are those of the search without graphs.
"""

from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator
from threading import RLock
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention.cache import round_up
from regard.attention.places import hook_tables
from regard.search.candidates import Candidates, Grid, StepDecision
from regard.search.protocols import Ensemble, StaticModel, StaticState, StepModel
from regard.search.search import Search

STEPS_PER_READ = 8  # steps between two reads of the log
WARMUP_STEPS = 2  # steps before a capture, in which libraries initialise themselves
MAX_IDLE_LOOPS = 16  # captured loops that are kept for another search of their shape

Capture = Callable[[Callable[[], None], torch.device], Callable[[], None]]


def with_cuda_graphs(model: StepModel, device: torch.device) -> StepModel:
    """The same model with its searches captured; the model itself on a CPU, or if its state has no fixed shape."""
    possible = device.type == "cuda" and all(isinstance(member, StaticModel) for member in _members(model))
    return GraphModel(cast(StaticModel, model)) if possible else model


def cuda_graph(step: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture what a step does on the device; calling the result does it again."""
    with torch.cuda.device(device):
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARMUP_STEPS):
                step()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
            step()
    return graph.replay


class GraphModel:
    """A model whose searches are captured, as a `SearchRunner`; `capture` turns a step into a function to replay."""

    def __init__(self, model: StaticModel, capture: Capture = cuda_graph):
        self.model, self.capture = model, capture
        self.idle: list[tuple[Hashable, CapturedLoop]] = []
        self.lock = RLock()  # a search may end, and return its loop, while another one begins
        self.failed = False
        parts = (part for member in _members(model) if isinstance(member, nn.Module) for part in member.modules())
        self.hooks = hook_tables(parts)

    def start(self, *source: Tensor) -> Any:
        """The model's own start, with whatever source it takes."""
        return cast(Any, self.model).start(*source)

    def step(self, tokens: Int[Tensor, "S W"], state: Any) -> Float[Tensor, "S W V"]:
        return self.model.step(tokens, state)

    @torch.inference_mode()
    def begin(self, search: Search) -> ReplayedSearch | None:
        """Take over a search, unless it has a rule, terms, or is a beam search with a `stop` callback, which must be
        asked at every step, or the model is being recorded or changed: a captured step runs no hooks."""
        asked = search.selection.rule is not None or (search.stop is not None and search.width > 1)
        asked |= search.terms is not None
        if self.failed or asked or any(self.hooks):
            return None
        start = PaddedStart(search)
        key = start.key
        loop = self._take_idle(key) or self._capture(start)
        if loop is None:
            search.state.keep(torch.arange(len(search.limits), device=search.tokens.device))
            return None
        loop.reset(start)
        replayed = ReplayedSearch(loop, len(search.limits), max(search.limits))
        weakref.finalize(replayed, self._give_back, key, loop)  # also when a caller abandons the search
        return replayed

    def _capture(self, start: PaddedStart) -> CapturedLoop | None:
        """A new loop; None if there is no memory for one, or if a kernel of this model cannot be captured here."""
        try:
            return CapturedLoop(self.model, start, self.capture)
        except torch.OutOfMemoryError:  # the growing caches of a search without graphs need less
            with self.lock:
                self.idle.clear()
        except RuntimeError as error:
            self.failed = True
            warnings.warn(f"CUDA graphs failed, so the search continues without them: {error}", stacklevel=2)
        return None

    def _take_idle(self, key: Hashable) -> CapturedLoop | None:
        with self.lock:
            for place, (known, loop) in enumerate(self.idle):
                if known == key:
                    del self.idle[place]
                    return loop
        return None

    def _give_back(self, key: Hashable, loop: CapturedLoop) -> None:
        with self.lock:
            self.idle.append((key, loop))
            del self.idle[:-MAX_IDLE_LOOPS]


class PaddedStart:
    """A search before its first step, with sentences added until their number is a power of four."""

    def __init__(self, search: Search):
        settings, device = search.settings, search.tokens.device
        count, limit = len(search.limits), max(search.limits)
        self.sentences, self.width, self.steps = power_of_four(count), search.width, round_up(limit)
        rows = torch.arange(self.sentences, device=device).clamp(max=count - 1)
        if self.sentences > count:
            search.state.keep(rows)
        self.state, self.selection = cast(StaticState, search.state), search.selection
        self.tokens = search.tokens[rows]
        prompt = search.prompt[rows] if settings.repetition_penalty != 1 else self.tokens[:, :0]
        padding = prompt[:, -1:].expand(
            -1, round_up(prompt.shape[1]) - prompt.shape[1]
        )  # repeats a token of the prompt
        self.prompt = torch.cat([prompt, padding], dim=1)
        self.forced = self._forced(search, rows) if search.prefixes else None
        self.draws = self._draws(search, limit, rows) if settings.sample else None
        self.size = self.state.storage_size(self.width, self.steps)
        what = settings.model_dump_json(exclude={"seed", "max_length", "max_ratio", "max_extra", "context"})
        self.key = (
            self.sentences, self.width, self.steps, self.size, self.prompt.shape[1], self.forced is None,
            search.vocabulary, what,
        )  # fmt: skip

    def _forced(self, search: Search, rows: Tensor) -> Int[Tensor, "S T"]:
        """The token that must come at each step; -1 where any may come."""
        assert search.prefixes is not None
        table = torch.full((len(search.prefixes), self.steps), -1)
        for row, prefix in enumerate(search.prefixes):
            table[row, : len(prefix)] = torch.tensor(prefix[: self.steps], dtype=torch.long)
        return table.to(rows.device)[rows]

    def _draws(self, search: Search, limit: int, rows: Tensor) -> Float[Tensor, "S T"]:
        """The random numbers of all steps, drawn in advance."""
        table = torch.zeros(len(search.noise), self.steps)
        table[:, :limit] = torch.tensor([[noise.random() for _ in range(limit)] for noise in search.noise])
        return table.to(rows.device)[rows]


class CapturedLoop:
    """Storage for searches of one shape, and the captured step that changes it."""

    def __init__(self, model: StaticModel, start: PaddedStart, capture: Capture):
        self.model, self.selection = model, start.selection
        self.state = model.static_state(start.state, start.width, start.size)
        self.tokens = start.tokens.expand(-1, start.width).clone()
        self.totals = torch.empty(start.sentences, start.width, device=self.tokens.device)
        self.length = torch.zeros((), dtype=torch.long, device=self.tokens.device)
        self.history = self.tokens[:, :, None].repeat(1, 1, start.steps if self.selection.uses_history else 0)
        self.prompt, self.forced, self.draws = (
            None if part is None else part.clone() for part in (start.prompt, start.forced, start.draws)
        )
        self.vocab = 0
        self.reset(start)
        decided = self._decide()  # shows the shape of what a step logs
        ways = decided.candidates.total.shape[1] + start.width
        self.total_log = torch.zeros(start.steps, start.sentences, ways, device=self.tokens.device)
        self.way_log = torch.zeros(start.steps, start.sentences, ways, dtype=torch.long, device=self.tokens.device)
        # A graph reads the weights at their addresses at capture time, so they must stay alive and in place.
        self.weights = [tensor.detach() for member in _members(model) for tensor in _tensors(member)]
        self.replay = capture(self.step, self.tokens.device)

    def reset(self, start: PaddedStart) -> None:
        """Begin another search of the same shape."""
        self.state.reset_from(start.state)
        self.tokens.copy_(start.tokens.expand_as(self.tokens))
        self.totals.fill_(-math.inf)
        self.totals[:, 0] = 0.0  # one hypothesis; the others do not exist yet
        self.length.zero_()
        self.history.fill_(self.vocab)  # no token
        for mine, new in ((self.prompt, start.prompt), (self.forced, start.forced), (self.draws, start.draws)):
            if mine is not None and new is not None:
                mine.copy_(new)

    def step(self) -> None:
        """One step of all sentences; its decision is written to the log."""
        candidates, _, live = self._decide()
        where = self.length[None]
        total, origin, token = (torch.cat(parts, dim=1) for parts in zip(candidates, live, strict=True))
        self.total_log.index_copy_(0, where, total[None])
        self.way_log.index_copy_(0, where, (origin * self.vocab + token)[None])
        self.state.reorder(live.origin)
        if self.history.shape[2]:
            moved = self.history.gather(1, live.origin[:, :, None].expand_as(self.history))
            self.history.copy_(moved.index_copy(2, where, live.token[:, :, None]))
        self.tokens.copy_(live.token)
        self.totals.copy_(live.total)
        self.length += 1

    def _decide(self) -> StepDecision:
        logits = self.model.step(self.tokens, self.state)
        self.vocab = logits.shape[-1]
        grid = Grid(self.totals, self.history, self.length, cast(Tensor, self.prompt))
        now = self.length[None]
        forced = None if self.forced is None else self.forced.index_select(1, now)[:, 0]
        draws = None if self.draws is None else self.draws.index_select(1, now)
        candidates = self.selection(logits, grid, forced, draws)
        ended = candidates.token == self.selection.end
        return StepDecision(candidates, ended, self.selection.live(candidates, ended))

    def read(self, first: int, last: int, sentences: int) -> Iterator[StepDecision]:
        """The decisions of these steps, on the host; this is where the host waits for the GPU."""
        total, way = (log[first:last, :sentences].cpu() for log in (self.total_log, self.way_log))
        origin, token = way // self.vocab, way % self.vocab
        ended, count = token == self.selection.end, total.shape[2] - self.tokens.shape[1]
        for step in range(last - first):
            parts = total[step], origin[step], token[step]
            candidates = Candidates(*(part[:, :count] for part in parts))
            yield StepDecision(candidates, ended[step, :, :count], Candidates(*(part[:, count:] for part in parts)))


class ReplayedSearch:
    """One search that runs on a captured loop."""

    def __init__(self, loop: CapturedLoop, sentences: int, limit: int):
        self.loop, self.sentences, self.limit, self.taken = loop, sentences, limit, 0

    @torch.inference_mode()
    def decisions(self) -> list[StepDecision]:
        """Replay some steps, none beyond the limit of the longest answer, and read their decisions."""
        first, self.taken = self.taken, min(self.taken + STEPS_PER_READ, self.limit)
        for _ in range(first, self.taken):
            self.loop.replay()
        return list(self.loop.read(first, self.taken, self.sentences))


def power_of_four(count: int) -> int:
    """The smallest one that is at least `count`: few shapes occur, and a GPU hardly notices the added rows."""
    return 4 ** (((count - 1).bit_length() + 1) // 2)


def _members(model: StepModel) -> list[StepModel]:
    return list(model.members) if isinstance(model, Ensemble) else [model]


def _tensors(model: object) -> Iterator[Tensor]:
    if isinstance(model, nn.Module):
        yield from model.parameters()
        yield from model.buffers()
