"""Relative positions after Transformer-XL (Dai et al. 2019), as a bias of the scores."""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.config import Config
from regard.errors import ConfigError

Layout = Literal["interleaved", "halves"]


def sinusoidal(
    length: int, width: int, layout: Layout = "interleaved", *, to_end: bool = False
) -> Float[Tensor, "T D"]:
    """PE(t, 2i) = sin(t / 10000^(2i/D)), PE(t, 2i+1) = cos of the same (Vaswani 2017, §3.5).

    `halves` holds the same columns with all sines first and all cosines after, as Marian lays them out. With `to_end`
    the exponents run from 0 to 1 inclusive, i/(D/2-1), as in Whisper.
    """
    t = torch.arange(length, dtype=torch.float64)[:, None]
    last = max(width - 2, 1) if to_end else width
    angle = t / 10000 ** (torch.arange(0, width, 2, dtype=torch.float64) / last)  # [T, ceil(D/2)]
    sines, cosines = angle.sin(), angle.cos()[:, : width // 2]
    table = torch.empty(length, width, dtype=torch.float64)
    if layout == "interleaved":
        table[:, 0::2], table[:, 1::2] = sines, cosines
    else:
        table[:, : sines.shape[1]], table[:, sines.shape[1] :] = sines, cosines
    return table.float()


class SinusoidalPositions(nn.Module):
    """The sinusoidal table. It grows for longer sequences and is not saved with the model."""

    def __init__(self, width: int, layout: Layout = "interleaved", length: int = 256):
        super().__init__()
        self.width, self.layout = width, layout
        self.table: Tensor
        self.register_buffer("table", sinusoidal(length, width, layout), persistent=False)

    def forward(self, length: int, first: int | Int[Tensor, "*B"] = 0) -> Float[Tensor, "*B T D"]:
        if isinstance(first, Tensor):  # its value is on the device, so the caller has reserved enough positions
            return functional.embedding(_places(length, first), self.table)
        if first + length > len(self.table):
            self.reserve(2 * (first + length))
        return self.table[first : first + length]

    def reserve(self, length: int) -> None:
        """Extend the table to at least `length` positions."""
        if length > len(self.table):
            self.table = sinusoidal(length, self.width, self.layout).to(self.table)


class LinearPositions(nn.Module):
    """a·pos + b, the simplest encoding. It grows with the length, so long sequences have values unseen in training."""

    def __init__(self, width: int):
        super().__init__()
        self.slope = nn.Parameter(torch.full((width,), 0.01))
        self.offset = nn.Parameter(torch.zeros(width))

    def forward(self, length: int, first: int | Int[Tensor, ""] = 0) -> Float[Tensor, "T D"]:
        where = first + torch.arange(length, device=self.slope.device, dtype=self.slope.dtype)
        return where[:, None] * self.slope + self.offset


class LearnedPositions(nn.Module):
    """One learned vector per position, up to a fixed length."""

    def __init__(self, width: int, length: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(length, width))
        nn.init.normal_(self.table, std=0.02)

    def forward(self, length: int, first: int | Int[Tensor, "*B"] = 0) -> Float[Tensor, "*B T D"]:
        """The vectors of the positions from `first` on. `first` may differ by row, and is below 0 for left padding."""
        self._require(length if isinstance(first, Tensor) else first + length)
        if isinstance(first, Tensor):  # finished answers run past the last position until all have ended
            return functional.embedding(_places(length, first).clamp(0, len(self.table) - 1), self.table)
        return self.table[first : first + length]

    def counted(self, real: Bool[Tensor, "B T"], before: int) -> Float[Tensor, "B T D"]:
        """The vectors of tokens whose positions count real tokens only: the first real token has position `before` + 1,
        and padding on either side has position `before`."""
        self._require(before + 1 + real.shape[1])
        return functional.embedding(real.cumsum(1) * real + before, self.table)

    def _require(self, positions: int) -> None:
        if positions > len(self.table):
            raise ValueError(
                f"position {positions} asked for, but only {len(self.table)} were learned; "
                "raise max_length, or use sinusoidal or rotary positions"
            )


def _places(length: int, first: Int[Tensor, "*B"]) -> Int[Tensor, "*B T"]:
    return first[..., None] + torch.arange(length, device=first.device)


class Added(nn.Module):
    """Positions added to the features (Vaswani 2017)."""

    def __init__(self, positions: nn.Module):
        super().__init__()
        self.positions = positions

    def forward(self, x: Float[Tensor, "B T D"], first: int | Int[Tensor, ""] = 0) -> Float[Tensor, "B T D"]:
        return x + self.positions(x.shape[1], first).to(x.dtype)


class Concatenated(nn.Module):
    """Positions concatenated with the features, so that content and position stay separate, and projected to D."""

    def __init__(self, positions: nn.Module, width: int):
        super().__init__()
        self.positions, self.mix = positions, nn.Linear(2 * width, width)

    def forward(self, x: Float[Tensor, "B T D"], first: int | Int[Tensor, ""] = 0) -> Float[Tensor, "B T D"]:
        where = self.positions(x.shape[1], first).to(x.dtype)
        return self.mix(torch.cat([x, where.expand_as(x)], dim=-1))


class RotaryScaling(Config):
    """How rotary positions are extended beyond the length that a model was first trained on.

    `linear` divides all angles by `factor` (Chen 2023). `dynamic` raises the base for texts longer than the model's
    `max_length`. `llama3` and `yarn` (Peng 2023) divide only the angles of slow rotations, which turn less than `slow`
    times in the original length. Rotations that turn more than `fast` times stay, with a ramp in between.
    """

    kind: Literal["linear", "dynamic", "llama3", "yarn"]
    factor: float = Field(gt=0)
    original_length: int | None = Field(None, gt=0)  # None: the model's max_length
    slow: float = Field(1.0, gt=0)
    fast: float = Field(32.0, gt=0)
    whole: bool = True  # yarn: round the ends of the ramp to whole features
    attention_factor: float | None = None  # yarn: factor of queries and of keys; None: 1 + ln(factor) / 10

    @model_validator(mode="after")
    def _check(self) -> "RotaryScaling":
        if self.kind == "dynamic" and self.original_length is not None:
            raise ConfigError("rotary_scaling.original_length: dynamic scaling begins at max_length; leave it out")
        if self.kind in ("llama3", "yarn") and self.fast <= self.slow:
            raise ConfigError(f"rotary_scaling.fast = {self.fast:g}: must be above slow = {self.slow:g}")
        return self

    @property
    def score_factor(self) -> float:
        """The factor of all scores: the attention factor of the queries times that of the keys."""
        if self.kind != "yarn":
            return 1.0
        usual = 1 + math.log(max(self.factor, 1.0)) / 10
        return (usual if self.attention_factor is None else self.attention_factor) ** 2


class Rotary:
    """Rotate each pair of features by an angle that grows with the position, so that q·k depends on the distance alone.

    Su 2021 (RoFormer). Pairs are (i, i + K/2), as in the Hugging Face layout. Used as `prepare` of MultiHeadAttention.
    With dynamic scaling, the longest text of a batch decides how far the base is raised for all of them.
    """

    def __init__(
        self, head_width: int, base: float = 10000.0, scaling: RotaryScaling | None = None, max_length: int = 0
    ):
        if head_width % 2:
            raise ValueError(f"rotary positions need an even head width, got {head_width}")
        self.head_width, self.base, self.max_length = head_width, base, max_length
        self.growth = scaling.factor if scaling is not None and scaling.kind == "dynamic" else None
        if self.growth is not None and head_width < 4:
            raise ValueError(f"dynamic scaling of rotary positions needs a head width of 4 or more, got {head_width}")
        self.frequencies = _frequencies(head_width, base)
        if scaling is not None and scaling.kind != "dynamic":
            self.frequencies = _slowed(self.frequencies, base, scaling, scaling.original_length or max_length)

    def __call__(self, heads: Float[Tensor, "B H T K"], first: int | Int[Tensor, "*B"]) -> Float[Tensor, "B H T K"]:
        if self.frequencies.device != heads.device:  # moved once: a copy at every call would force a GPU sync
            self.frequencies = self.frequencies.to(heads.device)
        where = torch.arange(heads.shape[2], device=heads.device, dtype=torch.float32)
        # one position for the whole batch, or one per row: [B, 1, T]
        where = first[:, None, None] + where if isinstance(first, Tensor) and first.dim() else first + where
        angle = where[..., None] * self._frequencies_of(first, heads.shape[2])  # [(B 1) T K/2]
        cos, sin = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
        a, b = heads.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _frequencies_of(self, first: int | Int[Tensor, "*B"], tokens: int) -> Float[Tensor, "*T pairs"]:
        """The frequencies of some tokens, the first of which is at position `first`."""
        if self.growth is None:
            return self.frequencies
        if isinstance(first, Tensor):
            length = (first.max() + tokens)[None, None]
        elif first + tokens <= self.max_length:
            return self.frequencies
        else:  # each added token uses the text length up to itself, as if tokens were added one by one
            shortest = first + 1 if first else tokens
            length = torch.arange(shortest, first + tokens + 1, device=self.frequencies.device)[:, None]
        stretched = self.growth * length.clamp(min=self.max_length) / self.max_length - (self.growth - 1)
        base = self.base * stretched ** (self.head_width / (self.head_width - 2))
        return _frequencies(self.head_width, base, self.frequencies.device)


def _frequencies(
    head_width: int, base: float | Float[Tensor, "T 1"], device: torch.device | None = None
) -> Float[Tensor, "*T pairs"]:
    """The angle between neighbouring positions, for each pair of features."""
    return 1 / base ** (torch.arange(0, head_width, 2, dtype=torch.float32, device=device) / head_width)


def _slowed(
    frequencies: Float[Tensor, "pairs"], base: float, scaling: RotaryScaling, original: int
) -> Float[Tensor, "pairs"]:
    """The frequencies divided by the factor, all of them or the low ones."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        turns = original * frequencies / (2 * math.pi)
        kept = ((turns - scaling.slow) / (scaling.fast - scaling.slow)).clamp(0, 1)
    else:
        kept = 1 - _yarn_ramp(len(frequencies), base, scaling, original)
    return frequencies / scaling.factor * (1 - kept) + frequencies * kept


def _yarn_ramp(pairs: int, base: float, scaling: RotaryScaling, original: int) -> Float[Tensor, "pairs"]:
    """A ramp from 0 for features that rotate fast to 1 for those that rotate slowly (Peng 2023, §3.2)."""
    begin, end = (
        pairs * math.log(original / (turns * 2 * math.pi)) / math.log(base) for turns in (scaling.fast, scaling.slow)
    )
    if scaling.whole:
        begin, end = math.floor(begin), math.ceil(end)
    begin, end = max(begin, 0), min(end, 2 * pairs - 1)
    if begin == end:
        end += 0.001
    return ((torch.arange(pairs, dtype=torch.float32) - begin) / (end - begin)).clamp(0, 1)


def relative_buckets(
    queries: int, keys: int, buckets: int, max_distance: int, *, both_sides: bool, device: torch.device | None = None
) -> Int[Tensor, "Tq Tk"]:
    """The bucket of each key's distance from each query; the last query is at the last key (Raffel 2020, §2.1).

    Half of the buckets (of a side) are single distances; the others grow logarithmically up to `max_distance`, beyond
    which all distances share the last. With `both_sides`, keys after the query have their own buckets; without, they
    count as distance 0 (the causal mask excludes them anyway).
    """
    here = torch.arange(keys - queries, keys, device=device)[:, None]
    return distance_buckets(here - torch.arange(keys, device=device), buckets, max_distance, both_sides=both_sides)


def distance_buckets(
    distance: Int[Tensor, "Tq Tk"], buckets: int, max_distance: int, *, both_sides: bool
) -> Int[Tensor, "Tq Tk"]:
    """The bucket of each distance; distances to earlier keys are positive."""
    if both_sides:
        buckets //= 2
        side = (distance < 0) * buckets
        distance = distance.abs()
    else:
        side = torch.zeros_like(distance)
        distance = distance.clamp(min=0)
    exact = buckets // 2
    growth = torch.log(distance.clamp(min=1) / exact) / math.log(max_distance / exact)
    far = (exact + (growth * (buckets - exact)).long()).clamp(max=buckets - 1)
    return side + torch.where(distance < exact, distance, far)


class RelativeBias(nn.Module):
    """T5's relative positions: a learned bias per head and distance bucket, added to the scores of all layers."""

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, *, both_sides: bool):
        super().__init__()
        sides = 2 if both_sides else 1
        if buckets < 2 * sides or max_distance <= buckets // (2 * sides):
            raise ValueError(
                f"{buckets} buckets up to distance {max_distance} leave none for far distances; use at least "
                f"{2 * sides} buckets, and a distance above {buckets // (2 * sides)}"
            )
        self.buckets, self.max_distance, self.both_sides = buckets, max_distance, both_sides
        self.table = nn.Parameter(torch.zeros(buckets, heads))

    def forward(self, queries: int, keys: int) -> Float[Tensor, "1 H Tq Tk"]:
        """The bias of the last `queries` of `keys` tokens."""
        bucket = relative_buckets(
            queries, keys, self.buckets, self.max_distance, both_sides=self.both_sides, device=self.table.device
        )
        return self._of(bucket)

    def at(self, distance: Int[Tensor, "Tq Tk"]) -> Float[Tensor, "1 H Tq Tk"]:
        """The bias at these distances, positive where the key comes before the query."""
        return self._of(distance_buckets(distance, self.buckets, self.max_distance, both_sides=self.both_sides))

    def _of(self, bucket: Int[Tensor, "Tq Tk"]) -> Float[Tensor, "1 H Tq Tk"]:
        return functional.embedding(bucket, self.table).permute(2, 0, 1)[None].contiguous()


