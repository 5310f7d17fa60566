"""Houses, routes, candidates and features: against brute force, by hand, and as properties of generated houses."""

import gzip
import heapq
import io
import itertools
import json
import math
import tarfile
from pathlib import Path

import numpy as np
import pytest

from regard.errors import DataError
from regard.families.navigation.data import (
    SUCCESS,
    HiddenBatches,
    PathRows,
    PathStore,
    RankingBatches,
    mirrored,
    store_routes,
)
from regard.families.navigation.features import (
    FEATURE_NAMES,
    FEATURES,
    LOCATION_NAMES,
    LOCATIONS,
    MIRRORED_FEATURES,
    MIRRORED_LOCATIONS,
    SECTORS,
    CandidateConfig,
    Geometry,
    candidate_paths,
    is_shortest,
    shortest_paths,
    spread,
)
from regard.families.navigation.houses import LONGEST_PATH, House, graphs_beside, held_out, read_houses, read_routes
from regard.families.navigation.synthetic import built_in_house, built_in_houses, built_in_routes, legs
from regard.families.navigation.vlnbert import VlnbertConfig

R2R = Path("../shared/data/r2r")


def graph(positions, edges) -> list[dict]:
    """A connectivity file of these places, of which every edge is listed from one side alone."""
    rows = []
    for number, (x, y, z) in enumerate(positions):
        free = [(number, other) in edges for other in range(len(positions))]
        pose = [1, 0, 0, x, 0, 1, 0, y, 0, 0, 1, z, 0, 0, 0, 1]
        rows.append({"image_id": f"v{number}", "pose": pose, "included": True, "visible": free, "unobstructed": free})
    return rows


def line_house(count: int = 5) -> House:
    """Viewpoints 2 m apart along the y axis; the last is on its own."""
    places = [(0, 2 * number, 0) for number in range(count)]
    return House.from_json("line", graph(places, {(n, n + 1) for n in range(count - 2)}), "line")


def random_house(seed: int, count: int = 14) -> House:
    rng = np.random.default_rng(seed)
    pairs = {(a, b) for a, b in itertools.combinations(range(count), 2) if rng.random() < 0.18}
    return House.from_json("random", graph(rng.uniform(0, 20, (count, 3)).tolist(), pairs), "random")


def dijkstra(house: House, start: int) -> list[float]:
    found, queue = [math.inf] * len(house), [(0.0, start)]
    while queue:
        away, at = heapq.heappop(queue)
        if away < found[at]:
            found[at] = away
            for other in np.flatnonzero(house.edges[at]).tolist():
                heapq.heappush(
                    queue, (away + float(np.linalg.norm(house.positions[at] - house.positions[other])), other)
                )
    return found


@pytest.mark.parametrize("seed", range(6))
def test_distances_are_those_of_dijkstra(seed):
    house = random_house(seed)
    expected = np.array([dijkstra(house, start) for start in range(len(house))])
    np.testing.assert_allclose(house.distances, expected)


def test_distances_are_those_of_scipy():
    house = random_house(9, 30)
    scipy = pytest.importorskip("scipy.sparse.csgraph")
    np.testing.assert_allclose(house.distances, scipy.shortest_path(np.where(house.edges, house.edge_lengths, 0)))


def shortest(house, start, end):
    path = [start]
    while path[-1] != end:
        path.append(int(house.following[path[-1], end]))
    return tuple(path)


@pytest.mark.parametrize("seed", range(4))
def test_shortest_paths_follow_edges_and_have_the_shortest_length(seed):
    house = random_house(seed)
    for start, end in itertools.product(range(len(house)), repeat=2):
        if np.isfinite(house.distances[start, end]):
            path = shortest(house, start, end)
            assert path[0] == start and path[-1] == end
            assert all(house.edges[a, b] for a, b in itertools.pairwise(path))
            assert house.length(path) == pytest.approx(house.distances[start, end])


def test_unknown_viewpoints_and_jumps_are_named():
    house = line_house()
    with pytest.raises(DataError, match="has no viewpoint 'v9'"):
        house.path_of(["v0", "v9"])
    with pytest.raises(DataError, match="jumps from v0 to v2"):
        house.path_of(["v0", "v2"])
    with pytest.raises(DataError, match="no way leads from v4"):
        candidate_paths(house, 4, CandidateConfig())


