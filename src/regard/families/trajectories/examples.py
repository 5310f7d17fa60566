"""Built-in scenes to try a model with on the page."""

from __future__ import annotations

from functools import cache
from typing import Any

from regard.families.trajectories.data import built_in_walkers

COUNT, SEED, TIME = 3, 7, 24  # scenes that no recipe trains on, and the step to forecast from


@cache
def examples() -> list[dict[str, Any]]:
    """Tracks as CSV, each with the frame to forecast from."""
    scenes = [built_in_walkers(SEED, number) for number in range(COUNT)]
    return [{"name": scene.name, "tracks": scene.to_csv(), "frame": scene.frame(TIME)} for scene in scenes]