class DistanceTable(nn.Module):
    """Sinusoids of distances, from far before a query to far after it. All layers share one; it grows for longer
    sequences and is not saved with the model."""

    def __init__(self, width: int, length: int = 512):
        super().__init__()
        self.width = width
        self.outgrown: list[Tensor] = []  # kept, since captured steps go on reading them
        self.table: Tensor
        self.register_buffer("table", self._of(length), persistent=False)

    def forward(self, length: int) -> Float[Tensor, "R D"]:
        """Rows for the distances `length`, `length` - 1, ... 1 - `length` of a key before its query."""
        if 2 * length > len(self.table):
            self.outgrown.append(self.table)
            self.table = self._of(2 * length).to(self.table)
        middle = len(self.table) // 2
        return self.table[middle - length : middle + length]

    def _of(self, length: int) -> Float[Tensor, "R D"]:
        after = sinusoidal(length + 1, self.width)
        before = after[1:].flip(0)
        signs = torch.ones(self.width)
        signs[0::2] = -1.0  # sin(-x) = -sin(x), cos(-x) = cos(x)
        return torch.cat([before, after[:length] * signs])


class RelativePositions(nn.Module):
    """(q_i + v - u) · W p_{i-j} for every query and key, with sinusoids p of their distance.

    It is the `position` of MultiHeadAttention, so together the score is (q_i + u) · k_j + (q_i + v) · W p_{i-j}. The
    bias of the query's projection contains u already, so only the difference of the two is learned here.
    """

    def __init__(self, width: int, heads: int, table: DistanceTable):
        super().__init__()
        self.heads, self.scale = heads, 1 / math.sqrt(width // heads)
        self.project = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.zeros(heads, 1, width // heads))
        self.table = table

    def forward(self, q: Float[Tensor, "B H T K"], keys: int) -> Float[Tensor, "B H T T"]:
        if q.shape[2] != keys:
            raise ValueError(f"{q.shape[2]} queries and {keys} keys: relative positions are those of self-attention")
        places = self.project(self.table(keys)).unflatten(-1, (self.heads, -1))  # [R H K]
        scores = torch.einsum("bhtk,rhk->bhtr", (q + self.bias) * self.scale, places)
        return by_distance(scores)


def by_distance(scores: Float[Tensor, "B H T R"]) -> Float[Tensor, "B H T T"]:
    """From scores of the distances T, T - 1, ... 1 - T to scores of keys: key j of query i is at distance i - j.

    Its column is T - i + j. In the flat matrix of 2T columns, the wanted columns of successive rows are 2T - 1 apart,
    so a view shows them without any index.
    """
    length = scores.shape[2]
    flat = scores.flatten(-2)[..., length:]
    return flat.unflatten(-1, (length, 2 * length - 1))[..., :length]