def test_viewpoints_that_are_not_included_are_left_out():
    rows = graph([(0, 0, 0), (0, 2, 0), (0, 4, 0)], {(0, 1), (1, 2), (0, 2)})
    rows[1]["included"] = False
    house = House.from_json("s", rows, "s")
    assert house.viewpoints == ("v0", "v2") and house.edges.tolist() == [[False, True], [True, False]]


# --- files ---


def write_archive(path: Path, graphs: dict[str, list]) -> Path:
    with tarfile.open(path, "w:xz") as archive:
        for scan, rows in graphs.items():
            content = json.dumps(rows).encode()
            member = tarfile.TarInfo(f"connectivity/{scan}_connectivity.json")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def entry(path=("v0", "v1", "v2"), scan="line", **changes) -> dict:
    return {"scan": scan, "path_id": 1, "path": list(path), "heading": 0.5, "instructions": ["walk  on\n"]} | changes


def test_graphs_come_from_archives_folders_and_files_alike(tmp_path):
    rows = graph([(0, 0, 0), (0, 2, 0)], {(0, 1)})
    archive = write_archive(tmp_path / "connectivity.tar.xz", {"a": rows, "b": rows})
    folder = tmp_path / "graphs"
    folder.mkdir()
    for scan in "ab":
        (folder / f"{scan}_connectivity.json").write_text(json.dumps(rows))
    (folder / "notes.txt").write_text("not a graph")
    assert read_houses(archive).keys() == read_houses(folder).keys() == {"a", "b"}
    assert list(read_houses(folder / "a_connectivity.json")) == ["a"] and list(read_houses(archive, {"b"})) == ["b"]
    assert graphs_beside(tmp_path / "paths.json") == archive


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a_connectivity.json", b"{", "is not JSON"),
        ("a_connectivity.json", b'{"a": 1}', "is not a connectivity graph"),
        ("a_connectivity.json", b'[{"image_id": "x", "included": true}]', "is not a connectivity graph"),
        ("a_connectivity.json", b"[]", "has 0 viewpoints"),
        ("a.tar.xz", b"no archive at all", "is not a readable tar archive"),
        ("a.tar.gz", gzip.compress(b"no archive", mtime=0), "is not a readable tar archive"),
    ],
)
def test_graphs_of_other_formats_are_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_houses(tmp_path / name)
    with pytest.raises(DataError, match="no such file"):
        read_houses(tmp_path / "absent.tar.xz")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (entry(("v0", "v2")), "jumps from v0 to v2"),
        (entry(("v0", "v7")), "no viewpoint 'v7'"),
        (entry(scan="lime"), "no house 'lime'; did you mean 'line'"),
        (entry(("v0",)), "has 1 viewpoints"),
        (entry(instructions=[" "]), "instruction is empty"),
        (entry(heading=math.nan), "heading is not finite"),
        ({"scan": "line"}, "expected a JSON list of paths"),
        ("line", "expected a JSON list of paths"),
    ],
)
def test_bad_paths_are_one_error_or_are_counted_and_named(tmp_path, bad, message):
    file = tmp_path / "paths.json"
    file.write_text(json.dumps([entry(), bad]))
    houses = {"line": line_house()}
    with pytest.raises(DataError, match=message) as caught:
        read_routes(file, houses)
    assert "path 2" in str(caught.value) and "\n" not in str(caught.value)
    skipped: list[str] = []
    (route,) = read_routes(file, houses, skipped)
    assert route.path == (0, 1, 2) and route.instructions == ("walk on",) and len(skipped) == 1


@pytest.mark.parametrize("content", [b"{}", b"[]", b"not json", b"\x89PNG\r\n"])
def test_files_that_are_no_paths_are_refused(tmp_path, content):
    (tmp_path / "paths.json").write_bytes(content)
    with pytest.raises(DataError, match="expected a JSON list of paths"):
        read_routes(tmp_path / "paths.json", {})


def test_the_same_houses_are_held_out_in_any_order():
    scans = [f"h{number}" for number in range(20)]
    assert held_out(scans, 5) == held_out(reversed(scans), 5) and held_out(scans, 5) == held_out(scans, 8)[:5]


