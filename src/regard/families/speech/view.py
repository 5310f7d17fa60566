"""A recording as PNG and SVG: its wave, its spectrogram with the path of labels, and what every token looked at."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from regard.data.images.reading import Pixels
from regard.errors import UsageError
from regard.families.speech.audio import Samples, read_audio
from regard.families.speech.data import wav_bytes
from regard.families.speech.pipeline import SpeechRecognizer, Word
from regard.families.speech.whisper_pipeline import WhisperTranscriber
from regard.look.figures import INK, MUTED, RAMP, RULE
from regard.look.given import GivenInput, Inspected
from regard.look.panels import Frames, Panel, Point, Tokens
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


ACCENT = "#c2570c"
WIDTH, ROW = 10.0, 0.22  # inches of the figure, of one token
MOST_ROWS = 80  # tokens that are drawn


def draw_speech(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """Wave, spectrogram and path above, and below, for the last layer of each kind, tokens against time."""
    if points:
        raise UsageError("tokens look at this recording, not places of it; leave out --at")
    if report.image is None:
        raise UsageError("there is no spectrogram to draw")
    panels = [*_last_of_each_kind(report)]
    heights = [0.6, 1.9, *(max(1.2, ROW * min(MOST_ROWS, len(panel.queries))) for panel in panels)]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35 * len(heights) + 0.6))
    axes: Any = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    seconds = float(report.details["seconds"])
    _draw_wave(axes[0], report.details["wave"], seconds)
    axes[1].imshow(report.image.transpose(1, 2, 0), aspect="auto", extent=(0, seconds, 0, 1), interpolation="nearest")
    axes[1].set_yticks([])
    _draw_path(
        axes[1], report.details["path"] or [[w["text"], w["start"], w["end"], 0] for w in report.details["words"]]
    )
    for each, panel in zip(axes[2:], panels, strict=True):
        _draw_panel(each, panel)
    axes[0].set_xlim(0, seconds)
    for each in axes:
        each.spines[:].set_color(RULE)
        each.tick_params(length=0, labelsize=7, colors=MUTED)
    axes[-1].set_xlabel("seconds", fontsize=8, color=MUTED)
    facts = "  ".join([report.model, *(f"{name} {value}" for name, value in report.meta.items())])
    figure.suptitle(f"{report.title[:100]}\n{facts[:140]}", fontsize=9, color=INK, parse_math=False)
    figure.tight_layout(pad=0.5, rect=(0, 0, 1, 1 - 0.1 / figure.get_figheight()))
    return figure


def _last_of_each_kind(report: AttentionReport) -> list[Panel]:
    """The last layer of self-attention and that of cross-attention, as far as they look at frames."""
    found = {panel.kind: panel for panel in report.panels if isinstance(panel.keys, Frames)}
    return list(found.values())


def _draw_wave(axes: Axes, peaks: Sequence[float], seconds: float) -> None:
    at, loud = np.linspace(0, seconds, len(peaks)), np.array(peaks)
    axes.fill_between(at, -loud, loud, color=RAMP(0.75), lw=0)
    axes.set_yticks([])


def _draw_path(axes: Axes, path: Sequence[Sequence[Any]]) -> None:
    """A bar over the frames of every label, with its name above."""
    for label, start, end, _ in path:
        axes.axvspan(start, end, ymin=0.0, ymax=1.0, color=ACCENT, alpha=0.16, lw=0)
        axes.plot([start, end], [0.97, 0.97], color=ACCENT, lw=2.5, solid_capstyle="butt")
        axes.text((start + end) / 2, 1.01, label, fontsize=7, color=INK, ha="center", va="bottom", parse_math=False)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    assert isinstance(panel.keys, Frames)
    weights = panel.weights.mean(axis=0)[:MOST_ROWS]
    weights = weights / np.maximum(weights.max(axis=1, keepdims=True), 1e-9)
    length = len(panel.keys) * panel.keys.seconds
    axes.imshow(
        weights, cmap=RAMP, norm=Normalize(0, 1), aspect="auto", interpolation="nearest",
        extent=(0, length, len(weights) - 0.5, -0.5),
    )  # fmt: skip
    axes.set_yticks(range(len(weights)), panel.queries.labels()[:MOST_ROWS], fontsize=7, color=INK, parse_math=False)
    axes.set_title(
        f"{panel.name}: mean of its heads, darkest where a token looked most", fontsize=7.5, color=MUTED, loc="left"
    )
