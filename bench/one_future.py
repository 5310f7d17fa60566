"""How much better than a constant velocity one future of a pedestrian can be, on a scene that nothing was trained on.

REGARD_DATA=... python bench/one_future.py [--steps 1500]

For each scene of ETH/UCY that is left out, a small network reads the past of one agent, turned to its heading, and
learns what to add to a constant velocity; its loss is the mean distance, which AgentFormer's likeliest future has too.
Printed are the errors (ADE / FDE, metres) on the validation parts of the scenes trained on, and on the scene left out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.families.trajectories.data import WindowStore
from regard.families.trajectories.task import ForecastTask
from regard.training.recipe.load import load_recipe, open_task

PAST, FUTURE, BATCH, WIDTH = 8, 12, 512, 128
SCENES = ("eth", "hotel", "univ", "zara1")


def whole_tracks(store: WindowStore) -> Float[Tensor, "M T 2"]:
    """The agents that are seen at every step."""
    return torch.from_numpy(store.positions[store.seen.all(axis=1)]).float()


def errors(found: Float[Tensor, "M F 2"], tracks: Float[Tensor, "M T 2"]) -> str:
    away = (found - tracks[:, PAST:]).norm(dim=-1)
    return f"{away.mean():.3f} / {away[:, -1].mean():.3f}"


def constant_velocity(tracks: Float[Tensor, "M T 2"]) -> Float[Tensor, "M F 2"]:
    last = tracks[:, PAST - 1 : PAST]
    return last + (last - tracks[:, PAST - 2 : PAST - 1]) * torch.arange(1, FUTURE + 1)[:, None]


class Added(nn.Module):
    """What an agent's past adds to its constant velocity, in the frame of its heading; nothing before training."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, 2 * FUTURE)
        self.layers = nn.Sequential(
            nn.Linear(2 * (PAST - 1), WIDTH), nn.GELU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH), nn.GELU(), self.last
        )
        nn.init.zeros_(self.last.weight), nn.init.zeros_(self.last.bias)

    def forward(self, tracks: Float[Tensor, "M T 2"]) -> Float[Tensor, "M F 2"]:
        origin = tracks[:, PAST - 1 : PAST]
        x, y = (tracks[:, PAST - 1] - tracks[:, PAST - 3]).unbind(dim=-1)
        angle = torch.atan2(y, x)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=-1).unflatten(-1, (2, 2))
        past = (tracks[:, :PAST] - origin) @ turn
        added = self.layers(past[:, :-1].flatten(1)).unflatten(-1, (FUTURE, 2))
        found: Tensor = (constant_velocity(past) + added) @ turn.mT + origin
        return found


def trained(tracks: Float[Tensor, "M T 2"], steps: int) -> Added:
    torch.manual_seed(0)
    model = Added()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    for _ in range(steps):
        some = tracks[torch.randint(len(tracks), (BATCH,))]
        some = some * torch.where(torch.rand(BATCH, 1, 2) < 0.5, -1.0, 1.0)  # mirrored
        loss = ((model(some) - some[:, PAST:]).square().sum(dim=-1) + 1e-6).sqrt().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model.eval()


@torch.no_grad()
def tell(name: str, model: Added, parts: dict[str, Float[Tensor, "M T 2"]]) -> None:
    rows = [
        f"{part}: constant velocity {errors(constant_velocity(tracks), tracks)}, learnt {errors(model(tracks), tracks)}"
        for part, tracks in parts.items()
    ]
    print(f"{name}: {'; '.join(rows)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    steps = parser.parse_args().steps
    for scene in SCENES:
        recipe = load_recipe("eth-ucy-agentformer", [f"data.leave_out={scene}", "training.device=cpu"]).resolved()
        with tempfile.TemporaryDirectory() as folder:
            task = open_task(recipe, Path(folder) / "data", torch.device("cpu"), lambda: None)
            assert isinstance(task, ForecastTask)
            stores = {part: whole_tracks(store) for part, store in task.corpus.stores.items()}
        tell(scene, trained(stores.pop("train"), steps), stores)


if __name__ == "__main__":
    main()