@pytest.mark.skipif(not (R2R / "R2R_val_seen.json.gz").is_file(), reason="Room-to-Room is not there")
def test_room_to_room_is_made_of_shortest_paths_whose_lengths_it_tells():
    entries = json.loads(gzip.decompress((R2R / "R2R_val_seen.json.gz").read_bytes()))
    scans = {each["scan"] for each in entries[:60]}
    houses = read_houses(R2R / "connectivity.tar.xz", scans)
    routes = [each for each in read_routes(R2R / "R2R_val_seen.json.gz", houses, []) if each.scan in scans]
    told = {tuple(each["path"]): each["distance"] for each in entries}
    assert len(routes) > 60
    right = 0
    for route in routes:
        house = houses[route.scan]
        length = told[tuple(house.viewpoints[number] for number in route.path)]
        right += house.length(route.path) == pytest.approx(length, abs=0.01)
        assert is_shortest(house, route.path)
    assert right >= len(routes) - 1  # the file tells a wrong length of path 4554


# --- candidates ---


@pytest.mark.parametrize("number", range(8))
def test_candidates_are_different_walkable_paths_from_the_start(number):
    house = built_in_house(3, number)
    for start in range(0, len(house), 7):
        config = CandidateConfig(count=12, walks=4)
        found = candidate_paths(house, start, config)
        assert found == candidate_paths(house, start, config)  # of house and start alone
        assert len(set(found)) == len(found) <= 12 and sum(not is_shortest(house, path) for path in found) <= 4
        for path in found:
            assert path[0] == start and 2 <= len(path) <= LONGEST_PATH and len(set(path)) == len(path)
            assert all(house.edges[a, b] for a, b in itertools.pairwise(path))


def test_shortest_paths_lead_to_every_end_that_is_near_enough():
    house = built_in_house(1, 0)
    paths = shortest_paths(house, 0)
    found = {row[row >= 0][-1]: tuple(row[row >= 0].tolist()) for row in paths}
    expected = {end: shortest(house, 0, end) for end in range(1, len(house))}
    assert found == {end: path for end, path in expected.items() if len(path) <= LONGEST_PATH}


def test_spread_ends_cover_what_can_be_reached():
    places = np.array([0.0, 1.0, 2.0, 10.0, 11.0, 20.0])
    apart = abs(places[:, None] - places[None])
    assert spread(apart, places, 3).tolist() == [0, 3, 5] and spread(apart, places, 9).tolist() == list(range(6))


# --- features ---


def reference(house: House, path: tuple[int, ...], heading: float) -> list[dict[str, float]]:
    """The features of each viewpoint of a path, computed one by one."""
    rows, walked, facing = [], 0.0, heading
    total = house.length(path)
    for step, place in enumerate(path):
        here = house.positions[place]
        came = here - house.positions[path[step - 1]] if step else np.zeros(3)
        if step:
            walked += float(np.linalg.norm(came))
            facing = math.atan2(came[0], came[1])
        onward = house.positions[path[step + 1]] - here if step + 1 < len(path) else None
        offset = here - house.positions[path[0]]
        turn = None if onward is None else math.atan2(onward[0], onward[1]) - facing
        slope = math.atan2(came[2], math.hypot(came[0], came[1])) if step else 0.0
        row = {
            "forward": (offset[0] * math.sin(heading) + offset[1] * math.cos(heading)) / 10,
            "right": (offset[0] * math.cos(heading) - offset[1] * math.sin(heading)) / 10,
            "up": offset[2] / 10,
            "sin heading": math.sin(facing - heading), "cos heading": math.cos(facing - heading),
            "sin elevation": math.sin(slope), "cos elevation": math.cos(slope),
            "sin turn": 0.0 if turn is None else math.sin(turn), "cos turn": 0.0 if turn is None else math.cos(turn),
            "next edge": 0.0 if onward is None else float(np.linalg.norm(onward)) / 5, "walked": walked / 10,
            "degree": house.edges[place].sum() / 10, "visible": house.visible[place].sum() / 30,
            "height change": came[2], "next height change": 0.0 if onward is None else onward[2],
            "start": float(step == 0), "end": float(step == len(path) - 1),
            "still to walk": (total - walked) / 10, "from start": float(np.linalg.norm(offset)) / 10,
        }  # fmt: skip
        row |= {f"step {number}": float(number == step) for number in range(LONGEST_PATH)}
        for name, related, scale in (("open", house.edges, 5), ("sight", house.visible, 10)):
            around = [0.0] * SECTORS
            for other in np.flatnonzero(related[place]).tolist():
                if other != place:
                    way = house.positions[other] - here
                    sector = round(math.atan2(way[0], way[1]) * SECTORS / (2 * math.pi)) % SECTORS
                    around[sector] = max(around[sector], float(np.linalg.norm(way)))
            shift = round(facing * SECTORS / (2 * math.pi))
            row |= {f"{name} {30 * n}": around[(n + shift) % SECTORS] / scale for n in range(SECTORS)}
        rows.append(row)
    return rows


