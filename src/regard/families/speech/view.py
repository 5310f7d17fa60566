"""A recording as a report, PNG or SVG: wave, spectrogram with the path of labels, and what every token looked at."""

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
from regard.families.speech.audio import read_audio
from regard.families.speech.data import wav_bytes
from regard.families.speech.pipeline import SpeechRecognizer
from regard.families.speech.whisper_pipeline import WhisperTranscriber
from regard.look.figures import INK, MUTED, RAMP, RULE
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Frames, Panel, Point, Tokens
from regard.look.report import AttentionReport

PEAKS = 600  # equal stretches of the wave, each drawn by its loudest sample
RANGE = (5, 99.5)  # percentiles of loudness that the colours of a spectrogram span
ACCENT = "#c2570c"
WIDTH, ROW = 10.0, 0.22  # inches of the figure, of one token
MOST_ROWS = 80  # tokens that are drawn


def inspect_speech(recognizer: SpeechRecognizer | WhisperTranscriber, given: GivenInput) -> Inspected:
    """What was said, when, and where the model looked at every token: spectrogram, wave, the sound itself, words
    with their times, the path of labels through the frames (if there is one), and panels whose keys are `Frames`."""
    rate, longest = recognizer.rate, recognizer.longest
    samples = read_audio(given.file, rate, given.title)
    if len(samples) > longest * rate:
        raise UsageError(
            f"{given.title or 'the recording'} is {len(samples) / rate:.1f} s long; at most {longest:g} s are drawn: "
            "cut it, or use `regard transcribe --timestamps`"
        )
    seen = recognizer.attention(samples)
    frames = Frames(next(iter(seen.weights.values())).shape[-1], seen.seconds) if seen.weights else Frames(0, 0.0)
    tokens = Tokens(seen.tokens)
    panels = [
        Panel(name, "cross" if name.endswith("cross") else "self", weights, tokens, frames, seen.neurons.get(name))
        for name, weights in seen.weights.items()
    ]
    seconds = round(len(samples) / rate, 4)
    words = [{"text": word.text, "start": round(word.start, 3), "end": round(word.end, 3)} for word in seen.words]
    details: dict[str, Any] = {
        "seconds": seconds,
        "wave": [round(float(part.max()), 3) for part in np.array_split(np.abs(samples), min(PEAKS, len(samples)))],
        "audio": f"data:audio/wav;base64,{base64.b64encode(wav_bytes(samples, rate)).decode()}",
        "words": words,
        "path": [[label, round(start, 3), round(end, 3), round(score, 4)] for label, start, end, score in seen.path],
    }
    report = AttentionReport(
        given.title or str(given.file), recognizer.name, panels, meta={"text": seen.text},
        image=_coloured(seen.spectrogram), shown_as=Frames.view, details=details,
    )  # fmt: skip
    return Inspected(report, {"words": words, "seconds": seconds, "text": seen.text})


def _coloured(spectrogram: Float[np.ndarray, "frames bands"]) -> Pixels:
    """A spectrogram as an image, low bands below."""
    low, high = np.percentile(spectrogram, RANGE)
    levels = np.clip((spectrogram - low) / max(high - low, 1e-6), 0, 1)
    return (RAMP(levels.T[::-1])[..., :3] * 255).round().astype(np.uint8).transpose(2, 0, 1)


def draw_speech(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """Wave, spectrogram and path above, and below, for the last layer of each kind, tokens against time."""
    if points:
        raise UsageError("tokens look at this recording, not places of it; leave out --at")
    if report.image is None:
        raise UsageError("there is no spectrogram to draw")
    # the last layer of self-attention and that of cross-attention, as far as they look at frames
    panels = list({panel.kind: panel for panel in report.panels if isinstance(panel.keys, Frames)}.values())
    heights = [0.6, 1.9, *(max(1.2, ROW * min(MOST_ROWS, len(panel.queries))) for panel in panels)]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.35 * len(heights) + 0.6))
    axes: Any = figure.subplots(len(heights), 1, height_ratios=heights, sharex=True, squeeze=False)[:, 0]
    seconds = float(report.details["seconds"])
    peaks = np.array(report.details["wave"])
    axes[0].fill_between(np.linspace(0, seconds, len(peaks)), -peaks, peaks, color=RAMP(0.75), lw=0)
    axes[0].set_yticks([])
    axes[1].imshow(report.image.transpose(1, 2, 0), aspect="auto", extent=(0, seconds, 0, 1), interpolation="nearest")
    axes[1].set_yticks([])
    _draw_path(
        axes[1], report.details["path"] or [[w["text"], w["start"], w["end"], 0] for w in report.details["words"]]
    )
    for below, panel in zip(axes[2:], panels, strict=True):
        _draw_panel(below, panel)
    axes[0].set_xlim(0, seconds)
    for part in axes:
        part.spines[:].set_color(RULE)
        part.tick_params(length=0, labelsize=7, colors=MUTED)
    axes[-1].set_xlabel("seconds", fontsize=8, color=MUTED)
    facts = "  ".join([report.model, *(f"{name} {value}" for name, value in report.meta.items())])
    figure.suptitle(f"{report.title[:100]}\n{facts[:140]}", fontsize=9, color=INK, parse_math=False)
    figure.tight_layout(pad=0.5, rect=(0, 0, 1, 1 - 0.1 / figure.get_figheight()))
    return figure


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
