"""Tracks: files of any form, windows by ETH/UCY's protocol, gaps, batches, and the walkers' rules."""

from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.sources import data_root
from regard.errors import DataError
from regard.families.trajectories.data import (
    FORK,
    TURN,
    SceneBatches,
    WindowProtocol,
    WindowStore,
    agent_noise,
    built_in_walkers,
    windows,
)
from regard.families.trajectories.task import BASELINES, Displacements, constant_velocity, measure, straight_line
from regard.families.trajectories.tracks import collection_files, filled, frame_text, read_tracks

ETH_UCY = Path(data_root()) / "eth_ucy"
ROWS = [(0, "7", 1.0, 2.0), (0, "a", 5.0, 5.0), (10, "7", 1.5, 2.0), (20, "7", 2.0, 2.0), (20, "a", 5.5, 5.0)]


def written(rows, separator="\t", header=""):
    lines = [separator.join(map(str, row)) for row in rows]
    return "\n".join([*([header] if header else []), *lines, ""]).encode()


@pytest.mark.parametrize(
    ("separator", "header"),
    [
        ("\t", ""),
        (" ", ""),
        ("   ", ""),
        (",", "frame,agent,x,y"),
        (";", "Time;ID;pos_x;pos_y"),
        (", ", ""),
        (" , ", "frame , agent , x , y"),
        (",", "timestamp,trackId,xCenter,yCenter"),
    ],
)
def test_columns_may_be_separated_and_named_in_many_ways(separator, header):
    tracks = read_tracks(written(ROWS, separator, header))
    assert tracks.agents == ["7", "a"] and tracks.step == 10 and tracks.last == 2
    numbers, positions, seen = tracks.window(0, 3)
    assert numbers.tolist() == [0, 1] and seen.tolist() == [[True] * 3, [True, False, True]]
    np.testing.assert_allclose(positions[0], [[1, 2], [1.5, 2], [2, 2]])


def test_a_header_finds_its_columns_and_numbers_are_names_without_decimals():
    text = "y,x,note,track_id,frame_id\n2,1,here,3.0,5\n4,3,there,3,6\n"
    tracks = read_tracks(text.encode())
    assert tracks.agents == ["3"] and tracks.positions.tolist() == [[1, 2], [3, 4]] and tracks.frame(1) == 6


def test_every_second_frame_counts_back_from_the_last():
    rows = [(frame, "1", frame, 0.0) for frame in range(8)]
    tracks = read_tracks(written(rows), every=2)
    assert tracks.positions[:, 0].tolist() == [1, 3, 5, 7] and tracks.step == 2 and tracks.first == 1
    assert tracks.times.tolist() == [0, 1, 2, 3]


def test_rows_given_twice_are_read_once_and_contradictions_refused():
    assert len(read_tracks(written([*ROWS, ROWS[0]])).times) == len(ROWS)
    contradiction = written([*ROWS, (0, "7", 9.0, 2.0)])
    with pytest.raises(DataError, match=r"line 6: agent 7 is at \(9, 2\) in frame 0, but at \(1, 2\) by line 1"):
        read_tracks(contradiction)
    bad: list[str] = []
    assert len(read_tracks(contradiction, bad=bad).times) == 5 and len(bad) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "has no row"),
        (b"\xff\xfe\x00", "is not text"),
        (b"frame,agent,x\n1,2,3", "no column 'y'"),
        (b"1 2 3 4\n1 3 x 4", "line 2: 'x' is not a number"),
        (b"1 2 3 4\n1 3 nan 4", "line 2: 'nan' is not a number"),
        (b"1 2 3 4\n1 3 4", "line 2: 3 columns"),
        (b"1 2 3 4 5", "5 columns without a header"),
        (b"frame,agent,x,y\n1,2,3,5,4,5", "line 2: 6 columns, where the first row has 4"),
        (b"1 2 1e30 4", r"line 1: \(1e30, 4\) is too far away; expected metres"),
        (
            b"0 1 0 0\n10 1 1 0\n20 1 2 0\n35 1 3 0\n40 1 4 0",
            r"line 5: frames 35 \(line 4\) and 40 are less than a step",
        ),
    ],
)
def test_wrong_files_are_refused_with_the_place(text, words):
    with pytest.raises(DataError, match=words):
        read_tracks(text, name="scene.csv")


