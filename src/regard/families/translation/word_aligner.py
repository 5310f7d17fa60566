"""Statistical word alignment: which tokens of a sentence pair translate each other, learnt from the corpus alone.

The model is a hidden Markov model. Every target token comes from one source token or from none, and the source
positions form a Markov chain of jumps (Vogel et al. 1996; empty states as in Och and Ney 2003). Training starts with
IBM model 1 (Brown et al. 1993), which is the same model with uniform jumps. Both directions are trained together: each
counts a link by the product of both posteriors (Liang et al. 2006, "Alignment by Agreement").
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from regard.data.text.pair_store import PairStore

ROUNDS_WITHOUT_JUMPS = 5
ROUNDS_WITH_JUMPS = 6
NOTHING = 0.2  # probability that a token comes from no token of the other side
ANY_JUMP = 0.1  # share of the jump probability that is spread evenly over all positions
LINKED = 0.5  # a link needs at least this geometric mean of both directions' posteriors
FLOOR = 1e-9  # the least probability of a pair of tokens, also of pairs never seen together

MOST_CELLS = 1 << 25  # token pairs to learn from, about 175,000 sentence pairs of 14 words; larger corpora are sampled
BATCH_CELLS = 1 << 18
UNSORTED = 1 << 22  # token pairs collected before duplicates are removed
WINDOW = 100_000  # sentence pairs whose links are held in memory at once

Links = Int[np.ndarray, "L 2"]  # positions (source, target)


class Posteriors(NamedTuple):
    """Posteriors of one direction, given both sentences; `jumps` are expected moves between given positions."""

    links: Float[np.ndarray, "B S T"]
    nothing: Float[np.ndarray, "B T"]
    first: Float[np.ndarray, "S"]
    jumps: Float[np.ndarray, "S S"]
    log_likelihood: float


def posteriors(
    chances: Float[np.ndarray, "B S T"],
    nothing: Float[np.ndarray, "B T"],
    first: Float[np.ndarray, "S"],
    moves: Float[np.ndarray, "S S"],
) -> Posteriors:
    """Forward-backward over T said tokens. Each of S given positions has two states: it says the token, or none does.

    `chances` is p(said token | given token), `nothing` p(said token | no token). After a token from nothing, the chain
    stays at its position. Each step is scaled to sum to 1; the product of the scales is the likelihood (Rabiner 1989,
    §V.A).
    """
    B, S, T = chances.shape
    by_token = (1 - NOTHING) * chances.transpose(2, 0, 1)  # [T B S]
    by_nothing = NOTHING * nothing.T[:, :, None]  # [T B 1]
    linked, idle = np.empty_like(by_token), np.empty_like(by_token)
    scale = np.empty_like(by_nothing)
    arrived = np.broadcast_to(first, (B, S))
    stayed = np.full((B, S), 1 / S, dtype=chances.dtype)
    for t in range(T):
        linked[t], idle[t] = arrived * by_token[t], stayed * by_nothing[t]
        scale[t] = (linked[t] + idle[t]).sum(axis=1, keepdims=True)
        linked[t] /= scale[t]
        idle[t] /= scale[t]
        stayed = linked[t] + idle[t]
        arrived = stayed @ moves

    jumps = np.zeros_like(moves)
    rest = np.ones((B, S), dtype=chances.dtype)  # backward: how well each position explains the later tokens
    for t in range(T - 1, -1, -1):
        explains_token, explains_nothing = by_token[t] * rest / scale[t], by_nothing[t] * rest / scale[t]
        linked[t] *= rest
        idle[t] *= rest
        if t:
            jumps += (linked[t - 1] + idle[t - 1]).T @ explains_token * moves
            rest = explains_token @ moves.T + explains_nothing
    return Posteriors(
        links=linked.transpose(1, 2, 0),
        nothing=idle.sum(axis=2).T,
        first=linked[0].sum(axis=0),
        jumps=jumps,
        log_likelihood=float(np.log(scale.astype(np.float64)).sum()),
    )


class Direction:
    """p(said sentence | given sentence): probabilities of token pairs, of tokens from nothing, and of jump widths."""

    def __init__(self, given: NDArray[np.int64], vocabulary: int, longest: int) -> None:
        """`given` is the given token of each pair in the table. All probabilities start uniform."""
        self.given, self.longest = given, longest
        self.table = np.append(1 / np.bincount(given)[given], FLOOR).astype(np.float32)
        self.nothing = np.full(vocabulary, 1 / vocabulary, dtype=np.float32)
        self.jumps = np.ones(2 * longest + 1)
        self._forget()

    def read(self, cells: Int[np.ndarray, "B S T"], said: Int[np.ndarray, "B T"]) -> Posteriors:
        """The posteriors of where the said tokens come from; `cells` are indices of token pairs in the table."""
        return posteriors(self.table[cells], self.nothing[said], *self.moves(cells.shape[1]))

    def moves(self, length: int) -> tuple[Float[np.ndarray, "S"], Float[np.ndarray, "S S"]]:
        """Probabilities of the first position, as a jump from before the sentence, and of every later move."""
        widths = np.arange(length) - np.arange(-1, length)[:, None]
        chances = self.jumps[np.clip(widths, -self.longest, self.longest) + self.longest]
        chances = (1 - ANY_JUMP) * chances / chances.sum(axis=1, keepdims=True) + ANY_JUMP / length
        return chances[0].astype(np.float32), chances[1:].astype(np.float32)

    def count(
        self,
        cells: Int[np.ndarray, "B S T"],
        said: Int[np.ndarray, "B T"],
        links: Float[np.ndarray, "B S T"],
        seen: Posteriors,
    ) -> None:
        """Add the expected counts of some sentences; `links` are the counts for the table."""
        length = cells.shape[1]
        np.add.at(self._pairs, cells.ravel(), links.ravel())
        np.add.at(self._nothing, said.ravel(), seen.nothing.ravel())
        widths = np.arange(length) - np.arange(length)[:, None]
        np.add.at(self._jumps, widths + self.longest, seen.jumps)
        self._jumps[self.longest + 1 : self.longest + 1 + length] += seen.first

    def learn(self, *, jumps: bool) -> None:
        """Set the probabilities that maximise the likelihood of the counts, and clear the counts."""
        totals = np.bincount(self.given, weights=self._pairs[:-1])
        self.table[:-1] = np.maximum(self._pairs[:-1] / np.maximum(totals, FLOOR)[self.given], FLOOR)
        self.nothing = np.maximum(self._nothing / max(self._nothing.sum(), FLOOR), FLOOR).astype(np.float32)
        if jumps:
            self.jumps = self._jumps + FLOOR
        self._forget()

    def _forget(self) -> None:
        self._pairs = np.zeros_like(self.table)
        self._nothing = np.zeros(len(self.nothing))
        self._jumps = np.zeros_like(self.jumps)


class Sentences(NamedTuple):
    """Sentence pairs of one shape, so that nothing is padded; `cells` are indices of token pairs in the tables."""

    rows: Int[np.ndarray, "B"]
    source: Int[np.ndarray, "B S"]
    target: Int[np.ndarray, "B T"]
    cells: Int[np.ndarray, "B S T"]


class Aligner:
    """Learns from an encoded corpus which tokens translate each other, and links tokens of this or another corpus."""

    def __init__(self, store: PairStore, vocabulary: int, poll: Callable[[], None] = lambda: None) -> None:
        """`vocabulary` is the number of different ids; `poll` is called between batches and may raise."""
        rows, self._poll = _sample(store), poll
        self._keys = _keys(store, rows)
        batches = list(self._batches(store, rows))
        longest = int(max(side.max() for side in store.lengths()))
        self.forward = Direction(self._keys >> 32, vocabulary, longest)
        self.backward = Direction(self._keys & 0xFFFFFFFF, vocabulary, longest)
        for number in range(ROUNDS_WITHOUT_JUMPS + ROUNDS_WITH_JUMPS):
            for batch in batches:
                self._count(batch)
            for direction in (self.forward, self.backward):
                direction.learn(jumps=number >= ROUNDS_WITHOUT_JUMPS - 1)

    def links(self, store: PairStore) -> Iterator[Links]:
        """For each pair the positions (source, target) of linked tokens.

        A target token without any link is linked to the source's end token, so that guided attention has a target for
        every token.
        """
        for begin in range(0, len(store), WINDOW):
            rows = np.arange(begin, min(begin + WINDOW, len(store)))
            found: dict[int, Links] = {}
            for batch in self._batches(store, rows):
                agreed = np.sqrt(self._agreement(batch)[0]) >= LINKED
                found.update(zip(batch.rows.tolist(), map(_positions, agreed), strict=True))
            sources, targets = (side[rows] - 1 for side in store.lengths())
            for row, S, T in zip(rows.tolist(), sources.tolist(), targets.tolist(), strict=True):
                yield found[row] if row in found else _positions(np.zeros((S, T), dtype=bool))

    def _agreement(self, batch: Sentences) -> tuple[Float[np.ndarray, "B S T"], Posteriors, Posteriors]:
        """The product of both directions' posteriors for each link, and the posteriors of each direction."""
        self._poll()
        there = self.forward.read(batch.cells, batch.target)
        back = self.backward.read(batch.cells.swapaxes(1, 2), batch.source)
        return there.links * back.links.swapaxes(1, 2), there, back

    def _count(self, batch: Sentences) -> None:
        links, there, back = self._agreement(batch)
        self.forward.count(batch.cells, batch.target, links, there)
        self.backward.count(batch.cells.swapaxes(1, 2), batch.source, links.swapaxes(1, 2), back)

    def _batches(self, store: PairStore, rows: NDArray[np.int64]) -> Iterator[Sentences]:
        """The pairs of `rows` with a token on both sides, in batches of one shape."""
        for some in _same_shape(store, rows):
            source, target = _ids(store, some)
            keys = _pair_keys(source, target)
            cells = np.searchsorted(self._keys, keys)
            cells[self._keys[np.minimum(cells, len(self._keys) - 1)] != keys] = len(self._keys)
            yield Sentences(some, source, target, cells.astype(np.int32))


