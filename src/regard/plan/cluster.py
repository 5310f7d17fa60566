"""A long training run on many GPUs, on paper: memory, communication, utilisation, failures and checkpoints.

Weights, gradients and AdamW's moments are float32, products bf16. Replicated (DDP): every GPU holds all of them, and a
step sums the gradients in a ring. Sharded (FSDP2's `fully_shard`): every GPU holds its share. Weights are gathered in
bf16, layer by layer, before the forward pass and again before the backward pass, and gradients are reduce-scattered in
float32. In both cases communication overlaps with computation, so only the longer of the two counts.

Checkpoints are written every √(2·C·M) seconds (Young 1974, Daly 2006), where C is the time that writing blocks training
and M the time between failures. Lost are the writing, half an interval for every failure, and the restarts.

Sources of the defaults: Llama 3's report (Grattafiori et al. 2024, section 3.3): 16,384 H100 had 419 unexpected
interruptions in 54 days, reached 38 to 43 % of their peak, communicate at 400 Gb/s each between servers of 8, and share
storage that sustains 2 TB/s. NVIDIA's data sheet of the H100 SXM: 989 TFLOP/s in dense bf16, 80 GB. The ten minutes for
a restart are a guess.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from regard.config import Config
from regard.errors import UsageError
from regard.plan.plan import Plan
from regard.plan.recorder import FLOAT

HALF = 2  # bytes of a bf16
DAY = 86400.0
LLAMA_GPUS, LLAMA_FAILURES, LLAMA_DAYS = 16384, 419, 54
LLAMA_STORAGE = 2e12  # bytes per second, shared by all GPUs


class Cluster(Config):
    """The machines to train on; rates are per GPU and second."""

    gpus: PositiveInt = 1024
    flops: PositiveFloat = 989e12
    utilisation: float = Field(0.40, gt=0, le=1)  # share of `flops` reached while nothing has to wait
    memory: PositiveFloat = 80e9
    wire: PositiveFloat = 400e9 / 8
    storage: PositiveFloat = LLAMA_STORAGE / LLAMA_GPUS
    failure_days: PositiveFloat = LLAMA_GPUS * LLAMA_DAYS / LLAMA_FAILURES  # between two failures of one GPU
    restart: NonNegativeFloat = 600.0  # seconds from a failure to the next step


@dataclass(frozen=True)
class Way:
    """One way to divide the work: what it takes on every GPU in each step."""

    name: str
    memory: dict[str, float]  # bytes
    sent: float  # bytes that each GPU sends, and as many that it receives
    talking: float  # seconds of communication, most of which overlap with computation
    step: float  # seconds

    @property
    def total(self) -> float:
        return sum(self.memory.values())


@dataclass(frozen=True)
class ClusterPlan:
    """The whole training run."""

    cluster: Cluster
    tokens: float
    tokens_per_step: int
    flops_per_step: float  # on one GPU
    computing: float  # seconds per step
    ways: list[Way]
    checkpoint_bytes: float
    checkpoint_seconds: float
    interval: float  # seconds between checkpoints
    failure_seconds: float  # between two failures anywhere in the cluster
    lost: float  # share of the total time

    @property
    def steps(self) -> int:
        return math.ceil(self.tokens / self.tokens_per_step)

    def days(self, way: Way) -> float:
        """The duration of the training run, lost time included."""
        return self.steps * way.step / (1 - self.lost) / DAY

    def utilisation(self, way: Way) -> float:
        """The share of the peak of all GPUs, over the whole duration."""
        return self.flops_per_step / self.cluster.flops / way.step * (1 - self.lost)

    def fits(self, way: Way) -> bool:
        return way.total <= self.cluster.memory

    def to_json(self) -> dict[str, Any]:
        ways = [
            {**asdict(way), "total": way.total, "fits": self.fits(way), "days": self.days(way),
             "utilisation": self.utilisation(way)}
            for way in self.ways
        ]  # fmt: skip
        failures = max(self.days(way) for way in self.ways) * DAY / self.failure_seconds
        cluster = self.cluster.model_dump()
        return {**asdict(self), "cluster": cluster, "ways": ways, "steps": self.steps, "failures": failures}


def on_cluster(plan: Plan, cluster: Cluster, tokens: float) -> ClusterPlan:
    """Every GPU processes the plan's batch in each step, until this many tokens have been read."""
    if tokens <= 0:
        raise UsageError(f"--tokens is {tokens:g}; it must be above 0")
    computing = plan.training_flops / (cluster.utilisation * cluster.flops)
    state = 4 * FLOAT * plan.parameters  # weights, gradients, two moments
    checkpoint = 3 * FLOAT * plan.parameters / (cluster.gpus * cluster.storage)
    failure = cluster.failure_days * DAY / cluster.gpus
    interval = math.sqrt(2 * checkpoint * failure)
    return ClusterPlan(
        cluster=cluster,
        tokens=tokens,
        tokens_per_step=cluster.gpus * plan.tokens,
        flops_per_step=plan.training_flops,
        computing=computing,
        ways=[_replicated(plan, cluster, state, computing), _sharded(plan, cluster, state, computing)],
        checkpoint_bytes=3 * FLOAT * plan.parameters,
        checkpoint_seconds=checkpoint,
        interval=interval,
        failure_seconds=failure,
        lost=checkpoint / interval + interval / (2 * failure) + cluster.restart / failure,
    )


def _replicated(plan: Plan, cluster: Cluster, state: float, computing: float) -> Way:
    """In a ring, every gradient is sent twice: once to be summed, once as the sum."""
    sent = 2 * FLOAT * plan.parameters * _ring(cluster)
    memory = {"state": state, "bf16 weights": HALF * plan.parameters, **_activations(plan)}
    return _way("replicated (DDP)", memory, sent, cluster, computing)


def _sharded(plan: Plan, cluster: Cluster, state: float, computing: float) -> Way:
    """Weights are gathered twice per step. Two layers are whole at a time: the one in use and the one being fetched."""
    sent = (2 * HALF + FLOAT) * plan.parameters * _ring(cluster)
    memory = {"state": state / cluster.gpus, "bf16 weights": 2 * HALF * plan.measured.layer, **_activations(plan)}
    return _way("sharded (FSDP2)", memory, sent, cluster, computing)


def _way(name: str, memory: dict[str, float], sent: float, cluster: Cluster, computing: float) -> Way:
    talking = sent / cluster.wire
    return Way(name, memory, sent, talking, max(computing, talking))


def _activations(plan: Plan) -> dict[str, float]:
    """Activations are bf16; the logits and their gradient are float32, because the loss is."""
    return {
        "activations": HALF * plan.measured.activations / FLOAT, "logits": 2 * FLOAT * plan.measured.logits
    }  # fmt: skip


def _ring(cluster: Cluster) -> float:
    return (cluster.gpus - 1) / cluster.gpus