def test_features_are_those_computed_step_by_step():
    house = built_in_house(5, 1)
    geometry = Geometry.of([built_in_house(5, 0), house])
    paths = candidate_paths(house, 3, CandidateConfig(count=9, walks=3))
    found = geometry.steps(geometry.padded(house.scan, paths), np.full(len(paths), 0.7))
    assert found.features.shape == (len(paths), LONGEST_PATH + 1, FEATURES)
    for path, features, places, mask in zip(paths, found.features, found.locations, found.mask, strict=True):
        assert mask.tolist() == [True] * (len(path) + 1) + [False] * (LONGEST_PATH - len(path))
        for row, (number, place) in zip(reference(house, path, 0.7), enumerate(places[1:]), strict=False):
            np.testing.assert_allclose(place, [row[name] for name in LOCATION_NAMES], atol=1e-5)
            np.testing.assert_allclose(features[1 + number], [row[name] for name in FEATURE_NAMES], atol=1e-5)
        assert not features[1 + len(path) :].any() and not places[1 + len(path) :].any()
        own = len(FEATURE_NAMES) - LOCATIONS
        np.testing.assert_allclose(features[0, :own], features[1 : 1 + len(path), :own].mean(axis=0), atol=1e-5)
        assert places[0, 10] == pytest.approx(house.length(path) / 10, abs=1e-5)


def test_the_configuration_of_the_model_has_as_many_numbers():
    config = VlnbertConfig(vocab=5)
    assert (config.region_features, config.region_places) == (FEATURES, LOCATIONS) and LOCATIONS == 11


def test_turning_the_house_and_the_heading_together_changes_no_exact_feature():
    house = built_in_house(2, 4)
    angle = math.radians(30)  # a whole sector
    turn = np.array([[math.cos(angle), math.sin(angle), 0], [-math.sin(angle), math.cos(angle), 0], [0, 0, 1]])
    turned = House("turned", house.viewpoints, house.positions @ turn.T, house.edges, house.visible)
    paths = candidate_paths(house, 0, CandidateConfig(count=8, walks=2))
    for each, heading in ((house, 0.3), (turned, 0.3 + angle)):
        geometry = Geometry.of([each])
        found = geometry.steps(geometry.padded(each.scan, paths), np.full(len(paths), heading))
        if each is house:
            expected = found
    np.testing.assert_allclose(found.locations, expected.locations, atol=1e-5)
    np.testing.assert_allclose(found.features[..., :16], expected.features[..., :16], atol=1e-5)


def test_mirrored_features_are_those_of_the_mirrored_house():
    house = built_in_house(4, 2)
    other = House("mirror", house.viewpoints, house.positions * [-1, 1, 1], house.edges, house.visible)
    paths = candidate_paths(house, 1, CandidateConfig(count=8, walks=2))
    found = []
    for each, heading in ((house, 0.9), (other, -0.9)):
        geometry = Geometry.of([each])
        found.append(geometry.steps(geometry.padded(each.scan, paths), np.full(len(paths), heading)))
    order, signs = MIRRORED_LOCATIONS
    np.testing.assert_allclose(found[0].locations[..., order] * signs, found[1].locations, atol=1e-5)
    order, signs = MIRRORED_FEATURES
    np.testing.assert_allclose(found[0].features[..., order] * signs, found[1].features, atol=1e-5)


def test_a_mirrored_example_has_left_and_right_exchanged(rows):
    batch = rows.all_candidates(np.arange(4))
    again = mirrored(
        mirrored(batch, np.array([True, False, True, False]), (5, 6)), np.array([True] + [False] * 3), (5, 6)
    )
    assert (again.words[[0, 1, 3]] == batch.words[[0, 1, 3]]).all()  # twice is as before
    assert (again.features[[0, 1, 3]] == batch.features[[0, 1, 3]]).all()
    swapped = {5: 6, 6: 5}
    assert again.words[2].tolist() == [swapped.get(word, word) for word in batch.words[2].tolist()]
    assert not (again.places[2] == batch.places[2]).all() and (again.places[2, ..., 0] == batch.places[2, ..., 0]).all()