@pytest.mark.parametrize("separator", [b";", b"\t"])
def test_between_semicolons_and_tabs_numbers_may_have_a_decimal_comma(separator):
    tracks = read_tracks(b"frame;agent;x;y\n0;1;1,5;2,25\n1;1;2;3\n".replace(b";", separator))
    assert tracks.positions.tolist() == [[1.5, 2.25], [2, 3]]


@pytest.mark.parametrize(
    "frame",
    [
        lambda time: f"{time / 30:.3f}", lambda time: f"{time / 30:.2f}", lambda time: f"{int(12.5 * time)}",
        lambda time: f"{0.4 * time + 0.02 * np.sin(5 * time):.6f}", lambda time: f"{1.7e9 + 0.4 * time:.1f}",
    ],
)  # fmt: skip
def test_times_that_are_rounded_or_measured_leave_no_gap(frame):
    shown = [time for time in range(300) if time not in (100, 101, 250)]
    tracks = read_tracks(written([(frame(time), agent, time, agent) for time in shown for agent in (1, 2)], ","))
    assert tracks.times.tolist() == [time for time in shown for _ in range(2)]
    assert tracks.positions[:, 0].tolist() == tracks.times.tolist()
    assert tracks.frame(299) == pytest.approx(float(frame(299)), abs=0.2 * tracks.step)


def test_large_frames_are_written_with_all_digits():
    rows = [(1_700_000_000_400 + 400 * time, 1, time, 0) for time in range(3)]
    again = read_tracks(read_tracks(written(rows)).to_csv().encode())
    assert (again.first, again.step, again.last) == (1_700_000_000_400, 400, 2)
    assert [frame_text(frame) for frame in (1234567.0, 0.4 * 3, 1 / 3, 0.0)] == ["1234567", "1.2", "0.333333", "0"]


def test_windows_of_map_coordinates_keep_millimetres():
    near = [(frame, str(agent), 0.1 * frame, agent + 0.001) for frame in range(6) for agent in range(2)]
    far = [(frame, agent, 6e6 + x, 5e5 + y) for frame, agent, x, y in near]
    (here, *_), (there, *_) = (list(windows(read_tracks(written(each)), WindowProtocol(3, 3))) for each in (near, far))
    steps = [np.diff(each.positions.astype(np.float64), axis=1) for each in (here, there)]
    np.testing.assert_allclose(steps[1], steps[0], atol=1e-6)
    assert np.ptp(there.positions[:, 0, 1]) == pytest.approx(1, abs=1e-6)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="is not a file"):
        read_tracks(tmp_path / "nothing.txt")


def test_gaps_are_filled_on_a_line_and_ends_at_the_velocity_beside_them():
    positions = np.full((3, 6, 2), np.nan, np.float32)
    positions[0, [1, 2, 4]] = [[1, 0], [2, 1], [4, 5]]
    positions[1, 3] = [7, 7]
    whole = filled(positions, ~np.isnan(positions[..., 0]))
    np.testing.assert_allclose(whole[0], [[0, -1], [1, 0], [2, 1], [3, 3], [4, 5], [5, 7]])
    assert (whole[1] == 7).all() and (whole[2] == 0).all()


def test_windows_are_those_of_a_plain_loop():
    tracks = built_in_walkers(3, 0, steps=24)
    by_time = {
        (time, agent): place for time, agent, place in zip(tracks.times, tracks.rows, tracks.positions, strict=True)
    }
    found = list(windows(tracks, WindowProtocol(3, 4)))
    expected = []
    for begin in range(24 - 7 + 1):
        whole = [a for a in range(len(tracks.agents)) if all((t, a) in by_time for t in range(begin, begin + 7))]
        if len(whole) >= 2:
            expected.append(np.array([[by_time[t, a] for t in range(begin, begin + 7)] for a in whole]))
    assert len(found) == len(expected) > 3
    for window, places in zip(found, expected, strict=True):
        np.testing.assert_allclose(window.positions, places, atol=1e-5)
        assert window.seen.all()