def _sample(store: PairStore) -> NDArray[np.int64]:
    """All rows, or an even sample of a corpus that is too large to learn from in memory."""
    source, target = store.lengths()
    return np.arange(0, len(store), max(1, -(-int(source @ target) // MOST_CELLS)))


def _same_shape(store: PairStore, rows: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    source, target = (side[rows] - 1 for side in store.lengths())  # end tokens are not aligned
    cells = source * target
    order = np.lexsort((target, source))
    order = order[cells[order] > 0]
    shapes = np.stack([source[order], target[order]], axis=1)
    changes = np.flatnonzero((shapes[1:] != shapes[:-1]).any(axis=1)) + 1
    for same in np.split(order, changes):
        most = max(1, BATCH_CELLS // int(cells[same].max(initial=1)))
        for begin in range(0, len(same), most):
            yield rows[same[begin : begin + most]]


def _ids(store: PairStore, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sources, targets = zip(*(store.pair(row) for row in rows.tolist()), strict=True)
    return np.stack(sources)[:, :-1].astype(np.int64), np.stack(targets)[:, :-1].astype(np.int64)


def _pair_keys(source: Int[np.ndarray, "B S"], target: Int[np.ndarray, "B T"]) -> Int[np.ndarray, "B S T"]:
    return source[:, :, None] << 32 | target[:, None, :]


def _keys(store: PairStore, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every pair of tokens that occur in one sentence pair, sorted."""
    known, fresh, waiting = np.empty(0, dtype=np.int64), [], 0
    for some in _same_shape(store, rows):
        fresh.append(_pair_keys(*_ids(store, some)).ravel())
        waiting += len(fresh[-1])
        if waiting > UNSORTED:
            known, fresh, waiting = _distinct([known, *fresh]), [], 0
    return _distinct([known, *fresh])


def _distinct(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The distinct values, sorted; several times faster than `numpy.unique`, which hashes."""
    keys = np.sort(np.concatenate(parts))
    return keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys


def _positions(linked: Bool[np.ndarray, "S T"]) -> Links:
    to_the_end = ~linked.any(axis=0, keepdims=True)
    return np.argwhere(np.concatenate([linked, to_the_end]))
