"""AgentFormer: where several agents will walk, as samples of joint futures (Yuan et al. 2021).

All agents at all steps are one sequence of tokens, with the step concatenated to each. In agent-aware attention, pairs
of tokens of one agent are scored by other query and key matrices than pairs of two agents. A past encoder, a future
encoder and a decoder make a conditional variational autoencoder with a latent vector for each agent and a learnt prior.
With `sampler` = K, the second stage (DLow) maps the past to K latent vectors that cover what may happen.

Presets: tiny, small (for one GPU and ETH/UCY in minutes), base (the paper's), and two baselines, which read each agent
alone: alone (plain attention) and recurrent (an LSTM).
Deviations: of the best-of-samples term, the samples are decoded without gradients, and the best latent vector of every
agent once more with them. The training may also ask for the future of the prior's mean, the one that is shown as the
likeliest. `decoder = "parallel"` predicts all steps at once from the latent vector instead of one after
another. `outputs = "velocity"` adds predictions to a constant velocity instead of to the last position.
"""

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from regard.config import Config, Fraction, refuse_uneven
from regard.errors import ConfigError
from regard.families.trajectories.agents import (
    AgentLayer,
    AgentMemory,
    AgentStack,
    RecurrentStack,
    Social,
    TimedInput,
    Unrolled,
)
from regard.layers.blocks import FeedForward, NormOrder
from regard.layers.example import Example

LEAST_DEVIATION = 1e-4