def test_present_agents_may_come_and_go():
    rows = [(t, "1", t, 0.0) for t in range(6)] + [(t, "2", 0.0, t) for t in (1, 2, 3)] + [(2, "3", 9, 9)]
    (window, *_) = windows(read_tracks(written(rows)), WindowProtocol(3, 3, agents="present"))
    assert window.seen.tolist() == [[True] * 6, [False, True, True, True, False, False]]
    assert window.positions[1, 0].tolist() == [0, 0]


def test_a_store_comes_back(tmp_path):
    store = WindowStore.of([built_in_walkers(1, 0), built_in_walkers(1, 1)], WindowProtocol(8, 12, stride=5))
    store.save(tmp_path, "train")
    again = WindowStore.load(tmp_path, "train")
    assert len(again) == len(store) and again.names == store.names and (again.positions == store.positions).all()
    assert len(WindowStore.of([], WindowProtocol(8, 12))) == 0


@pytest.mark.skipif(not ETH_UCY.is_dir(), reason="needs ETH/UCY")
@pytest.mark.parametrize(
    ("scene", "tracks", "errors"),
    [
        ("eth", 181, (1.00, 2.23)),
        ("hotel", 1053, (0.32, 0.62)),
        ("univ", 24334, (0.52, 1.17)),
        ("zara1", 2253, (0.43, 0.96)),
    ],
)
def test_the_protocol_gives_the_known_tracks_and_errors(scene, tracks, errors):
    store = WindowStore.of(
        [read_tracks(file) for file in collection_files(ETH_UCY, scene, "test")], WindowProtocol(8, 12)
    )
    assert len(store.keys) == tracks
    past, future = torch.from_numpy(store.positions).split([8, 12], dim=1)
    away = (constant_velocity(past[None], 12)[0] - future).norm(dim=-1)
    assert (away.mean().item(), away[:, -1].mean().item()) == pytest.approx(errors, abs=0.01)
    others = [Path(file).stem for file in collection_files(ETH_UCY, scene, "train")]
    assert not {name.removesuffix("_train") for name in others} & {Path(name).stem for name in store.names}
    assert len(others) == 7 - len(store.names)


def test_a_straight_line_is_the_least_squares_fit():
    past = torch.randn(2, 3, 8, 2, dtype=torch.float64)
    lines = np.polyfit(np.arange(8), past.permute(2, 0, 1, 3).reshape(8, -1).numpy(), 1)
    expected = np.stack([lines[0] * t + lines[1] for t in range(8, 13)]).reshape(5, 2, 3, 2).transpose(1, 2, 0, 3)
    np.testing.assert_allclose(straight_line(past, 5).numpy(), expected, atol=1e-9)
    walked = torch.arange(8.0)[:, None] * torch.tensor([0.3, -0.1])
    for continued in BASELINES.values():
        expected_end = torch.tensor([0.3, -0.1]) * (7 + 12)
        torch.testing.assert_close(continued(walked[None, None], 12)[0, 0, -1], expected_end)


@pytest.fixture(scope="module")
def store():
    return WindowStore.of([built_in_walkers(1, number) for number in range(6)], WindowProtocol(8, 12, stride=3))


def test_training_batches_turn_scenes_and_keep_distances(store):
    batches = SceneBatches(store, 8, seed=3, slots=24, most=4, mirror=True)
    plan = batches.plan(0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(len(store)))
    shapes = set()
    for number, rows in enumerate(plan):
        batch = batches(rows, (0, number))
        again = batches(rows, (0, number))
        assert all(torch.equal(*pair) for pair in zip(batch._values(), again._values(), strict=True))
        shapes.add(batch.shape)
        assert batch.past.shape[1] <= 4 and batch.past.shape[0] * batch.past.shape[1] <= 24
        for at, row in enumerate(rows):
            where, real = store.tracks_of(int(row)), batch.seen[at, :, -1]
            steps = torch.cat([batch.past, batch.future], 2)[at, real].diff(dim=1).norm(dim=-1)
            own = torch.from_numpy(store.positions[where]).diff(dim=1).norm(dim=-1)
            assert all((own - track).abs().max(dim=1).values.min() < 1e-4 for track in steps)
            assert int(real.sum()) == min(4, len(where))
    assert len(shapes) <= 4
    middle = (batch.past[:, :, -1] * batch.seen[:, :, -1:]).sum(dim=1)
    assert batch.seen[:, :, -1].any() and middle.isfinite().all()


