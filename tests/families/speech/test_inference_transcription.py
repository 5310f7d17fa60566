"""Transcribing: files become pieces, pieces become segments with the times of the file; on a made-up model."""

import io
import json
import math
import tracemalloc

import numpy as np
import pytest
import soundfile

from regard.cli.main import run
from regard.errors import DataError, UsageError
from regard.families.speech.pipeline import Segment, TranscribeOptions, Transcriber, Word
from regard.search.settings import SearchSettings
from tiny_speech import write_wav

RATE = 8_000


class Loudness(Transcriber):
    """Says how loud each second is, as one segment with a word."""

    name, rate, longest, gives_words, languages = "loudness", RATE, 4.0, True, ("en", "pt-BR")
    settings = SearchSettings(beam=2)

    def __init__(self):
        self.batches = []

    def hear(self, pieces, options):
        self.batches.append(len(pieces))
        self.options = options
        return [self.segments(piece, options) for piece in pieces]

    def segments(self, piece, options):
        found = []
        for start in range(0, len(piece), RATE):
            second = piece[start : start + RATE]
            begin, end = start / RATE, (start + len(second)) / RATE
            word = Word(f"l{round(float(np.abs(second).max()) * 10)}", begin, end, -0.5)
            found.append(Segment(f"{word.text}.", begin, end, [word] if options.words else [], -1.0, "en"))
        return found


def wave(*levels, rate=RATE):
    """Seconds of tones, each as loud as told, in tenths."""
    tone = np.sin(2 * math.pi * 250 * np.arange(rate) / rate)
    return np.concatenate([level / 10 * tone for level in levels]).astype(np.float32)


def file(*levels, form="FLAC", rate=RATE):
    content = io.BytesIO()
    soundfile.write(content, wave(*levels, rate=rate), rate, format=form)
    return content.getvalue()


def test_long_files_are_heard_piece_by_piece_with_times_of_the_file():
    levels = [1, 2, 3, 0, 4, 5, 0, 6, 7, 8, 0, 1, 2]
    (found,) = Loudness().transcribe(file(*levels), words=True)
    assert found.seconds == len(levels) and found.language == "en"
    for segment in found.segments:
        (word,) = segment.words
        assert (word.start, word.end) == (segment.start, segment.end)
    assert [segment.start for segment in found.segments] == sorted(segment.start for segment in found.segments)
    assert sum(segment.end - segment.start for segment in found.segments) == pytest.approx(len(levels), abs=1e-3)
    for level in {*levels} - {0}:
        assert f"l{level}." in found.text


def test_batches_give_what_single_files_give():
    files = [file(*range(1, 4 + number)) for number in range(6)]
    together = Loudness()
    assert together.transcribe(files) == [Loudness().transcribe(each)[0] for each in files]
    assert max(together.batches) > 1


def test_bad_files_come_out_in_their_place():
    files = [file(1), b"", file(2, 3, 4, 5, 6), b"no audio at all, but a text", file(3)]
    found = list(Loudness().stream(files, TranscribeOptions(), names=["a", "b", "c", "d", "e"]))
    assert [isinstance(each, DataError) for each in found] == [False, True, False, True, False]
    assert str(found[1]).startswith("b is empty") and found[4].text == "l3."
    with pytest.raises(DataError, match="is empty"):
        Loudness().transcribe(files)


def test_two_hours_of_8_bit_stereo_are_heard_piece_by_piece(tmp_path):
    path, rate = tmp_path / "long.wav", 1_000
    minute = np.stack([0.2 * np.sin(np.arange(60 * rate) / 3)] * 2, axis=1)
    with soundfile.SoundFile(path, "w", rate, 2, "PCM_U8") as long:
        for _ in range(120):
            long.write(minute)
    model = Loudness()
    model.rate, model.longest = rate, 30.0
    model.segments = lambda piece, options: [Segment("x", 0.0, len(piece) / rate)]
    tracemalloc.start()
    (found,) = model.transcribe(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.seconds == 7200 and 240 <= len(found.segments) <= 480
    assert sum(segment.end - segment.start for segment in found.segments) == pytest.approx(7200)
    assert peak < 7200 * rate * 4 / 4  # a quarter of its samples in memory


def test_clipped_audio_is_heard_with_a_warning():
    loud = np.clip(3 * wave(10, 10), -1, 1)
    content = io.BytesIO()
    soundfile.write(content, loud, RATE, format="WAV")
    with pytest.warns(UserWarning, match="clipped") as told:
        (found,) = Loudness().transcribe(content.getvalue())
    assert found.text == "l10. l10." and len(told) == 1


def test_samples_are_taken_as_they_are():
    assert Loudness().transcribe(wave(3, 4))[0].text == "l3. l4."


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.uint8, np.float64])
def test_samples_of_any_kind_are_as_loud_as_they_are_meant(kind):
    samples = wave(3, 7).astype(np.float64)
    if kind != np.float64:
        limits = np.iinfo(kind)
        middle = 0 if limits.min else 128
        samples = (samples * (limits.max - middle) + middle).round()
    assert Loudness().transcribe(samples.astype(kind))[0].text == "l3. l7."


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (np.zeros((100, 2), np.float32), r"shape \(100, 2\); expected one channel"),
        (np.zeros(0, np.float32), "there are no samples"),
        (np.array([0.0, np.nan]), "sample 1 is not a number"),
    ],
)
def test_samples_that_are_none_are_refused(samples, told):
    with pytest.raises(DataError, match=told):
        Loudness().transcribe(samples)


