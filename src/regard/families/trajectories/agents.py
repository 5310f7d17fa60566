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
from regard.attention.core import Attend, attention_scores
from regard.attention.dropout import Dropout
from regard.attention.multihead import Memory, products
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

    def repeated(self, times: int) -> "Places":
        """The same sequence several times."""
        return Places(self.agents.repeat(times), self.steps.repeat(times))


class Visibility(NamedTuple):
    """Which tokens may look at which, and which pairs are of one agent."""

    mask: Bool[Tensor, "B 1 Tq Tk"]
    own: Bool[Tensor, "1 1 Tq Tk"]

    def repeated(self, samples: int) -> "Visibility":
        """The same for every sample of each scene."""
        return Visibility(self.mask.repeat_interleave(samples, dim=0), self.own)


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


class OwnScores(nn.Module):
    """What to add to the scores of pairs of one agent, so that they become those of the second projection.

    It has no weights. As a module, its calls can be recorded.
    """

    def forward(
        self,
        q: Float[Tensor, "B H Tq K"],
        k: Float[Tensor, "B H Tk K"],
        own_q: Float[Tensor, "B H Tq K"],
        own_k: Float[Tensor, "B H Tk K"],
        own: Bool[Tensor, "1 1 Tq Tk"],
    ) -> Float[Tensor, "B H Tq Tk"]:
        return torch.where(own, attention_scores(own_q, own_k) - attention_scores(q, k), 0.0)


class AgentAttention(nn.Module):
    """Attention that may be agent-aware: pairs of tokens of one agent are then scored by a second query and key
    projection, in one softmax with the same values (Yuan et al. 2021, §3.2).

    The second keys are stored beside the first ones, in memories and caches whose keys are then twice as wide.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, aware: bool = True):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.own_query, self.own_key = (nn.Linear(width, width) if aware else None for _ in range(2))
        self.own_scores = OwnScores() if aware else None
        self.attend = Attend()

    def remember(self, memory: Float[Tensor, "B T D"]) -> Memory:
        """Project a memory to keys and values, once for all queries."""
        k, v = products(memory, self.key, self.value)
        return Memory(self._with_own_keys(k, memory), self._split(v), None)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        sight: Visibility,
        memory: Memory | None = None,
        cache: GrowingCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Self-attention, or attention to a memory."""
        if memory is None:
            q, k, v = products(x, self.query, self.key, self.value)
            q, k, v = self._split(q), self._with_own_keys(k, x), self._split(v)
        else:
            q, k, v = self._split(self.query(x)), memory.k, memory.v
        if cache is not None:
            k, v = cache.append(k, v)
        bias = None
        if self.own_query is not None and self.own_scores is not None:
            k, own_k = k.chunk(2, dim=-1)
            bias = self.own_scores(q, k, self._split(self.own_query(x)), own_k, sight.own)
        y = self.attend(q, k, v, mask=sight.mask, bias=bias, dropout=self.dropout)
        return self.output(y.transpose(1, 2).flatten(2))

    def _with_own_keys(self, k: Float[Tensor, "B T D"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T _"]:
        if self.own_key is None:
            return self._split(k)
        return torch.cat([self._split(k), self._split(self.own_key(x))], dim=-1)

    def _split(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class AgentLayer(nn.Module):
    """Self-attention, cross-attention to a memory if `cross`, then a feed-forward network."""

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
        self.attention = AgentAttention(width, heads, dropout, aware=aware)
        self.cross = AgentAttention(width, heads, dropout, aware=aware) if cross else None
        self.feed_forward = FeedForward(width, ffn_width, dropout=dropout)
        self.after_attention = Residual(width, dropout, order)
        self.after_cross = Residual(width, dropout, order) if cross else None
        self.after_feed_forward = Residual(width, dropout, order)

    def forward(
        self,
        x: Float[Tensor, "R T D"],
        within: Visibility,
        memory: Memory | None = None,
        across: Visibility | None = None,
        cache: GrowingCache | None = None,
    ) -> Float[Tensor, "R T D"]:
        """R = B·K rows, K samples for each of B scenes, share the memory of their scene."""
        x = self.after_attention(x, lambda h: self.attention(h, within, cache=cache))
        if self.cross is not None and self.after_cross is not None:
            assert memory is not None and across is not None
            cross = self.cross
            grid = x.view(memory.sequences, -1, x.shape[-1])  # all samples query the memory of their scene at once
            x = self.after_cross(grid, lambda h: cross(h, across, memory)).view_as(x)
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
        across = None if memory is None else self.across(memory, places, samples)
        for layer, reach in zip(self.layers, self.reaches, strict=True):
            within = visibility(places, places, seen.flatten(1), present, reach, causal=causal)
            rows = layer(rows, within.repeated(samples), remembered(layer, memory), across)
        return self.norm(rows).view_as(x)

    @property
    def reaches(self) -> list[Reach]:
        """What the tokens of every layer look at."""
        turns: dict[Social, tuple[Reach, ...]] = {"joint": ("all",), "separate": ("agent", "step"), "none": ("agent",)}
        return [turns[self.social][number % len(turns[self.social])] for number in range(len(self.layers))]

    def across(self, memory: AgentMemory, queries: Places, samples: int) -> Visibility:
        """What the queries of all samples see of a memory."""
        reach: Reach = "all" if self.social == "joint" else "agent"
        return visibility(queries.repeated(samples), memory.places, memory.seen.flatten(1), memory.present, reach)


def remembered(layer: nn.Module, memory: AgentMemory | None) -> Memory | None:
    """A memory as a layer reads it; None if it reads none."""
    assert isinstance(layer, AgentLayer)
    return None if memory is None or layer.cross is None else layer.cross.remember(memory.tokens.flatten(1, 2))


class Unrolled:
    """A causal stack that is fed one step of all agents at a time; keys and values of earlier steps are kept."""

    def __init__(self, stack: AgentStack, memory: AgentMemory, samples: int):
        self.stack, self.memory, self.samples = stack, memory, samples
        self.first = memory.first + memory.seen.shape[2]  # step
        self.caches = [GrowingCache(len(memory.seen) * samples) for _ in stack.layers]
        self.remembered = [remembered(layer, memory) for layer in stack.layers]

    def __call__(self, x: Float[Tensor, "R N D"], step: int) -> Float[Tensor, "R N D"]:
        """Read the next step."""
        present, now = self.memory.present, Places.grid(x.shape[1], step, 1, x.device)
        steps = step - self.first + 1
        keys = Places(
            now.agents.repeat(steps), torch.arange(self.first, step + 1, device=x.device).repeat_interleave(x.shape[1])
        )
        across = self.stack.across(self.memory, now, self.samples)
        parts = zip(self.stack.layers, self.stack.reaches, self.remembered, self.caches, strict=True)
        for layer, reach, memory, cache in parts:
            within = visibility(now, keys, present.repeat(1, steps), present, reach)
            x = layer(x, within.repeated(self.samples), memory, across, cache)
        return self.stack.norm(x)


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