def test_the_noise_of_an_agent_does_not_depend_on_the_others():
    keys = np.array([5, 9, 2])
    noise = agent_noise(keys, 4, 3, seed=1)
    np.testing.assert_array_equal(agent_noise(keys[[2, 0]], 4, 3, seed=1), noise[:, [2, 0]])
    assert noise.shape == (4, 3, 3) and (agent_noise(keys, 4, 3, seed=2) != noise).all()


def test_scenes_are_enlarged_within_the_given_factors(store):
    plain, scaled = (SceneBatches(store, 8, seed=3, slots=24, scale=scale) for scale in ((1.0, 1.0), (0.5, 2.0)))
    factors = []
    for rows in plain.plan(0):
        before, after = (each(rows, (0, 1)).past.numpy() for each in (plain, scaled))
        lengths = [np.linalg.norm(np.diff(each, axis=2), axis=-1).sum(axis=(1, 2)) for each in (before, after)]
        moving = lengths[0] > 1e-3
        factors += (lengths[1][moving] / lengths[0][moving]).tolist()
    assert 0.5 <= min(factors) < 0.8 and 1.3 < max(factors) <= 2.0 + 1e-5


def test_errors_are_those_of_plain_loops(store):
    batches = SceneBatches(store, 8)

    def predict(batch, noise):
        samples = batch.future[:, None] + noise[:, :, :, None, :] * torch.linspace(0.1, 1, 12)[:, None]
        return samples, samples[:, 0]

    found = measure(predict, batches, 5, 2, torch.device("cpu"))
    assert len(found.scenes) == len(store.keys)
    ade, fde, joint = [], [], 0.0
    for row in range(len(store)):
        noise = agent_noise(store.keys[store.tracks_of(row)], 5, 2, 0)
        lengths = np.linalg.norm(noise, axis=-1)
        ade += (lengths.min(axis=0) * np.linspace(0.1, 1, 12).mean()).tolist()
        fde += lengths.min(axis=0).tolist()
        joint += lengths.mean(axis=1).min() * lengths.shape[1]
    summary = found.summary()
    assert summary["best"] == pytest.approx({"ade": np.mean(ade), "fde": np.mean(fde)}, rel=1e-4)
    assert summary["joint"]["fde"] == pytest.approx(joint / len(store.keys), rel=1e-4)
    assert summary["best"]["fde"] <= summary["joint"]["fde"] <= summary["mean"]["fde"]
    one = Displacements(found.ade[:, :1], found.fde[:, :1], found.likeliest, found.scenes).summary()
    assert one["best"] == pytest.approx(one["joint"]) and one["best"] == pytest.approx(one["likeliest"])


def test_walkers_turn_at_the_fork_and_keep_their_speed():
    turned = []
    for number in range(6):
        tracks = built_in_walkers(2, number)
        for agent in range(len(tracks.agents)):
            places = tracks.positions[tracks.rows == agent]
            away = np.linalg.norm(places, axis=-1)
            if len(places) < 12 or not (away[0] > FORK + 1.5 and away[-1] > FORK and away.min() < FORK):
                continue
            steps = np.diff(places, axis=0)
            begin, end = steps[:2].mean(axis=0), steps[-2:].mean(axis=0)
            angle = np.angle(complex(*end) / complex(*begin))
            turned.append(round(float(np.degrees(angle)) / np.degrees(TURN)))
    assert {-1, 1} <= set(turned)
    assert sum(abs(each) == 1 for each in turned) > 0.7 * len(turned)  # the others gave way to someone
    assert all((built_in_walkers(2, 1).positions == built_in_walkers(2, 1).positions).flatten())