def test_silence_is_not_heard():
    transcriber = Loudness()
    with pytest.warns(UserWarning, match="silent"):
        (found,) = transcriber.transcribe(file(0, 0))
    assert (found.text, found.segments, found.seconds, transcriber.batches) == ("", [], 2.0, [])


def test_what_a_model_cannot_do_is_refused():
    transcriber = Loudness()
    with pytest.raises(UsageError, match="takes no prompt"):
        transcriber.transcribe(file(1), prompt="Regard")
    with pytest.raises(UsageError, match="'fr'; known: en, pt-BR"):
        transcriber.transcribe(file(1), language="fr")
    assert transcriber.transcribe(file(1), language="pt")[0].language == "pt-BR"
    transcriber.languages, transcriber.gives_words = (), False
    with pytest.raises(UsageError, match="knows no languages"):
        transcriber.transcribe(file(1), language="en")
    with pytest.raises(UsageError, match="when words are said"):
        transcriber.transcribe(file(1), words=True)


# The command


@pytest.fixture
def talk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Loudness()
    monkeypatch.setattr("regard.verbs.verb.load_able", lambda *_, **__: model)
    write_wav(tmp_path / "one.wav", wave(1, 2), RATE)
    write_wav(tmp_path / "two.wav", wave(3), RATE)
    (tmp_path / "bad.wav").write_bytes(b"")
    return model


def test_the_command_writes_lines_times_and_json(talk, capsys):
    assert run(["transcribe", "one.wav", "two.wav", "-m", "x"]) == 0
    assert capsys.readouterr().out == "l1. l2.\nl3.\n" and not talk.options.timestamps
    assert run(["transcribe", "one.wav", "-m", "x", "--timestamps", "--beam", "5", "--language", "en"]) == 0
    assert capsys.readouterr().out == "0.00\t1.00\tl1.\n1.00\t2.00\tl2.\n"
    assert talk.options.timestamps and talk.options.settings.beam == 5 and talk.options.language == "en"
    assert run(["transcribe", "one.wav", "two.wav", "-m", "x", "--timestamps"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["one.wav\t1.00\t2.00\tl2.", "two.wav\t0.00\t1.00\tl3."]
    assert run(["transcribe", "one.wav", "-m", "x", "--format", "json", "--words"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["audio"] == "one.wav" and found["segments"][1]["words"][0] == {
        "word": "l2", "start": 1.0, "end": 2.0, "score": -0.5
    }  # fmt: skip


def test_the_command_writes_subtitles_to_files(talk, tmp_path, capsys):
    assert run(["transcribe", "one.wav", "-m", "x", "-o", "out/one.srt"]) == 0
    assert (tmp_path / "out/one.srt").read_text() == (
        "1\n00:00:00,000 --> 00:00:01,000\nl1.\n\n2\n00:00:01,000 --> 00:00:02,000\nl2.\n\n"
    )
    assert run(["transcribe", "one.wav", "two.wav", "-m", "x", "--format", "vtt", "-o", "all"]) == 0
    assert (tmp_path / "all/two.vtt").read_text() == "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nl3.\n\n"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["one.wav", "bad.wav", "-o", "all"], "bad.wav is empty"),
        (["one.wav", "nothing.wav", "-o", "all"], "there is no file 'nothing.wav'"),
        (["one.wav", "two.wav", "--format", "srt"], "-o FOLDER"),
        (["one.wav", "two.wav", "-o", "x.srt"], "x.srt is one file"),
        (["one.wav", "--words"], "--format json"),
        (["one.wav", "--language", "fr"], "known: en, pt-BR"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(talk, tmp_path, capsys, arguments, words):
    assert run(["transcribe", *arguments, "-m", "x"]) in (1, 2)
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.out == ""
    assert not list(tmp_path.glob("all/*")) and not (tmp_path / "x.srt").exists()


def test_bad_files_are_empty_lines_or_skipped(talk, capsys):
    assert run(["transcribe", "bad.wav", "two.wav", "-m", "x"]) == 1
    said = capsys.readouterr()
    assert said.out == "\nl3.\n" and "file 1 is refused: " in said.err and "bad.wav is empty" in said.err
    assert run(["transcribe", "bad.wav", "two.wav", "-m", "x", "--skip-bad"]) == 0
    said = capsys.readouterr()
    assert said.out == "l3.\n" and "skipped 1 of 2 files: bad.wav" in said.err
    assert run(["transcribe", "bad.wav", "-m", "x", "--skip-bad"]) == 1
