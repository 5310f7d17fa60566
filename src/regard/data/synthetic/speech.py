"""The built-in speech: digits spoken by a small formant synthesiser, with the time of every word.

An utterance is a function of (seed, part, number). A word is a row of sounds; a voiced sound is a pitch whose overtones
are loud around two formants (Klatt 1980, much simplified), an unvoiced one is noise around one. Speakers differ in
pitch, in the length of their vocal tract and in pace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.parts import PARTS, Part
from regard.errors import UsageError

MIN_RATE = 8_000
OVERTONES = 40
EDGE = 0.012  # seconds of a fade at both ends of a word


class Sound(NamedTuple):
    """Two formants in Hz, whether there is a pitch, how loud, how long in seconds."""

    first: float
    second: float
    voiced: bool = True
    loudness: float = 1.0
    length: float = 0.09


SOUNDS = {
    "i": Sound(280, 2250), "e": Sound(500, 1900), "a": Sound(750, 1300), "o": Sound(480, 850), "u": Sound(310, 900),
    "n": Sound(250, 1500, loudness=0.5), "r": Sound(420, 1200, loudness=0.7), "w": Sound(300, 650, loudness=0.7),
    "v": Sound(250, 1100, loudness=0.4, length=0.06), "z": Sound(250, 3000, loudness=0.4),
    "s": Sound(3300, 3500, voiced=False, loudness=0.5), "f": Sound(2200, 3300, voiced=False, loudness=0.35),
    "t": Sound(3000, 3600, voiced=False, loudness=0.6, length=0.04),
    "k": Sound(1600, 2000, voiced=False, loudness=0.6, length=0.04),
    "h": Sound(1200, 2600, voiced=False, loudness=0.25, length=0.06),
}  # fmt: skip
WORDS = {
    "zero": "ziro", "one": "wan", "two": "tu", "three": "hri", "four": "for", "five": "faiv", "six": "siks",
    "seven": "seven", "eight": "eit", "nine": "nain",
}  # fmt: skip
DIGITS = tuple(WORDS)


class SpokenWord(NamedTuple):
    """A word and when it is spoken, in seconds."""

    text: str
    start: float
    end: float


class Utterance(NamedTuple):
    """Samples, and the words that are spoken in them."""

    samples: NDArray[np.float32]
    rate: int
    words: tuple[SpokenWord, ...]

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


class Speaker(NamedTuple):
    """How someone speaks."""

    pitch: float  # Hz
    tract: float  # factor of all formants
    pace: float  # factor of all lengths


def utterances(
    *, part: Part, count: int, seed: int, digits: tuple[int, int] = (1, 5), rate: int = 16_000
) -> Iterator[Utterance]:
    """Draw `count` utterances of so many digits (least and most); no two parts share one."""
    if rate < MIN_RATE:
        raise UsageError(f"speech at {rate} samples a second has too few frequencies; use {MIN_RATE:,} or more")
    for number in range(count):
        rng = np.random.default_rng([seed, PARTS.index(part), number])
        yield draw_utterance(
            rng, [str(each) for each in rng.choice(DIGITS, rng.integers(digits[0], digits[1] + 1))], rate
        )


def draw_utterance(rng: np.random.Generator, words: list[str], rate: int = 16_000) -> Utterance:
    """Someone says words of `WORDS`, with a pause around each and a little noise."""
    speaker = Speaker(rng.uniform(85, 230), rng.uniform(0.88, 1.14), rng.uniform(0.8, 1.25))
    parts, spoken, place = [np.zeros(int(rng.uniform(0.05, 0.2) * rate))], list[SpokenWord](), 0
    for word in words:
        place = sum(map(len, parts))
        parts.append(_say(rng, WORDS[word], speaker, rate))
        spoken.append(SpokenWord(word, place / rate, (place + len(parts[-1])) / rate))
        parts.append(np.zeros(int(rng.uniform(0.05, 0.25) * rate)))
    samples = np.concatenate(parts)
    samples = samples * rng.uniform(0.3, 0.8) / np.abs(samples).max() + rng.normal(0, 0.002, len(samples))
    return Utterance(samples.clip(-1, 1).astype(np.float32), rate, tuple(spoken))


def _say(rng: np.random.Generator, sounds: str, speaker: Speaker, rate: int) -> NDArray[np.float64]:
    """One word: the formants glide from sound to sound."""
    chosen = [SOUNDS[each] for each in sounds]
    lengths = np.array([sound.length * speaker.pace * rng.uniform(0.85, 1.15) for sound in chosen])
    ends = lengths.cumsum()
    time = np.arange(int(ends[-1] * rate)) / rate
    middles = ends - lengths / 2

    def glide(values: list[float]) -> NDArray[np.float64]:
        return np.interp(time, middles, values)

    first, second = (glide([getattr(sound, name) * speaker.tract for sound in chosen]) for name in ("first", "second"))
    pitch = speaker.pitch * np.linspace(rng.uniform(1.0, 1.1), rng.uniform(0.85, 1.0), len(time))
    voiced = _voice(2 * np.pi * pitch.cumsum() / rate, pitch, first, second, rate)
    noise = _noise(rng, chosen, ends, speaker, len(time), rate)
    loudness = glide([sound.loudness * sound.voiced for sound in chosen])
    fade = np.clip(np.minimum(time, time[-1] - time) / EDGE, 0, 1)
    return (loudness * voiced + noise) * fade


def _voice(
    phase: NDArray[np.float64],
    pitch: NDArray[np.float64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    rate: int,
) -> NDArray[np.float64]:
    """Overtones of a pitch, loud around both formants."""
    total = np.zeros(len(phase))
    for overtone in range(1, OVERTONES + 1):
        frequency = overtone * pitch
        near = np.exp(-(((frequency - first) / 120) ** 2)) + 0.6 * np.exp(-(((frequency - second) / 180) ** 2)) + 0.01
        total += np.where(frequency < 0.45 * rate, near, 0) * np.sin(overtone * phase)
    return total


def _noise(
    rng: np.random.Generator, sounds: list[Sound], ends: NDArray[np.float64], speaker: Speaker, count: int, rate: int
) -> NDArray[np.float64]:
    """Noise around the formants of each unvoiced sound, at its place."""
    total, begin = np.zeros(count), 0
    for sound, end in zip(sounds, (ends * rate).astype(int), strict=True):
        length = min(int(end), count) - begin
        if not sound.voiced and length > 0:
            white = np.fft.rfft(rng.normal(0, 1, length))
            frequencies = np.fft.rfftfreq(length, 1 / rate)
            middle, width = (sound.first + sound.second) / 2 * speaker.tract, 300 + sound.second - sound.first
            total[begin : begin + length] = sound.loudness * np.fft.irfft(
                white * np.exp(-(((frequencies - middle) / width) ** 2)), length
            )
        begin += max(length, 0)
    return total
