"""Reports of recordings: their details, their files, and what is refused."""

import base64
import io
import json
import wave

import numpy as np
import pytest
from PIL import Image

from regard.cli.main import run
from regard.errors import UsageError
from regard.families.speech.manifest import utterances
from regard.families.speech.view import inspect_speech
from regard.look.inspection import GivenInput
from regard.look.panels import Frames
from regard.look.report import from_json, to_json
from regard.look.save import save
from tiny_speech import save_recognizer, tiny_recognizer, write_wav


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    (said,) = utterances(part="test", count=1, seed=1, digits=(2, 2), rate=8000)
    path = tmp_path_factory.mktemp("speech") / "digits.wav"
    write_wav(path, said.samples, 8000)
    return path


@pytest.mark.parametrize("changes", [{}, {"decoder_depth": 1}], ids=str)
def test_a_report_has_the_wave_the_spectrogram_and_the_path(recording, changes):
    recognizer = tiny_recognizer(**changes)
    report, answer = inspect_speech(recognizer, GivenInput(recording, "digits.wav"))
    with wave.open(str(recording)) as file:
        samples = file.getnframes()
    details = report.details
    assert answer["text"] == report.meta["text"] == recognizer.transcribe(recording)[0].text
    assert details["seconds"] == pytest.approx(samples / 8000, abs=1e-3) and max(details["wave"]) > 0.2
    with wave.open(io.BytesIO(base64.b64decode(details["audio"].partition(",")[2]))) as sound:
        assert (sound.getframerate(), sound.getnframes()) == (8000, samples)
    assert report.image.shape == (3, 40, samples // 80)
    kinds = {panel.kind for panel in report.panels}
    assert kinds == ({"self", "cross"} if changes else {"self"})
    for panel in report.panels:
        assert isinstance(panel.keys, Frames) and panel.keys.seconds == pytest.approx(0.04)
    for label, start, end, score in details["path"]:
        assert label and 0 <= start < end <= details["seconds"] + 0.04 and score <= 0
    assert to_json(from_json(json.loads(json.dumps(to_json(report))))) == to_json(report)


def test_silence_has_a_picture_too(tmp_path):
    noise = np.random.default_rng(0).normal(0, 1e-3, 4000).astype(np.float32)
    write_wav(tmp_path / "quiet.wav", noise, 8000)
    report, _ = inspect_speech(tiny_recognizer(), GivenInput(tmp_path / "quiet.wav"))
    assert report.view == "spectrogram" and save(report, tmp_path / "quiet.svg").stat().st_size > 1000


def test_every_file_is_written(recording, tmp_path):
    folder = save_recognizer(tmp_path / "m", tiny_recognizer(decoder_depth=1))
    for suffix in ("png", "svg", "html", "json"):
        assert run(["look", str(recording), "-m", str(folder), "-o", str(tmp_path / f"look.{suffix}")]) == 0
    with Image.open(tmp_path / "look.png") as drawn:
        assert drawn.size[0] == 1600
    page = (tmp_path / "look.html").read_text()
    assert "media-src data:" in page and "data:audio/wav" in page
    with pytest.raises(UsageError, match="leave out --at"):
        save(inspect_speech(tiny_recognizer(), GivenInput(recording)).report, tmp_path / "x.png", points=[(0.5, 0.5)])


def test_long_recordings_are_refused(tmp_path):
    write_wav(tmp_path / "long.wav", np.zeros(8000 * 21, dtype=np.float32) + 0.01, 8000)
    with pytest.raises(UsageError, match=r"long\.wav is 21\.0 s long; at most 20 s are drawn"):
        inspect_speech(tiny_recognizer(), GivenInput(tmp_path / "long.wav", "long.wav"))
