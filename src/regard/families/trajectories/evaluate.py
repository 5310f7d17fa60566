"""Models that forecast tracks: ADE and FDE of the likeliest future and of the best samples, beside simple guesses."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.trajectories.data import (
    SCENES,
    SceneBatch,
    SceneBatches,
    WindowProtocol,
    WindowStore,
    built_in_walkers,
    collection_files,
    is_collection,
    store_tracks,
    whole_file,
)
from regard.families.trajectories.pipeline import BUILT_IN, Forecaster
from regard.families.trajectories.task import BASELINES, measure
from regard.families.trajectories.tracks import Tracks, read_tracks

FIRST_NEW = 100_000  # number of the first built-in scene that no recipe trains on
STEPS = 40  # of a built-in scene


def evaluate_forecasts(forecaster: Forecaster, data: str, options: EvaluationOptions) -> Evaluation:
    """ADE and FDE in metres on a file, on a scene of ETH/UCY (FOLDER#SCENE), or on built-in scenes.

    Of a folder without a scene, the one that the model was trained without is taken. Windows are cut by ETH/UCY's
    protocol: stride 1, two agents or more, all of them seen at every step; with one agent where there are no others.
    """
    unread: list[str] = []
    tracks = _tracks(forecaster, data, options, unread)
    store, fewest = _store(forecaster, tracks)
    samples, config = options.samples, forecaster.config
    batches = SceneBatches(store, config.past)

    def predict(batch: SceneBatch, noise: Tensor) -> tuple[Tensor, Tensor]:
        return forecaster.model.forecast(batch.past, batch.seen, noise)

    found = measure(predict, batches, samples, config.latent, forecaster.device, seed=options.seed).summary()
    names = {"likeliest": "likeliest", "mean": f"mean of {samples}", "best": f"best of {samples}",
             "joint": f"best of {samples}, all agents together"}  # fmt: skip
    scores: dict[str, object] = {
        "files": ", ".join(Path(name).name for name in store.names),
        "windows": len(store),
        "tracks": len(store.keys),
        "protocol": f"{config.past} + {config.future} steps, stride 1, {fewest} agents or more, k = {samples}",
    }
    known = {Path(name).stem for name in store.names} & set(map(whole_file, forecaster.settings.trained))
    if known:
        scores["note"] = f"the model was trained on {', '.join(sorted(known))}"
    scores |= {title: found[name] for name, title in names.items()}
    return Evaluation(scores | _baselines(batches, config.future, forecaster.device), unread)


def _baselines(batches: SceneBatches, steps: int, device: torch.device) -> dict[str, object]:
    """What simple guesses achieve."""
    found: dict[str, object] = {}
    for name, continued in BASELINES.items():

        def predict(batch: SceneBatch, _: Tensor, continued: object = continued) -> tuple[Tensor, Tensor]:
            assert callable(continued)
            future: Tensor = continued(batch.past, steps)
            return future[:, None], future

        found[name] = measure(predict, batches, 1, 1, device).summary()["likeliest"]
    return found


def _tracks(forecaster: Forecaster, data: str, options: EvaluationOptions, unread: list[str]) -> list[Tracks]:
    if data == BUILT_IN:
        count = max(1, options.count // STEPS)
        return [built_in_walkers(options.seed, FIRST_NEW + number, STEPS) for number in range(count)]
    place, _, scene = data.partition("#")
    if not is_collection(place):
        return [read_tracks(data, every=forecaster.settings.every, bad=unread)]
    scene = scene or forecaster.settings.leave_out
    if not scene:
        raise DataError(f"{place} holds several scenes; name one: {place}#{next(iter(SCENES))}")
    files = collection_files(place, scene, "test")
    return [read_tracks(file, every=forecaster.settings.every, bad=unread) for file in files]


def _store(forecaster: Forecaster, tracks: list[Tracks]) -> tuple[WindowStore, int]:
    """The windows to measure on, and the number of agents that each has at least."""
    config = forecaster.config
    for fewest in (2, 1):
        store = store_tracks(tracks, WindowProtocol(config.past, config.future, fewest=fewest))
        if len(store):
            return store, fewest
    raise DataError(
        f"{tracks[0].name} has no agent that is seen for {config.past + config.future} steps without a gap; errors are "
        "measured on such agents alone"
    )
