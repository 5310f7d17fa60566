"""Layers that read several agents at several times: tokens are (agent, step) pairs in one sequence (Yuan et al. 2021).

A stack reads a grid [B N T D] of N agents at T steps. `AgentStack` is attention between all of these tokens;
`RecurrentStack` reads each agent alone, step by step, and is the baseline.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.cache import GrowingCache
from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, MultiHeadAttention
from regard.attention.places import Argument, Result
from regard.attention.positions import Concatenated, SinusoidalPositions
from regard.layers.blocks import FeedForward, NormOrder, Residual
from regard.layers.recurrent import Recurrent

Social = Literal["joint", "separate", "none"]
Reach = Literal["all", "agent", "step"]  # the tokens that a token may look at: all, of its agent, of its step


class Places(NamedTuple):
    """The agent and the step of every token of a sequence."""

    agents: Int[Tensor, " T"]
    steps: Int[Tensor, " T"]

    @classmethod
    def grid(cls, agents: int, first: int, steps: int, device: torch.device) -> "Places":
        """The places of a grid [N T], agent by agent; its first step is `first`."""
        return cls(
            torch.arange(agents, device=device).repeat_interleave(steps),
            torch.arange(first, first + steps, device=device).repeat(agents),
        )

    @classmethod
    def joined(cls, parts: Sequence["Places"]) -> "Places":
        """Several sequences after each other."""
        return cls(torch.cat([each.agents for each in parts]), torch.cat([each.steps for each in parts]))

    def repeated(self, times: int) -> "Places":
        """The same sequence several times."""
        return Places(self.agents.repeat(times), self.steps.repeat(times))


class Visibility(NamedTuple):
    """Which tokens may look at which, and which pairs are of one agent."""

    mask: Bool[Tensor, "B 1 Tq Tk"]
    own: Bool[Tensor, "1 1 Tq Tk"]


def visibility(
    queries: Places,
    keys: Places,
    seen: Bool[Tensor, "B Tk"],
    present: Bool[Tensor, "B N"],
    reach: Reach = "all",
    *,
    causal: bool = False,
) -> Visibility:
    """What queries see of keys that were `seen`; with `causal`, no token looks at a later step.

    No row is empty: a token sees itself in any case, and those of agents that are not `present`, which are padding, see
    all tokens of their own.
    """
    own, together = queries.agents[:, None] == keys.agents, queries.steps[:, None] == keys.steps
    allowed = {"all": torch.ones_like(own), "agent": own, "step": together}[reach]
    if causal:
        allowed = allowed & (keys.steps <= queries.steps[:, None])
    absent = ~present[:, queries.agents]
    mask = (seen[:, None, :] & allowed) | (own & (together | absent[:, :, None]))
    return Visibility(mask[:, None], own[None, None])


class TimedInput(nn.Module):
    """Features of tokens projected to the width of the model, with an encoding of their step concatenated and mixed."""

    def __init__(self, features: int, width: int, dropout: float):
        super().__init__()
        self.features, self.timed = nn.Linear(features, width), Concatenated(SinusoidalPositions(width), width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Float[Tensor, "B N T F"], first: int) -> Float[Tensor, "B N T D"]:
        rows = self.timed(self.features(x).flatten(0, 1), first)
        return self.dropout(rows.unflatten(0, x.shape[:2]))


class AgentLayer(nn.Module):
    """Self-attention, cross-attention to a memory if `cross`, then a feed-forward network.

    With `aware`, pairs of tokens of one agent have a query and key projection of their own.
    """

    PLACES: ClassVar = {
        "input": Argument(),
        "after_attention": Result("after_attention"),
        "after_cross": Result("after_cross"),
        "residual": Result(),
    }

    def __init__(
        self, width: int, heads: int, ffn_width: int, dropout: float, order: NormOrder, *, aware: bool, cross: bool
    ):
        super().__init__()
        self.attention = MultiHeadAttention(width, heads, dropout=dropout, own=aware)
        self.cross = MultiHeadAttention(width, heads, dropout=dropout, own=aware) if cross else None
        self.feed_forward = FeedForward(width, ffn_width, dropout=dropout)
        self.after_attention = Residual(width, dropout, order)
        self.after_cross = Residual(width, dropout, order) if cross else None
        self.after_feed_forward = Residual(width, dropout, order)
        self.aware = aware

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        within: Visibility,
        memory: Memory | None = None,
        across: Visibility | None = None,
        cache: GrowingCache | None = None,
    ) -> Float[Tensor, "R T D"]:
        """R = B·K rows, K samples for each of B scenes, share the memory of their scene."""
        own = within.own if self.aware else None
        x = self.after_attention(x, lambda h: self.attention(h, mask=within.mask, own=own, cache=cache))
        if self.cross is not None and self.after_cross is not None:
            assert memory is not None and across is not None
            cross, far = self.cross, across.own if self.aware else None
            grid = x.view(memory.sequences, -1, x.shape[-1])  # all samples query the memory of their scene at once
            grid = self.after_cross(grid, lambda h: cross(h, memory, mask=across.mask, own=far))
            x = grid.view_as(x)
        return self.after_feed_forward(x, self.feed_forward)


class AgentMemory(NamedTuple):
    """What a stack has read: its output, which of its tokens were seen, and which agents there are."""

    tokens: Float[Tensor, "B N T D"]
    seen: Bool[Tensor, "B N T"]
    first: int  # the number of its first step

    @property
    def present(self) -> Bool[Tensor, "B N"]:
        """The agents that are seen at the last step; the others are padding."""
        return self.seen[:, :, -1]

    @property
    def places(self) -> Places:
        _, agents, steps = self.seen.shape
        return Places.grid(agents, self.first, steps, self.seen.device)

    def pooled(self) -> Float[Tensor, "B N D"]:
        """The mean over the steps that were seen."""
        counted = self.seen[..., None].to(self.tokens.dtype)
        return (self.tokens * counted).sum(dim=2) / counted.sum(dim=2).clamp(min=1)


class AgentStack(nn.Module):
    """Layers of attention between all agents at all steps.

    `social` says whom a token sees: everyone in every layer (joint), its own agent and all agents of its step in turn
    (separate), or its own agent alone (none).
    """

    def __init__(self, layers: Sequence[AgentLayer], social: Social, order: NormOrder):
        super().__init__()
        self.layers, self.social = nn.ModuleList(layers), social
        self.norm = nn.LayerNorm(layers[0].attention.query.in_features) if order == "pre" else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "R N T D"],
        seen: Bool[Tensor, "B N T"],
        first: int,
        memory: AgentMemory | None = None,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "R N T D"]:
        """Read a grid; R = B·K, K samples for each scene."""
        _, agents, steps, _ = x.shape
        places = Places.grid(agents, first, steps, x.device)
        present = seen[:, :, -1] if memory is None else memory.present
        samples, rows = x.shape[0] // len(seen), x.flatten(1, 2)
        for layer, reach in zip(self.layers, self.reaches, strict=True):
            within = visibility(places, places, seen.flatten(1), present, reach, causal=causal)
            within = Visibility(within.mask.repeat_interleave(samples, dim=0), within.own)
            rows = layer(rows, within, *self.remembered(layer, memory, places, samples))
        return self.norm(rows).view_as(x)

    @property
    def reaches(self) -> list[Reach]:
        """What the tokens of every layer look at."""
        turns: dict[Social, tuple[Reach, ...]] = {"joint": ("all",), "separate": ("agent", "step"), "none": ("agent",)}
        return [turns[self.social][number % len(turns[self.social])] for number in range(len(self.layers))]

    def remembered(
        self, layer: nn.Module, memory: AgentMemory | None, queries: Places, samples: int
    ) -> tuple[Memory, Visibility] | tuple[()]:
        """The memory as a layer reads it, and who sees what of it."""
        assert isinstance(layer, AgentLayer)
        if memory is None or layer.cross is None:
            return ()
        reach: Reach = "all" if self.social == "joint" else "agent"
        across = visibility(queries.repeated(samples), memory.places, memory.seen.flatten(1), memory.present, reach)
        return layer.cross.remember(memory.tokens.flatten(1, 2)), across


class Unrolled:
    """A causal stack that is fed one step of all agents at a time; keys and values of earlier steps are kept."""

    def __init__(self, stack: AgentStack, memory: AgentMemory, samples: int):
        self.stack, self.memory, self.samples = stack, memory, samples
        self.places: list[Places] = []
        scenes = len(memory.seen)
        self.caches = [GrowingCache(scenes * samples) for _ in stack.layers]
        self.remembered: list[Memory] = []
        for layer in stack.layers:
            assert isinstance(layer, AgentLayer) and layer.cross is not None
            self.remembered.append(layer.cross.remember(memory.tokens.flatten(1, 2)))

    def __call__(self, x: Float[Tensor, "R N D"], step: int) -> Float[Tensor, "R N D"]:
        """Read the next step."""
        present, agents = self.memory.present, x.shape[1]
        now = Places.grid(agents, step, 1, x.device)
        self.places.append(now)
        keys, seen = Places.joined(self.places), present.repeat(1, len(self.places))
        reach: Reach = "all" if self.stack.social == "joint" else "agent"
        memory = self.memory
        across = visibility(now.repeated(self.samples), memory.places, memory.seen.flatten(1), present, reach)
        for layer, cache, remembered, own_reach in zip(
            self.stack.layers, self.caches, self.remembered, self.stack.reaches, strict=True
        ):
            within = visibility(now, keys, seen, present, own_reach)
            within = Visibility(within.mask.repeat_interleave(self.samples, dim=0), within.own)
            x = layer(x, within, remembered, across, cache)
        out: Tensor = self.stack.norm(x)
        return out


class RecurrentStack(nn.Module):
    """An LSTM that reads each agent alone; with a memory, it starts from the last state that was read."""

    def __init__(self, width: int, depth: int, dropout: float):
        super().__init__()
        self.recurrent, self.start = Recurrent("lstm", width, width, depth), nn.Linear(width, depth * width)
        self.depth, self.dropout = depth, Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "R N T D"],
        seen: Bool[Tensor, "B N T"],
        first: int,
        memory: AgentMemory | None = None,
        *,
        causal: bool = False,
    ) -> Float[Tensor, "R N T D"]:
        """Read a grid step by step: it is always causal, and a step that was not seen is read as it is given."""
        rows, state = x.flatten(0, 1), None
        if memory is not None:
            last = memory.tokens[:, :, -1].repeat_interleave(x.shape[0] // len(memory.tokens), dim=0).flatten(0, 1)
            hidden = torch.tanh(self.start(last)).view(len(last), self.depth, -1).transpose(0, 1)
            state = torch.stack([hidden, torch.zeros_like(hidden)])
        out, _ = self.recurrent(rows, state)
        return self.dropout(out).view_as(x)
