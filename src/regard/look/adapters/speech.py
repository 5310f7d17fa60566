"""Reports of models that hear: what was said over the spectrogram, and what every token looked at."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from regard.data.audio.reading import Samples, read_audio
from regard.data.images.reading import Pixels
from regard.data.speech.store import wav_bytes
from regard.errors import UsageError
from regard.inference.pipelines.speech import SpeechRecognizer
from regard.inference.pipelines.transcription import Word
from regard.inference.pipelines.whisper import WhisperTranscriber
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.figures import RAMP
from regard.look.panels import Frames, Panel, Tokens
from regard.look.report import AttentionReport

PEAKS = 600  # places at which the wave is drawn
RANGE = (5, 99.5)  # percentiles of loudness that the colours of a spectrogram span
Path = Sequence[tuple[str, float, float, float]]  # label, begin and end in seconds, mean log-probability


def inspect_speech(recognizer: SpeechRecognizer | WhisperTranscriber, given: GivenInput) -> Inspected:
    """What was said, when, and where the model looked at every token."""
    samples = short_audio(given, recognizer.rate, recognizer.longest)
    seen = recognizer.attention(samples)
    frames = Frames(next(iter(seen.weights.values())).shape[-1], seen.seconds) if seen.weights else Frames(0, 0.0)
    words = Tokens(seen.tokens)
    panels = [
        Panel(name, "cross" if name.endswith("cross") else "self", weights, words, frames, seen.neurons.get(name))
        for name, weights in seen.weights.items()
    ]
    report = speech_report(
        given.title or str(given.file), recognizer.name, samples, recognizer.rate, seen.spectrogram, panels, seen.words,
        seen.path, {"text": seen.text},
    )  # fmt: skip
    return Inspected(report, {key: report.details[key] for key in ("words", "seconds")} | {"text": seen.text})


def short_audio(given: GivenInput, rate: int, longest: float) -> Samples:
    """The samples of a file that the model can hear at once; longer files are refused."""
    samples = read_audio(given.file, rate, given.title)
    if len(samples) > longest * rate:
        raise UsageError(
            f"{given.title or 'the recording'} is {len(samples) / rate:.1f} s long; at most {longest:g} s are drawn: "
            "cut it, or use `regard transcribe --timestamps`"
        )
    return samples


def speech_report(
    title: str,
    model: str,
    samples: Samples,
    rate: int,
    spectrogram: Float[np.ndarray, "frames bands"],
    panels: Sequence[Panel],
    words: Sequence[Word],
    path: Path,
    meta: dict[str, str],
) -> AttentionReport:
    """The report of anything that hears: the spectrogram, the wave, the sound itself, words with their times, the path
    of labels through the frames (if there is one), and panels whose keys are `Frames`."""
    details: dict[str, Any] = {
        "seconds": round(len(samples) / rate, 4),
        "wave": _peaks(samples),
        "audio": f"data:audio/wav;base64,{base64.b64encode(wav_bytes(samples, rate)).decode()}",
        "words": [
            {"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in words
        ],
        "path": [[label, round(start, 3), round(end, 3), round(score, 4)] for label, start, end, score in path],
    }  # fmt: skip
    return AttentionReport(
        title, model, list(panels), meta=meta, image=_coloured(spectrogram), shown_as=Frames.view, details=details
    )


def _coloured(spectrogram: Float[np.ndarray, "frames bands"]) -> Pixels:
    """A spectrogram as an image, low bands below."""
    low, high = np.percentile(spectrogram, RANGE)
    levels = np.clip((spectrogram - low) / max(high - low, 1e-6), 0, 1)
    return (RAMP(levels.T[::-1])[..., :3] * 255).round().astype(np.uint8).transpose(2, 0, 1)


def _peaks(samples: Samples) -> list[float]:
    """The loudest sample of each of some equal stretches."""
    parts = np.array_split(np.abs(samples), min(PEAKS, len(samples)))
    return [round(float(part.max()), 3) for part in parts]
