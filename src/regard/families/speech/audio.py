"""Reading audio files: any rate, any bit depth, any number of channels, as mono samples at the rate of a model.

A file is read in blocks, so that hours of audio need no more memory than their samples, or than one block of them
(`stream_audio`). `read_audio` joins the same blocks.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError, UsageError

if TYPE_CHECKING:
    import soundfile


Samples = NDArray[np.float32]

QUALITY = "VHQ"  # passes 0.91 of the lower Nyquist frequency; 28 bits, beyond what float32 holds


def resample(samples: Samples, source_rate: int, target_rate: int) -> Samples:
    """Samples at another rate; there are ⌈samples · target / source⌉ of them. Only the ratio of the rates matters, so
    that 9 and 10 slow speech down by a ninth."""
    resampler = Resampler(source_rate, target_rate)
    return np.concatenate([resampler.push(samples), resampler.finish()])


class Resampler:
    """The same, block by block."""

    def __init__(self, source_rate: int, target_rate: int):
        if min(source_rate, target_rate) < 1:
            raise UsageError(f"rates of {source_rate} and {target_rate} samples a second; both must be positive")
        import soxr

        self.source_rate, self.target_rate = source_rate, target_rate
        self.stream = soxr.ResampleStream(source_rate, target_rate, 1, dtype="float32", quality=QUALITY)
        self.taken = self.given = 0  # samples so far

    def push(self, block: Samples) -> Samples:
        """The new samples that can be computed once the block is there."""
        self.taken += len(block)
        new = self.stream.resample_chunk(block.astype(np.float32, copy=False))
        self.given += len(new)
        return new

    def finish(self) -> Samples:
        """The new samples that are left, as if silence followed."""
        left = -(-self.taken * self.target_rate // self.source_rate) - self.given
        silence = np.zeros(self.source_rate // self.target_rate + 1, dtype=np.float32)  # soxr would round the count
        return self.stream.resample_chunk(silence, last=True)[:left]


FRAME = 0.01  # seconds; the steps in which a quiet place is sought
PAUSE = 0.3  # seconds; the quietest stretch of this length is cut in its middle
EARLIEST = 0.5  # of the longest piece: a cut comes no earlier, so that pieces do not become many


class Piece(NamedTuple):
    """Samples that follow each other, and where they begin in the whole."""

    start: int  # sample
    samples: Samples


def cut_at_silence(blocks: Iterable[Samples], rate: int, longest: float) -> Iterator[Piece]:
    """Pieces of at most `longest` seconds, cut at the quietest place of their second half."""
    most = int(longest * rate)
    if most < 2:
        raise UsageError(f"pieces of {longest:g} seconds at {rate:,} samples a second hold nothing; make them longer")
    waiting, start = np.empty(0, dtype=np.float32), 0
    for block in blocks:
        waiting = np.concatenate([waiting, block])
        while len(waiting) > most:
            end = _quiet_place(waiting[:most], rate)
            yield Piece(start, waiting[:end])
            waiting, start = waiting[end:], start + end
    if len(waiting):
        yield Piece(start, waiting)


def _quiet_place(samples: Samples, rate: int) -> int:
    """The middle of the quietest stretch in the second half; the latest, if several are equally quiet."""
    earliest = max(1, int(len(samples) * EARLIEST))
    frame = max(1, int(FRAME * rate))
    frames = (len(samples) - earliest) // frame
    width = min(frames, round(PAUSE / FRAME))
    if not width:
        return len(samples)
    energy = np.square(samples[earliest : earliest + frames * frame], dtype=np.float64).reshape(frames, frame).sum(1)
    sums = np.cumsum(np.concatenate([[0.0], energy]))
    loudness = sums[width:] - sums[:-width]
    quietest = np.flatnonzero(loudness <= loudness.min() + 1e-12)[-1]
    return earliest + int(quietest) * frame + width * frame // 2


AudioSource = str | Path | bytes  # a file, or the bytes of one

SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aif", ".aiff")
FORMATS = ("WAV", "WAVEX", "RF64", "W64", "FLAC", "OGG", "MP3", "MPEG", "AIFF")  # libsndfile's names
BLOCK_SECONDS = 30
RATES = (1_000, 768_000)  # what a header may say
SILENT = 1e-4  # a peak below this (-80 dB) is silence
TOO_LOUD = 2.0  # fractions go from -1 to 1; a peak above this was meant on another scale
CONTRADICTED = re.compile(r": (\d+) \(should be (\d+)\)")
FULL_SCALE = 0.99  # samples at least this loud may be clipped
CLIPPED_RUN = 4  # that many full samples in a row are clipped, not just loud
CLIPPED_SHARE = 1e-3  # of all samples, from which on a warning is given


def audio_name(source: AudioSource, name: str = "") -> str:
    """How messages call a source."""
    return name or ("the audio" if isinstance(source, bytes) else str(source))


def check_audio(source: AudioSource) -> None:
    """Refuse a file that is no audio; only its header is read."""
    with _opened(source, audio_name(source)):
        pass


def read_audio(source: AudioSource, rate: int, name: str = "") -> Samples:
    """A whole file as mono samples at `rate`."""
    return np.concatenate(list(stream_audio(source, rate, name)))


def stream_audio(source: AudioSource, rate: int, name: str = "") -> Iterator[Samples]:
    """A file as blocks of mono samples at `rate`. Silent, clipped or cut audio is read with one warning, at its end."""
    name = audio_name(source, name)
    found = _Findings(name)
    with _opened(source, name) as file:
        resampler = Resampler(file.samplerate, rate)
        for block in _blocks(file, name):
            found.add(block, file.samplerate)
            yield resampler.push(block.mean(axis=1, dtype=np.float32))
        yield resampler.finish()
        # libsndfile notes what a header promises, and what there is
        found.warn(cut=any(int(said) > int(there) for said, there in CONTRADICTED.findall(file.extra_info)))


def given_samples(samples: NDArray[Any]) -> Samples:
    """Samples that a caller has already, as a file would give them: whole numbers become fractions of full scale."""
    if samples.ndim != 1:
        raise DataError(
            f"the samples have the shape {samples.shape}; expected one channel: mix them down, .mean(axis=1)"
        )
    if not len(samples):
        raise DataError("there are no samples; expected at least one")
    if np.issubdtype(samples.dtype, np.integer):
        limits = np.iinfo(samples.dtype)
        middle = 0 if limits.min else limits.max // 2 + 1
        samples = (samples.astype(np.float64) - middle) / (limits.max - middle + 1)
    if not np.isfinite(samples).all():
        raise DataError(f"sample {int(np.isfinite(samples).argmin()):,} is not a number (NaN, infinite)")
    return samples.astype(np.float32, copy=False)


@contextmanager
def _opened(source: AudioSource, name: str) -> Iterator[soundfile.SoundFile]:
    """The file, with the errors of its header in words."""
    with _open(source, name) as file:
        if file.format not in FORMATS:
            raise DataError(f"{name} is a {file.format} file; expected one of {', '.join(SUFFIXES)}")
        if not RATES[0] <= file.samplerate <= RATES[1]:
            raise DataError(
                f"{name} says that it has {file.samplerate:,} samples a second; expected {RATES[0]:,} to {RATES[1]:,}"
            )
        if file.frames == 0:
            raise DataError(f"{name} has no samples; record or convert it again")
        yield file


def _open(source: AudioSource, name: str) -> soundfile.SoundFile:
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise DataError(f"reading audio needs the soundfile package ({error}); pip install soundfile") from None
    if isinstance(source, bytes):
        size = len(source)
    else:
        path = Path(source)
        if path.is_dir():
            raise DataError(f"{name} is a folder; give the audio files in it")
        if not path.is_file():
            raise DataError(f"there is no file {name!r}")
        size = path.stat().st_size
    if not size:
        raise DataError(f"{name} is empty (0 bytes); record or convert it again")
    try:
        return soundfile.SoundFile(io.BytesIO(source) if isinstance(source, bytes) else source)
    except (soundfile.LibsndfileError, TypeError):  # TypeError: a file that ends in .raw, which has no header
        raise DataError(
            f"{name} is no audio that can be read; expected one of {', '.join(SUFFIXES)}; convert other audio and "
            "video, for example with ffmpeg"
        ) from None


def _blocks(file: soundfile.SoundFile, name: str) -> Iterator[NDArray[np.float32]]:
    """Blocks [samples, channels] of finite numbers; at least one sample."""
    import soundfile

    done = 0
    while True:
        try:
            block = file.read(file.samplerate * BLOCK_SECONDS, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            place = f"at {done / file.samplerate:.1f} s"
            raise DataError(f"{name} is damaged or cut short {place} ({error}); save it again") from None
        if not len(block):
            break
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            seconds = (done + int(finite.argmin())) / file.samplerate
            raise DataError(f"{name} has samples that are no numbers (NaN, infinite) at {seconds:.2f} s; save it again")
        done += len(block)
        yield block
    if not done:
        raise DataError(f"{name} has no samples that can be read; save it again")


class _Findings:
    """What is odd about the samples of a file, told once."""

    def __init__(self, name: str):
        self.name, self.peak, self.first = name, 0.0, 0.0
        self.samples = self.values = self.clipped = 0  # values: of all channels

    def add(self, block: NDArray[np.float32], rate: int) -> None:
        self.peak = max(self.peak, float(np.abs(block.mean(axis=1)).max()))
        for channel in block.T:
            clipped = _runs(channel)
            if len(clipped) and not self.clipped:
                self.first = (self.samples + int(clipped[0])) / rate
            self.clipped += len(clipped)
        self.samples += len(block)
        self.values += block.size

    def warn(self, *, cut: bool) -> None:
        if self.peak < SILENT:
            warnings.warn(f"{self.name} is silent: its loudest sample is {self.peak:.1g} of 1", stacklevel=3)
        elif self.peak > TOO_LOUD:
            warnings.warn(
                f"{self.name} has samples of up to {self.peak:,.0f}, where full scale is 1; divide them by theirs",
                stacklevel=3,
            )
        elif self.clipped > CLIPPED_SHARE * self.values:
            share = self.clipped / self.values
            warnings.warn(
                f"{self.name} is clipped: {share:.1%} of its samples are cut off at full scale, first at "
                f"{self.first:.2f} s; record it more quietly",
                stacklevel=3,
            )
        if cut:
            warnings.warn(f"{self.name} is shorter than its header says; it was cut off or not closed", stacklevel=3)


def _runs(channel: NDArray[np.float32]) -> NDArray[np.intp]:
    """The places of samples at full scale within a run of such samples of one sign; fractions above 1 are not cut."""
    full = np.sign(channel) * (np.abs(channel) >= FULL_SCALE) * (np.abs(channel) <= 1)
    same = np.ones(max(len(full) - CLIPPED_RUN + 1, 0), dtype=bool)
    for later in range(1, CLIPPED_RUN):
        same &= full[later : later + len(same)] == full[: len(same)]
    starts = np.flatnonzero(same & (full[: len(same)] != 0))
    return np.unique(starts[:, None] + np.arange(CLIPPED_RUN))