# --- built-in houses ---


def test_built_in_houses_are_whole_and_depend_on_their_number():
    houses = list(built_in_houses(1, 12))
    assert all(np.isfinite(house.distances).all() for house in houses)
    assert built_in_house(1, 3).positions.tolist() == houses[3].positions.tolist() != houses[4].positions.tolist()
    assert any(np.ptp(house.positions[:, 2]) > 2 for house in houses)  # some have stairs
    assert min(len(house) for house in houses) >= 16


def test_instructions_tell_turns_distances_and_stairs():
    routes = [(house, route) for house in built_in_houses(1, 10) for route in built_in_routes(house, 1, 10)]
    assert len(routes) > 80 and len({text for _, route in routes for text in route.instructions}) > 200
    for house, route in routes:
        assert 4 <= len(route.path) <= 7 and is_shortest(house, route.path)
        parts = legs(house, route.path, route.heading)
        assert sum(leg.metres for leg in parts) == pytest.approx(house.length(route.path))
        for text in (each.lower() for each in route.instructions):
            for climb, word in ((1, "up the stairs"), (-1, "down the stairs")):
                assert text.count(word) == sum(leg.climb == climb for leg in parts)
            for word, low, high in (("turn left", -150, -40), ("turn right", 40, 150)):
                assert text.count(word) == sum(low <= math.degrees(leg.turn) <= high for leg in parts)


# --- stores and batches ---


@pytest.fixture(scope="module")
def rows() -> PathRows:
    houses = {house.scan: house for house in built_in_houses(1, 3)}
    routes = [route for house in houses.values() for route in built_in_routes(house, 1, 4)]
    geometry = Geometry.of(houses.values())
    store = store_routes(routes, houses, geometry, CandidateConfig(count=10, walks=2))
    return PathRows(store, geometry, [[2, 5 + n % 3, 7, 3] for n in range(len(store))], 0, 6)


def test_a_store_comes_back_from_disk(rows, tmp_path):
    rows.store.save(tmp_path, "train")
    rows.geometry.save(tmp_path / "geometry.npz")
    again, geometry = PathStore.load(tmp_path, "train"), Geometry.load(tmp_path / "geometry.npz")
    assert again.instructions == rows.store.instructions and again.candidates.tolist() == rows.store.candidates.tolist()
    assert geometry.scans == rows.geometry.scans and geometry.openings.tolist() == rows.geometry.openings.tolist()


def test_ranking_batches_have_one_success_first_and_differ_by_epoch(rows):
    store = rows.store
    usable = np.flatnonzero(store.succeeds.any(axis=1)[store.routes])
    make = RankingBatches(rows, failures=3, seed=4)
    first, again, later = make(usable, (0, 0)), make(usable, (0, 5)), make(usable, (1, 0))
    assert all((a == b).all() for a, b in zip(first._values(), again._values(), strict=True))
    assert not (first.features == later.features).all()
    everything = rows.all_candidates(usable)
    for number, row in enumerate(usable.tolist()):
        errors = store.errors[store.routes[row]]
        for place in range(4):
            same = (everything.features[number] == first.features[number, place]).all(dim=-1).all(dim=-1)
            away = errors[np.flatnonzero(same.numpy())]
            assert (away < SUCCESS).any() if place == 0 else (away >= SUCCESS).any()


def test_hidden_batches_hide_row_0_and_the_steps_to_predict(rows):
    def masker(ids, rng):
        shown = ids.copy()
        shown[2] = 4
        return shown, np.arange(len(ids)) == 2

    batch = HiddenBatches(rows, masker, 0.5, 1)(np.arange(len(rows.store)), (0, 0))
    other = batch.mismatched.bool()
    assert other.any() and not other.all()
    assert not batch.features[:, 0].any() and not batch.places[:, 0].any() and batch.targets[:, 0].any()
    assert not batch.hidden[other].any() and not batch.labels_mask[other].any()
    assert batch.hidden[~other].any(dim=1).all() and not (batch.hidden & ~batch.step_mask).any()
    hidden = batch.features[batch.hidden].any(dim=-1)
    assert (~hidden).float().mean() > 0.7  # 90 % of the hidden steps are zero
    shown = batch.step_mask & ~batch.hidden
    shown[:, 0] = False
    assert (batch.features[shown] == batch.targets[shown]).all()
    assert batch.tokens == int(batch.labels_mask.sum()) == int((~other).sum())
