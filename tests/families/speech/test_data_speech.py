"""Recordings with texts: manifests, folders and archives, stored speeds, joined strings, spectrograms."""

import io
import json
import pickle
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.families.speech.data import (
    SpeechBatches,
    SpeechStore,
    Spoken,
    SpokenRows,
    at_speed,
    in_16_bits,
    padded_samples,
)
from regard.families.speech.features import LogMelConfig, SpecAugment, log_mel, speech_features
from regard.families.speech.manifest import read_recordings
from regard.families.speech.recipe import JoinConfig
from tiny_speech import write_wav

AUDIO = LogMelConfig(rate=8000, n_fft=256, window=200, hop=80, mels=20)
END = 1


def tone(seconds, hertz=300.0, rate=8000):
    return (0.4 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def test_a_manifest_of_json_lines_names_recordings_parts_and_speakers(tmp_path):
    write_wav(tmp_path / "a.wav", tone(0.5), 8000)
    rows = [
        {"audio": "a.wav", "text": "one two", "speaker": "ann"},
        {"audio_filepath": "a.wav", "text": "two", "offset": 0.25, "duration": 0.25},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    first, second = read_recordings(tmp_path / "m.jsonl")
    assert (first.text, first.audio, first.speaker, first.end) == ("one two", tmp_path / "a.wav", "ann", None)
    assert (second.start, second.end, second.name) == (0.25, 0.5, "a.wav at 0.25 s")


def test_a_table_has_a_header_and_common_voice_keeps_its_clips_apart(tmp_path):
    (tmp_path / "clips").mkdir()
    write_wav(tmp_path / "clips" / "x.wav", tone(0.1), 8000)
    (tmp_path / "m.tsv").write_text("client_id\tpath\tsentence\nbob\tx.wav\tyes\n")
    (found,) = read_recordings(tmp_path / "m.tsv")
    assert found == (("x.wav", "yes", tmp_path / "clips" / "x.wav", "bob", 0.0, None))


def test_folders_have_texts_beside_recordings_or_are_librispeech_or_digits(tmp_path):
    for name in ("ann/a.wav", "12-34-0001.wav", "7_theo_3.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_wav(tmp_path / name, tone(0.1), 8000)
    (tmp_path / "ann" / "a.txt").write_text(" some\nwords ")
    (tmp_path / "12-34.trans.txt").write_text("12-34-0001 HELLO THERE\n")
    found = {(each.text, each.speaker) for each in read_recordings(tmp_path)}
    assert found == {("some words", "ann"), ("HELLO THERE", "12"), ("seven", "theo")}
    write_wav(tmp_path / "odd.wav", tone(0.1), 8000)
    with pytest.raises(DataError, match=r"odd\.wav: there is no text for it"):
        list(read_recordings(tmp_path))


def test_an_archive_of_spoken_digits_is_read_without_unpacking(tmp_path):
    write_wav(tmp_path / "a.wav", tone(0.1), 8000)
    data = (tmp_path / "a.wav").read_bytes()
    with tarfile.open(tmp_path / "r.tar.xz", "w:xz") as archive:
        for name in ("recordings/0_george_5.wav", "recordings/9_lucas_12.wav", "recordings/README.md"):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    first, second = read_recordings(tmp_path / "r.tar.xz")
    assert (first.text, first.speaker, first.audio) == ("zero", "george", data) and second.text == "nine"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("m.jsonl", '{"audio": "a.wav"}', "line 1: has no 'text'"),
        ("m.jsonl", "{", "line 1: is not JSON"),
        ("m.jsonl", "[1]", "line 1: is not a JSON object"),
        ("m.jsonl", '{"audio": "a", "text": "b", "start": "soon"}', "line 1: start is 'soon'"),
        ("m.jsonl", '{"audio": "a", "text": "b", "start": 2, "end": 1}', "line 1: ends at 1 s, but begins at 2 s"),
        ("m.tsv", "audio\ttext\na\n", "line 2: 1 columns, but the header has 2"),
        ("m.txt", "", "has no recordings"),
    ],
)
def test_bad_manifests_are_refused_with_their_place(tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        list(read_recordings(tmp_path / name))


def test_what_does_not_exist_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no file or folder"):
        read_recordings(tmp_path / "nowhere")


def test_speeds_change_length_and_pitch():
    samples = tone(1.0, 400.0)
    for speed in (0.9, 1.1):
        changed = at_speed(samples, speed)
        assert len(changed) == pytest.approx(8000 / speed, abs=1)
        peak = np.abs(np.fft.rfft(changed)).argmax() * 8000 / len(changed)
        assert peak == pytest.approx(400 * speed, rel=0.01)
    assert at_speed(samples, 1.0) is samples


def stored(folder, count=8, speeds=(1.0,)):
    """Recordings of two speakers; recording n has a constant value and the ids n + 10 and the end token."""
    spoken = (
        Spoken(f"r{n}", f"w{n}", "ab"[n % 2], np.full(800 + 80 * n, (n + 1) / 100, dtype=np.float32))
        for n in range(count)
    )
    SpeechStore.write(folder, spoken, speeds)
    SpeechStore.write_tokens(folder, [[n + 10, END] for n in range(count)])
    return SpeechStore.open(folder)


def test_a_store_keeps_samples_texts_and_tokens(tmp_path):
    store = pickle.loads(pickle.dumps(stored(tmp_path / "s", speeds=(0.9, 1.0))))
    assert len(store) == 8 and store.usual == 1 and store.rows[3] == ("r3", "w3", "b")
    assert np.array_equal(store.samples(2, 1), in_16_bits(np.full(960, 0.03, dtype=np.float32)))
    assert store.lengths()[0].tolist() == [889, 800] and store.tokens[3].tolist() == [13, END]
    (tmp_path / "s" / "waves.bin").write_bytes(b"12")
    with pytest.raises(DataError, match="prepare it again"):
        SpeechStore.open(tmp_path / "s")


def rows(store, *, join=None, varied=True, count=40):
    return SpokenRows(store, np.arange(len(store)), 8000, join or JoinConfig(), count, END, 3, varied)


def test_strings_are_of_one_speaker_with_pauses_and_depend_on_their_place_alone(tmp_path):
    join = JoinConfig(shortest=2, longest=4, shortest_pause=0.05, longest_pause=0.1)
    spoken = rows(stored(tmp_path / "s"), join=join)
    lengths = set()
    for number in range(40):
        said, again = spoken.utterance(number, 2), spoken.utterance(number, 2)
        assert np.array_equal(said.samples, again.samples) and said[1:] == again[1:]
        *ids, end = said.ids
        lengths.add(len(ids))
        assert end == END and said.text == " ".join(f"w{token - 10}" for token in ids)
        assert {"ab"[(token - 10) % 2] for token in ids} == {said.speaker}
        silence = len(said.samples) - sum(800 + 80 * (token - 10) for token in ids)
        assert (len(ids) + 1) * 400 - 5 <= silence <= (len(ids) + 1) * 800
    assert lengths == {2, 3, 4}
    assert spoken.utterance(0, 2).text != spoken.utterance(0, 3).text or spoken.utterance(1, 2) != spoken.utterance(
        1, 3
    )
    fixed = rows(spoken.store, join=join, varied=False)
    assert len(fixed) == 40 and fixed.utterance(5).text == fixed.utterance(5).text


def test_every_recording_can_be_measured_once_with_pauses_around_it(tmp_path):
    join = JoinConfig(shortest=1, longest=2, shortest_pause=0.05, longest_pause=0.1, measured="recordings")
    store = stored(tmp_path / "s")
    assert len(rows(store, join=join)) == 40  # strings to train on
    measured = rows(store, join=join, varied=False)
    assert [measured.utterance(number).text for number in range(len(measured))] == [f"w{n}" for n in range(8)]
    silence = len(measured.utterance(2).samples) - 960
    assert 2 * 400 - 2 <= silence <= 2 * 800


def test_every_recording_is_planned_once_an_epoch_beside_others_of_its_length(tmp_path):
    spoken = rows(stored(tmp_path / "s", count=30))
    plan = spoken.plan(4, 1)
    assert sorted(np.concatenate(plan).tolist()) == list(range(30)) and max(map(len, plan)) <= 4
    spread = [np.ptp(some) for some in plan]  # lengths grow with the number
    assert max(spread) <= 4
    assert [some.tolist() for some in plan] == [some.tolist() for some in spoken.plan(4, 1)]
    assert [some.tolist() for some in plan] != [some.tolist() for some in spoken.plan(4, 2)]


def test_batches_are_a_function_of_their_place(tmp_path):
    make = SpeechBatches(rows(stored(tmp_path / "s", speeds=(0.9, 1.0, 1.1))), SpecAugment(), 0)
    batch, again = make(np.array([3, 0]), (1, 2)), pickle.loads(pickle.dumps(make))(np.array([3, 0]), (1, 2))
    for name in ("samples", "lengths", "draws", "inputs", "labels", "labels_mask"):
        assert torch.equal(getattr(batch, name), getattr(again, name))
    assert batch.labels.tolist() == [[13, END], [10, END]] and batch.inputs.tolist() == [[0, 13], [0, 10]]
    assert batch.samples.shape[1] % 2000 == 0 and batch.samples.dtype == torch.int16 and batch.tokens == 4
    rounded = replace(make, round_labels=4)(np.array([3, 0]), (1, 2))
    assert rounded.labels.tolist() == [[13, END, 0, 0], [10, END, 0, 0]] and rounded.tokens == 4
    seen = {int(make(np.array([0]), (epoch, 0)).lengths[0]) for epoch in range(12)}
    assert seen == {889, 800, 728}  # all three speeds


def test_features_of_a_recording_alone_are_those_in_a_batch():
    # Noise in every band: without it, some hold only rounding errors, whose logarithms differ among CPUs.
    noise = np.random.default_rng(0).normal(0, 0.01, 4000).astype(np.float32)
    rising = tone(0.31, 200) * np.linspace(0, 1, 2480, dtype=np.float32)
    waves = [in_16_bits(rising + noise[:2480]), in_16_bits(tone(0.5, 700) + noise)]
    together = speech_features(*padded_samples(waves, 2000), AUDIO)
    for row, wave in enumerate(waves):
        alone = speech_features(*padded_samples([wave]), AUDIO)
        frames = len(wave) // 80
        assert int(together.mask[row].sum()) == frames == int(alone.mask.sum())
        assert torch.allclose(together.values[row, :frames], alone.values[0, :frames], atol=1e-4)
        assert not together.values[row, frames:].any()
        assert torch.allclose(alone.values[0].mean(0), torch.zeros(20), atol=1e-5)
    bands = log_mel(torch.from_numpy(waves[1]).float() / 32767, AUDIO)
    wanted = (bands - bands.mean(0)) / (bands - bands.mean(0)).square().mean().sqrt().clamp(min=0.1)
    assert torch.allclose(together.values[1], wanted, atol=1e-4)


def test_loudness_does_not_matter_and_silence_stays_silent():
    noise = np.random.default_rng(0).normal(0, 0.2, 2400)
    wave = (noise * np.hanning(2400)).astype(np.float32)
    loud, quiet = (speech_features(*padded_samples([in_16_bits(wave * gain)]), AUDIO).values for gain in (1.0, 0.3))
    assert (loud - quiet).abs().mean() < 0.05
    silent = speech_features(*padded_samples([np.zeros(2400, dtype=np.int16)]), AUDIO).values
    assert torch.isfinite(silent).all() and silent.abs().max() < 1e-3


def test_masks_hide_bands_and_times_up_to_their_widths():
    augment = SpecAugment(band_masks=1, bands=0.25, time_masks=1, time=0.2)
    features, frames = torch.ones(200, 50, 20), torch.full((200,), 40)
    draws = torch.from_numpy(augment.draw(np.random.default_rng(0), 200))
    hidden = augment(features, frames, draws) == 0
    bands, times = hidden.all(dim=1).sum(-1), hidden.all(dim=2).sum(-1)
    assert bands.max() == 5 and bands.min() == 0 and times.max() == 8 and times.min() == 0
    assert not hidden[:, 40:].all(dim=2).any()  # behind the end nothing is hidden
    assert torch.equal(augment(features, frames, draws), augment(features, frames, draws))
    nothing = SpecAugment(band_masks=0, time_masks=0)
    assert torch.equal(
        nothing(features, frames, torch.from_numpy(nothing.draw(np.random.default_rng(0), 200))), features
    )


def test_joins_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="longest = 2"):
        JoinConfig.parse({"longest": 2})
    with pytest.raises(ConfigError, match="longest_pause"):
        JoinConfig.parse({"longest_pause": 0.01})