class Gaussian(NamedTuple):
    """Independent normal distributions."""

    mean: Float[Tensor, "*shape"]
    log_variance: Float[Tensor, "*shape"]

    def at(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The value that standard normal noise stands for."""
        return self.mean + noise * (0.5 * self.log_variance).exp()

    def divergence(self, other: "Gaussian") -> Float[Tensor, "*shape"]:
        """KL(self ‖ other), element by element."""
        ratio = self.log_variance - other.log_variance
        square = (self.mean - other.mean) ** 2 * (-other.log_variance).exp()
        return 0.5 * (ratio.exp() + square - 1 - ratio)


class DiverseSampler(nn.Module):
    """DLow (Yuan & Kitani 2020): K affine maps of the noise of each agent, z_k = A_k ε + b_k with diagonal A_k."""

    def __init__(self, width: int, ffn_width: int, outputs: int, latent: int, count: int):
        super().__init__()
        self.latent, self.count = latent, count
        self.hidden = FeedForward(width, ffn_width, outputs=outputs)
        self.deviation, self.mean = (nn.Linear(outputs, count * latent) for _ in range(2))

    def forward(self, pooled: Float[Tensor, "B N D"]) -> Gaussian:
        """Distributions [B K N L]."""
        hidden = torch.relu(self.hidden(pooled))
        mean, deviation = (
            each.unflatten(-1, (self.count, self.latent)).transpose(1, 2)
            for each in (self.mean(hidden), self.deviation(hidden))
        )
        return Gaussian(mean, (deviation**2 + LEAST_DEVIATION**2).log())


SMALL: dict[str, Any] = {
    "width": 128, "heads": 4, "ffn_width": 256, "decoder": "parallel", "outputs": "velocity", "norm": "pre",
}  # fmt: skip
ALONE: dict[str, Any] = {**SMALL, "agent_aware": False, "social": "none"}
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 32, "heads": 2, "ffn_width": 64, "depth": 2, "latent": 8, "decoder": "parallel"},
    "small": SMALL,
    "base": {},
    "alone": ALONE,
    "recurrent": {**ALONE, "body": "recurrent"},
}


class AgentFormerConfig(Config):
    """Sizes and choices of an AgentFormer; the defaults are the paper's."""

    past: PositiveInt = 8  # steps
    future: PositiveInt = 12
    width: PositiveInt = 256
    heads: PositiveInt = 8
    depth: PositiveInt = 2  # layers of each of the three stacks
    ffn_width: PositiveInt = 512
    latent: PositiveInt = 32
    dropout: Fraction = 0.1
    norm: NormOrder = "post"
    agent_aware: bool = True
    social: Social = "joint"
    body: Literal["attention", "recurrent"] = "attention"
    decoder: Literal["autoregressive", "parallel"] = "autoregressive"
    outputs: Literal["position", "velocity"] = "position"  # what predictions are added to: last position, its velocity
    scale: PositiveFloat = 1.0  # metres of one unit
    sampler: NonNegativeInt = 0  # latent vectors of the diverse sampler; 0: samples are drawn from the prior
    sampler_ffn_width: PositiveInt = 512
    sampler_width: PositiveInt = 256

    @model_validator(mode="after")
    def _check_shape(self) -> "AgentFormerConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.body == "recurrent" and (self.agent_aware or self.social != "none" or self.decoder != "parallel"):
            raise ConfigError(
                "body = 'recurrent' reads each agent alone; set agent_aware = false, social = 'none' and decoder = "
                "'parallel'"
            )
        return self


class Scene(NamedTuple):
    """A past that was read: what the decoder needs of it."""

    memory: AgentMemory
    pooled: Float[Tensor, "B N D"]
    prior: Gaussian  # of the latent vector of each agent
    origin: Float[Tensor, "B 1 1 2"]  # the mean of the last positions, in metres
    now: Float[Tensor, "B N 2"]  # last positions and velocities, centred, in units
    velocity: Float[Tensor, "B N 2"]


class Reconstruction(NamedTuple):
    """The result of the first stage for training."""

    positions: Float[Tensor, "B N T 2"]  # from a latent vector that knows the future
    best: Float[Tensor, "B N T 2"]  # from the best of several vectors of the prior
    divergence: Float[Tensor, "B N"]  # KL of the posterior from the prior
    likeliest: Float[Tensor, "B N T 2"] | None  # from the mean of the prior, if asked for


class Diverse(NamedTuple):
    """The result of the second stage for training."""

    positions: Float[Tensor, "B K N T 2"]
    divergence: Float[Tensor, "B N"]  # summed over the K distributions


class AgentFormer(nn.Module):
    """Positions [B N T 2] in metres, of N agents at T steps; `seen` is False where a position is not known.

    Agents that are not seen at the last step of the past are padding.
    """

    def __init__(self, config: AgentFormerConfig):
        super().__init__()
        self.config = c = config
        self.past_input, self.future_input = TimedInput(4, c.width, c.dropout), TimedInput(4, c.width, c.dropout)
        self.decoder_input = TimedInput(2 + c.latent, c.width, c.dropout)
        self.encoder, self.future_encoder, self.decoder = (self._stack(cross) for cross in (False, True, True))
        self.prior, self.posterior = nn.Linear(c.width, 2 * c.latent), nn.Linear(c.width, 2 * c.latent)
        self.output = nn.Linear(c.width, 2)
        self.sampler = (
            DiverseSampler(c.width, c.sampler_ffn_width, c.sampler_width, c.latent, c.sampler) if c.sampler else None
        )

    def train(self, mode: bool = True) -> "AgentFormer":
        """The training mode of the stage that is trained: with a sampler, the rest is frozen and drops nothing."""
        super().train(mode and self.sampler is None)
        if self.sampler is not None:
            self.training = mode
            self.sampler.train(mode)
        return self

    def forward(
        self,
        past: Float[Tensor, "B N P 2"],
        seen: Bool[Tensor, "B N P"],
        future: Float[Tensor, "B N F 2"],
        known: Bool[Tensor, "B N F"],
        samples: int = 20,
        *,
        likeliest: bool = False,
    ) -> Reconstruction | Diverse:
        """What the losses of both stages need; `samples` is the number that the best of the first stage is found in."""
        scene = self.read(past, seen)
        if self.sampler is not None:
            latent = self.sampler(scene.pooled)
            prior = Gaussian(*(each[:, None] for each in scene.prior))
            return Diverse(self.decode(scene, latent.mean), latent.divergence(prior).sum(dim=(1, 3)))
        posterior = self._posterior(scene, future, known)
        inferred = posterior.at(torch.randn_like(posterior.mean))
        best = scene.prior.at(self._best_noise(scene, future, known, samples))
        latents = [inferred, best, scene.prior.mean] if likeliest else [inferred, best]
        positions = self.decode(scene, torch.stack(latents, dim=1)).unbind(dim=1)
        divergence = posterior.divergence(scene.prior).sum(dim=-1)
        return Reconstruction(positions[0], positions[1], divergence, positions[2] if likeliest else None)

    def read(self, past: Float[Tensor, "B N P 2"], seen: Bool[Tensor, "B N P"]) -> Scene:
        """Encode the past of a scene, centred at the mean of the last positions."""
        present = seen[:, :, -1, None]
        last = torch.where(present, past[:, :, -1], 0.0)
        origin = (last.sum(dim=1) / present.sum(dim=1).clamp(min=1))[:, None, None]
        places = (past - origin) / self.config.scale
        velocity = places.diff(dim=2, prepend=2 * places[:, :, :1] - places[:, :, 1:2])
        first = self.config.past - past.shape[2]
        x = self.past_input(torch.cat([places, velocity], dim=-1), first)
        memory = AgentMemory(self.encoder(x, seen, first), seen, first)
        pooled = memory.pooled()
        prior = Gaussian(*self.prior(pooled).chunk(2, dim=-1))
        return Scene(memory, pooled, prior, origin, places[:, :, -1], velocity[:, :, -1])

    def latents(self, scene: Scene, noise: Float[Tensor, "B K N L"]) -> Float[Tensor, "B K N L"]:
        """A latent vector for every vector of noise. With a sampler, its K distributions take turns, and the first
        round of them is their means."""
        if self.sampler is None:
            return Gaussian(*(each[:, None] for each in scene.prior)).at(noise)
        each, count = self.sampler(scene.pooled), noise.shape[1]
        rounds = math.ceil(count / self.sampler.count)
        turns = Gaussian(*(part.repeat(1, rounds, 1, 1)[:, :count] for part in each))
        later = torch.arange(count, device=noise.device) >= self.sampler.count
        return turns.at(noise * later[:, None, None])

    def forecast(
        self, past: Float[Tensor, "B N P 2"], seen: Bool[Tensor, "B N P"], noise: Float[Tensor, "B K N L"]
    ) -> tuple[Float[Tensor, "B K N F 2"], Float[Tensor, "B N F 2"]]:
        """A sample of the future for every vector of noise, and the future of the prior's mean."""
        scene = self.read(past, seen)
        positions = self.decode(scene, torch.cat([self.latents(scene, noise), scene.prior.mean[:, None]], dim=1))
        return positions[:, :-1], positions[:, -1]

    def decode(self, scene: Scene, latents: Float[Tensor, "B K N L"]) -> Float[Tensor, "B K N F 2"]:
        """The future that each latent vector stands for."""
        c, samples = self.config, latents.shape[1]
        z = latents.flatten(0, 1)[:, :, None].expand(-1, -1, c.future, -1)
        now, velocity = (each.repeat_interleave(samples, dim=0)[:, :, None] for each in (scene.now, scene.velocity))
        base = now.expand(-1, -1, c.future, -1)
        if c.outputs == "velocity":
            base = now + velocity * torch.arange(1, c.future + 1, device=z.device)[:, None]
        places = now.expand_as(base)
        if c.decoder == "autoregressive":
            with torch.no_grad():
                walked = self._walk(scene, z, now, base)
            if not torch.is_grad_enabled():
                return self._in_metres(walked, scene, samples)
            places = torch.cat([now, walked[:, :, :-1]], dim=2)  # what was predicted is read without gradients
        x = self.decoder_input(torch.cat([places, z], dim=-1), c.past)
        there = scene.memory.present[:, :, None].expand(-1, -1, c.future)
        decoded = self.decoder(x, there, c.past, scene.memory, causal=c.decoder == "autoregressive")
        return self._in_metres(base + self.output(decoded), scene, samples)

    def _walk(
        self, scene: Scene, z: Float[Tensor, "R N F L"], now: Float[Tensor, "R N 1 2"], base: Float[Tensor, "R N F 2"]
    ) -> Float[Tensor, "R N F 2"]:
        """One step after another; each position that is predicted is read in the next step."""
        assert isinstance(self.decoder, AgentStack)
        unrolled = Unrolled(self.decoder, scene.memory, len(z) // len(scene.now))
        places, last = [], now
        for step in range(self.config.future):
            x = self.decoder_input(torch.cat([last, z[:, :, step : step + 1]], dim=-1), self.config.past + step)
            decoded = unrolled(x.flatten(1, 2), self.config.past + step)[:, :, None]
            last = base[:, :, step : step + 1] + self.output(decoded)
            places.append(last)
        return torch.cat(places, dim=2)

    def _in_metres(self, places: Float[Tensor, "R N F 2"], scene: Scene, samples: int) -> Float[Tensor, "B K N F 2"]:
        return places.float().unflatten(0, (-1, samples)) * self.config.scale + scene.origin[:, None]

    def _posterior(self, scene: Scene, future: Float[Tensor, "B N F 2"], known: Bool[Tensor, "B N F"]) -> Gaussian:
        """The latent vectors of a future that is known."""
        places = (future - scene.origin) / self.config.scale
        velocity = places.diff(dim=2, prepend=scene.now[:, :, None])
        x = self.future_input(torch.cat([places, velocity], dim=-1), self.config.past)
        read = AgentMemory(self.future_encoder(x, known, self.config.past, scene.memory), known, self.config.past)
        return Gaussian(*self.posterior(read.pooled()).chunk(2, dim=-1))

    @torch.no_grad()
    def _best_noise(
        self, scene: Scene, future: Float[Tensor, "B N F 2"], known: Bool[Tensor, "B N F"], samples: int
    ) -> Float[Tensor, "B N L"]:
        """Of several draws of noise, the one of each agent that comes nearest to its future, without dropout."""
        shape, training = (len(future), samples, future.shape[1], self.config.latent), self.training
        noise = torch.randn(shape, device=future.device)
        self.eval()
        positions = self.decode(scene, Gaussian(*(each[:, None] for each in scene.prior)).at(noise))
        self.train(training)
        away = ((positions - future[:, None]) ** 2).sum(dim=-1).masked_fill(~known[:, None], 0.0).sum(dim=-1)
        nearest = away.argmin(dim=1)[:, None, :, None].expand(-1, 1, -1, noise.shape[-1])
        return noise.gather(1, nearest)[:, 0]

    def _stack(self, cross: bool) -> AgentStack | RecurrentStack:
        c = self.config
        if c.body == "recurrent":
            return RecurrentStack(c.width, c.depth, c.dropout)
        layers = [
            AgentLayer(c.width, c.heads, c.ffn_width, c.dropout, c.norm, aware=c.agent_aware, cross=cross)
            for _ in range(c.depth)
        ]
        return AgentStack(layers, c.social, c.norm)


def _forecast(model: AgentFormer, rows: int, source: int, target: int) -> Reconstruction | Diverse:
    """Scenes of `source` agents; a future has a fixed length."""
    past, future = (torch.zeros(rows, source, steps, 2) for steps in (model.config.past, model.config.future))
    seen, known = (torch.ones(each.shape[:3], dtype=torch.bool) for each in (past, future))
    return model(past, seen, future, known)


EXAMPLE = Example(_forecast, "source", "scenes of {source} agents")
