"""Models that rank paths: success, navigation error and SPL by group of houses, beside what simple choices achieve."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.navigation.data import PathRows, PathStore, store_routes
from regard.families.navigation.features import Geometry
from regard.families.navigation.houses import House, Route, graphs_beside, read_houses, read_routes
from regard.families.navigation.pipeline import BUILT_IN, Navigator
from regard.families.navigation.prepare import baselines, expected_scores, one_hot
from regard.families.navigation.synthetic import built_in_house, built_in_routes
from regard.families.navigation.task import all_scores
from regard.search.settings import RECIPE
from regard.training.recipe.load import load_recipe

NOTE = "no images: geometry and language alone"
ROUTES = 5  # of a built-in house
FIRST_NEW = 1000  # number of the first built-in house that no recipe trains on


def evaluate_paths(navigator: Navigator, data: str, options: EvaluationOptions) -> Evaluation:
    """Success, error in metres and SPL on a file of paths, or in built-in houses that no recipe uses.

    Houses are grouped by whether the model was trained, validated or tested on them. Paths that it was trained on are
    left out. Bad paths are left out and named.
    """
    unread: list[str] = []
    if data == BUILT_IN:
        houses, routes = _built_in(options)
    else:
        houses = read_houses(graphs_beside(data))
        routes = read_routes(data, houses, unread)
    groups = {name: found for name, found in _groups(navigator, routes, _is_own(data, options.folder)) if found}
    if not groups and unread:
        raise DataError(f"{data}: has no path to measure on; {len(unread)} are left out, the first because {unread[0]}")
    if not groups:
        raise DataError(f"{data}: has no path to measure on: all are in houses that the model was trained on")
    scores: dict[str, object] = {"note": NOTE}
    for name, found in groups.items():
        scans = sorted({route.scan for route in found})
        geometry = Geometry.of(houses[scan] for scan in scans)
        store = store_routes(found, houses, geometry, navigator.settings.candidates)
        title = f"{name}: {len(scans)} houses, {len(found):,} paths, {len(store):,} instructions"
        scores[title] = _measured(navigator, store, geometry)
    return Evaluation(scores, unread)


def _measured(navigator: Navigator, store: PathStore, geometry: Geometry) -> dict[str, dict[str, float]]:
    """One row of metrics for the model, for the model with other instructions, and for each baseline."""
    longest = min(navigator.settings.longest, navigator.config.longest)
    ids = [each.ids for each in navigator.tokenizer.encode(store.instructions, longest=longest)]
    rows = PathRows(store, geometry, ids, navigator.tokenizer.pad, longest)
    half = len(ids) // 2
    found = {}
    for name, each in (("this model", rows), ("with other instructions", replace(rows, ids=ids[half:] + ids[:half]))):
        scores = all_scores(navigator.model, each, navigator.device, lambda: None)
        found[name] = expected_scores(store, one_hot(scores.argmax(dim=-1).numpy(), scores.shape[1]))
    return found | baselines(store, navigator.settings.prior)


def _groups(navigator: Navigator, routes: list[Route], own: bool) -> Iterator[tuple[str, list[Route]]]:
    """The routes by what their house was to the model; `own`: they are those that the model was trained on."""
    settings = navigator.settings
    known = {
        "houses trained on": set(settings.trained), "houses for validation": set(settings.validated),
        "houses for testing": set(settings.tested),
    }  # fmt: skip
    for name, scans in known.items():
        if not own or scans != set(settings.trained):
            yield name, [route for route in routes if route.scan in scans]
    every = set().union(*known.values())
    yield "other houses", [route for route in routes if route.scan not in every]


def _is_own(data: str, folder: Path) -> bool:
    """Whether a file is the one that the model in a folder was trained on."""
    file = folder / RECIPE
    trained = getattr(getattr(load_recipe(file), "data", None), "train", "") if file.is_file() else ""
    return Path(data).name == Path(str(trained)).name


def _built_in(options: EvaluationOptions) -> tuple[dict[str, House], list[Route]]:
    count = max(1, options.count // ROUTES)
    drawn = [built_in_house(options.seed, number) for number in range(FIRST_NEW, FIRST_NEW + count)]
    routes = [route for house in drawn for route in built_in_routes(house, options.seed, ROUTES)]
    return {house.scan: house for house in drawn}, routes
