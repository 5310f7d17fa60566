"""Error rates of recordings: manifests, parts of files, files that cannot be read, and the built-in speech."""

import json

import numpy as np
import pytest

from regard.cli.main import run
from regard.errors import DataError
from regard.families.contract import EvaluationOptions
from regard.families.speech.manifest import utterances
from regard.families.speech.pipeline import Segment, Transcriber
from regard.families.speech.task import evaluate_speech
from regard.search.settings import SearchSettings
from tiny_speech import write_wav
from tiny_whisper import whisper_folder

RATE = 16_000


class Listener(Transcriber):
    """Says "one" for every half second of sound."""

    name, rate, longest, settings = "listener", RATE, 30.0, SearchSettings()

    def __init__(self):
        pass

    def hear(self, pieces, options):
        self.beam = options.settings and options.settings.beam
        return [[Segment(" ".join(["One,"] * round(len(piece) / RATE * 2)), 0.0, 1.0)] for piece in pieces]


def options(tmp_path, **changes):
    return EvaluationOptions(**{"folder": tmp_path, "count": 6, "seed": 1, **changes})


def test_rates_of_a_manifest_with_parts_and_a_bad_file(tmp_path):
    write_wav(tmp_path / "a.wav", np.full(2 * RATE, 0.3, dtype=np.float32), RATE)
    (tmp_path / "bad.wav").write_bytes(b"")
    rows = [
        {"audio": "a.wav", "text": "one one two one"},  # heard: one one one one
        {"audio": "a.wav", "text": "One.", "start": 0.5, "end": 1.0},
        {"audio": "bad.wav", "text": "one"},
        {"audio": "a.wav", "text": "one", "start": 1.0},  # heard: one one
    ]
    manifest = tmp_path / "test.jsonl"
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    listener = Listener()
    found = evaluate_speech(listener, str(manifest), options(tmp_path, beam=3))
    assert found.scores["recordings"] == 3 and found.scores["wer"] == pytest.approx(2 / 6)
    assert (found.scores["substitutions"], found.scores["deletions"], found.scores["insertions"]) == (1, 0, 1)
    assert found.scores["recordings with an error"] == pytest.approx(2 / 3)
    assert found.scores["minutes"] == pytest.approx(3.5 / 60) and listener.beam == 3
    assert len(found.unread) == 1 and "bad.wav" in found.unread[0]


def test_the_built_in_speech_is_measured(tmp_path):
    found = evaluate_speech(Listener(), "builtin:speech", options(tmp_path))
    assert evaluate_speech(Listener(), "speech", options(tmp_path)) == found
    drawn = list(utterances(part="test", count=6, seed=1, rate=RATE))
    assert found.scores["words"] == sum(len(each.words) for each in drawn) and not found.unread
    assert found.scores["minutes"] == pytest.approx(sum(len(each.samples) for each in drawn) / RATE / 60)
    with pytest.raises(DataError, match="there is no file or folder"):
        evaluate_speech(Listener(), str(tmp_path / "nothing.tsv"), options(tmp_path))


def test_the_command_evaluates_plans_and_looks(tmp_path, capsys):
    folder = whisper_folder(tmp_path / "whisper")
    assert run(["evaluate", "builtin:speech", "-m", str(folder), "--count", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recordings"] == 2
    assert run(["plan", "whisper:tiny", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["parameters"] == 37_184_640 and plan["source_length"] == 3000  # as published, less a fixed table
    (said,) = utterances(part="test", count=1, seed=2, digits=(1, 1))
    write_wav(tmp_path / "said.wav", said.samples[:8000], RATE)
    for suffix in ("json", "html", "png"):
        assert run(["look", str(tmp_path / "said.wav"), "-m", str(folder), "-o", str(tmp_path / f"x.{suffix}")]) == 0
    report = json.loads((tmp_path / "x.json").read_text())
    assert "whisper" in json.dumps(report)[:2000] and (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
