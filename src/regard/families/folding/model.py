"""Evoformer: from a protein's sequence, alone or with an alignment of its family, to distances and a backbone in space.

Paper: Jumper et al. 2021 (AlphaFold 2); `to_pairs = "products"` without columns is the block of ESMFold (Lin et al.
2022), which reads one sequence. Presets: tiny (tests, generated chains), small (tens of chains, one GPU), base (the
paper's sizes).
Deviations: the backbone alone, without side chains and angles; no templates, no extra alignment, no features of
deletions; recycling reads the distances of CA atoms; dropout on pairs shares its masks along the dimensions of ESMFold;
`couplings` may give the pairs a coupling score that was computed from the alignment.
"""

from typing import Any, Literal, NamedTuple

import pydantic
import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from regard.config import Config, Examples, Fraction
from regard.errors import ConfigError
from regard.families.folding.layers import (
    EvoformerBlock,
    Frames,
    OuterProductMean,
    PairProducts,
    PointAttention,
    StructureModule,
)
from regard.families.folding.structures import CONTACT
from regard.layers.blocks import closed
from regard.layers.example import Example, all_real, blank_tokens

SYMBOLS = 23  # 20 amino acids, unknown, gap, masked
FIRST_EDGE, LAST_EDGE = 2.3125, 21.6875  # ångströms: the inner edges of the distogram's bins
RECYCLED_EDGES = (3.25, 20.75, 15)  # first, last and number of the edges by which recycled distances are binned

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "width": 32, "heads": 4, "head_width": 8, "pair_width": 32, "pair_heads": 4, "pair_head_width": 8, "depth": 2,
        "outer_width": 8, "triangle_width": 32, "growth": 2, "single_width": 32, "passes": 3, "point_heads": 4,
        "point_head_width": 8, "value_points": 4, "recycles": 1, "dropout": 0.0, "pair_dropout": 0.0,
        "structure_dropout": 0.0,
    },
    "small": {
        "width": 64, "heads": 4, "head_width": 16, "pair_width": 64, "pair_heads": 4, "pair_head_width": 16, "depth": 4,
        "outer_width": 16, "triangle_width": 64, "growth": 2, "single_width": 128, "passes": 4, "point_heads": 8,
        "point_head_width": 16, "recycles": 1,
    },
    "base": {},
}  # fmt: skip


class EvoformerConfig(Config):
    """Sizes and choices of an Evoformer with a structure module; the defaults are the paper's."""

    width: PositiveInt = 256  # of the alignment
    heads: PositiveInt = 8
    head_width: PositiveInt = 32
    pair_width: PositiveInt = 128
    pair_heads: PositiveInt = 4
    pair_head_width: PositiveInt = 32
    depth: PositiveInt = 48
    to_pairs: Literal["outer", "products"] = "outer"  # what the alignment tells the pairs
    outer_width: PositiveInt = 32
    triangle_width: PositiveInt = 128
    growth: PositiveInt = 4  # of transitions
    columns: bool = True  # attention along columns; without, rows do not see each other
    farthest: PositiveInt = 32  # residues between two, beyond which relative positions are all the same
    couplings: bool = False  # whether pairs are given the coupling scores of the alignment
    single_width: PositiveInt = 384
    passes: PositiveInt = 8  # of the structure module
    point_heads: PositiveInt = 12
    point_head_width: PositiveInt = 16
    points: PositiveInt = 4
    value_points: PositiveInt = 8
    recycles: NonNegativeInt = 3
    bins: int = pydantic.Field(default=64, ge=2)  # of distances
    confidence_bins: int = pydantic.Field(default=50, ge=2)
    dropout: Fraction = 0.15
    pair_dropout: Fraction = 0.25
    structure_dropout: Fraction = 0.1

    @property
    def examples(self) -> Examples:
        """Chains; their lengths are those of the plan."""
        return Examples("chain", "chains of {source} residues, with {target} rows of an alignment")

    @pydantic.model_validator(mode="after")
    def _check(self) -> "EvoformerConfig":
        if self.to_pairs == "products" and self.pair_width < 2:
            raise ConfigError(f"pair_width = {self.pair_width}: products need at least 2")
        return self


class Folded(NamedTuple):
    """What the model says of B chains: frames after each of S passes, and logits."""

    frames: Frames  # [S B T ...], in ångströms
    distances: Float[Tensor, "B T T bins"]
    symbols: Float[Tensor, "B N T symbols"]  # of the rows of the alignment
    confidence: Float[Tensor, "B T bins2"]  # the lDDT of each residue


class Recycled(NamedTuple):
    """What a pass hands to the next."""

    row: Float[Tensor, "B T M"]
    pairs: Float[Tensor, "B T T Z"]
    places: Float[Tensor, "B T 3"]


class Evoformer(nn.Module):
    """Blocks that update an alignment and a pair representation, a structure module, and heads."""

    def __init__(self, config: EvoformerConfig):
        super().__init__()
        self.config = c = config
        self.sequence, self.rows = nn.Embedding(SYMBOLS, c.width), nn.Embedding(SYMBOLS, c.width)
        self.left, self.right = nn.Embedding(SYMBOLS, c.pair_width), nn.Embedding(SYMBOLS, c.pair_width)
        self.offset = nn.Embedding(2 * c.farthest + 1, c.pair_width)
        self.coupling = nn.Linear(1, c.pair_width) if c.couplings else None
        self.recycled_row, self.recycled_pairs = nn.LayerNorm(c.width), nn.LayerNorm(c.pair_width)
        self.recycled_distance = nn.Embedding(RECYCLED_EDGES[2] + 1, c.pair_width)
        self.blocks = nn.ModuleList(_block(c) for _ in range(c.depth))
        self.single = nn.Linear(c.width, c.single_width)
        points = PointAttention(
            c.single_width, c.pair_width, heads=c.point_heads, head_width=c.point_head_width,
            points=c.points, value_points=c.value_points,
        )  # fmt: skip
        self.structure = StructureModule(
            c.single_width, c.pair_width, points, passes=c.passes, dropout=c.structure_dropout
        )
        self.distances, self.symbols = closed(nn.Linear(c.pair_width, c.bins)), closed(nn.Linear(c.width, SYMBOLS))
        self.confidence = nn.Sequential(
            nn.LayerNorm(c.single_width), nn.Linear(c.single_width, c.single_width), nn.ReLU(),
            nn.Linear(c.single_width, c.single_width), nn.ReLU(), closed(nn.Linear(c.single_width, c.confidence_bins)),
        )  # fmt: skip
        for table in (self.sequence, self.rows, self.left, self.right, self.offset, self.recycled_distance):
            nn.init.normal_(table.weight, std=0.5)

    def forward(
        self,
        sequence: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        rows: Int[Tensor, "B N T"] | None = None,
        rows_mask: Bool[Tensor, "B N"] | None = None,
        numbers: Int[Tensor, "B T"] | None = None,
        couplings: Float[Tensor, "B T T"] | None = None,
        *,
        recycles: int | None = None,
    ) -> Folded:
        """`rows` is the alignment, whose first row is the sequence; without it the sequence is read alone. `numbers`
        counts residues along the chain, with jumps at gaps. `recycles` overrides the number of earlier passes."""
        rows = sequence[:, None] if rows is None else rows
        rows_mask = rows.new_ones(rows.shape[:2], dtype=torch.bool) if rows_mask is None else rows_mask
        if numbers is None:
            numbers = torch.arange(sequence.shape[1], device=sequence.device).expand(sequence.shape)
        given = sequence, mask, rows, rows_mask, numbers, couplings
        before: Recycled | None = None
        for left in reversed(range(1 + (self.config.recycles if recycles is None else recycles))):
            with torch.set_grad_enabled(left == 0 and torch.is_grad_enabled()):
                state, pairs = self._represented(*given, before)
                single, frames = self.structure(self.single(state[:, 0]), pairs, mask)
                before = Recycled(state[:, 0], pairs, frames[-1].translation)
            if left and not torch.compiler.is_compiling():
                torch.clear_autocast_cache()  # of weights that were converted without gradients
        logits = self.distances(pairs)
        stacked = Frames(*(torch.stack(each) for each in zip(*frames, strict=True)))
        return Folded(stacked, logits + logits.transpose(1, 2), self.symbols(state), self.confidence(single))

    def _represented(
        self,
        sequence: Int[Tensor, "B T"],
        mask: Bool[Tensor, "B T"],
        rows: Int[Tensor, "B N T"],
        rows_mask: Bool[Tensor, "B N"],
        numbers: Int[Tensor, "B T"],
        couplings: Float[Tensor, "B T T"] | None,
        before: Recycled | None,
    ) -> tuple[Float[Tensor, "B N T M"], Float[Tensor, "B T T Z"]]:
        """The alignment and the pairs after all blocks."""
        c = self.config
        apart = (numbers[:, :, None] - numbers[:, None]).clamp(-c.farthest, c.farthest) + c.farthest
        pairs = self.left(sequence)[:, :, None] + self.right(sequence)[:, None] + self.offset(apart)
        if self.coupling is not None:
            if couplings is None:  # a sequence alone has none
                couplings = pairs.new_zeros(pairs.shape[:3])
            pairs = pairs + self.coupling(couplings[..., None])
        state = self.rows(rows) + self.sequence(sequence)[:, None]
        if before is not None:
            state = torch.cat([state[:, :1] + self.recycled_row(before.row)[:, None], state[:, 1:]], dim=1)
            edges = torch.linspace(*RECYCLED_EDGES, device=pairs.device)
            far = (before.places[:, :, None] - before.places[:, None]).norm(dim=-1)
            pairs = pairs + self.recycled_pairs(before.pairs) + self.recycled_distance(torch.bucketize(far, edges))
        for block in self.blocks:
            state, pairs = block(state, pairs, mask, rows_mask)
        return state, pairs


def _block(c: EvoformerConfig) -> EvoformerBlock:
    outer: nn.Module = (
        OuterProductMean(c.width, c.pair_width, c.outer_width)
        if c.to_pairs == "outer"
        else PairProducts(c.width, c.pair_width, c.pair_width // 2)
    )
    return EvoformerBlock(
        c.width, c.pair_width, heads=c.heads, head_width=c.head_width,
        pair_heads=c.pair_heads, pair_head_width=c.pair_head_width, outer=outer, triangle_width=c.triangle_width,
        growth=c.growth, columns=c.columns, dropout=c.dropout, pair_dropout=c.pair_dropout,
    )  # fmt: skip


def distance_edges(bins: int, device: torch.device | None = None) -> Float[Tensor, "edges"]:
    """The inner edges of the bins of distances, in ångströms."""
    return torch.linspace(FIRST_EDGE, LAST_EDGE, bins - 1, device=device)


def contact_probabilities(logits: Float[Tensor, "*B T T bins"]) -> Float[Tensor, "*B T T"]:
    """The probability that two residues are in contact."""
    below = int((distance_edges(logits.shape[-1]) <= CONTACT).sum())
    return logits.float().softmax(dim=-1)[..., :below].sum(dim=-1)


def expected_distances(logits: Float[Tensor, "*B T T bins"]) -> Float[Tensor, "*B T T"]:
    """The mean distance of two residues; the first and the last bin count as their inner edges."""
    edges = distance_edges(logits.shape[-1], logits.device)
    middles = torch.cat([edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]])
    return (logits.float().softmax(dim=-1) * middles).sum(dim=-1)


def expected_lddt(logits: Float[Tensor, "B T bins"]) -> Float[Tensor, "B T"]:
    """The lDDT that the model expects of each residue, from 0 to 1."""
    count = logits.shape[-1]
    middles = (torch.arange(count, device=logits.device) + 0.5) / count
    return (logits.float().softmax(dim=-1) * middles).sum(dim=-1)


def _fold(model: Evoformer, rows: int, source: int, target: int) -> Any:
    """One pass over chains of `source` residues with `target` rows of an alignment; recycling repeats it.

    The losses keep the log-probabilities of distances and letters.
    """
    alignment = torch.zeros(rows, target, source, dtype=torch.long)
    couplings = torch.zeros(rows, source, source) if model.config.couplings else None
    found = model(blank_tokens(rows, source), all_real(rows, source), alignment, couplings=couplings, recycles=0)
    return found.distances.log_softmax(-1), found.symbols.log_softmax(-1), found


EXAMPLE = Example(_fold)
