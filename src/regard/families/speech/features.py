"""Log-mel spectrograms, as Conformers and Whispers read them, and SpecAugment (Park et al. 2019), which hides parts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor
from torch.nn import functional

from regard.config import Config
from regard.errors import CheckpointError, ConfigError

PREPROCESSING = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # where newer transformers put the same under `feature_extractor`
FLOOR = 1e-10  # of the energy in a band, before its logarithm
FULL = 32_767  # the largest sample of 16 bits
QUIET = 0.1  # the least deviation that a spectrogram is divided by, so that silence stays silent
RANGE = 8.0  # of log10 below the loudest band

# Slaney's scale: linear up to 1,000 Hz, then logarithmic.
BEND_HERTZ, BEND_MEL, STEP = 1000.0, 15.0, 27.0 / np.log(6.4)
THEIR_KEYS = {"rate": "sampling_rate", "n_fft": "n_fft", "hop": "hop_length", "mels": "feature_size"}


def processor_files(folder: Path) -> list[str]:
    """Files of a folder that say what its spectrograms are made of, beside the usual one."""
    return [PROCESSOR]


class LogMelConfig(Config):
    """What a log-mel spectrogram is made of; lengths in samples."""

    rate: PositiveInt = 16_000
    n_fft: PositiveInt = 512
    window: PositiveInt = 400
    hop: PositiveInt = 160
    mels: PositiveInt = 80
    scale: Literal["slaney", "htk"] = "slaney"
    equal_areas: bool = True  # divide filters by their width (Slaney); else their peaks are 1
    low: NonNegativeFloat = 0.0  # Hz
    high: PositiveFloat | None = None  # None: half the rate
    log: Literal["natural", "bounded"] = "natural"  # bounded: log10, at most 8 below the loudest, (x + 4) / 4
    padding: Literal["zeros", "reflect"] = "zeros"  # beyond both ends; zeros make padded batches exact

    @model_validator(mode="after")
    def _check_lengths(self) -> LogMelConfig:
        if self.window > self.n_fft:
            raise ConfigError(f"window = {self.window}: must not be longer than n_fft = {self.n_fft}")
        if not self.low < self.highest <= self.rate / 2:
            raise ConfigError(f"high = {self.highest:g}: must be above low = {self.low:g}, up to half the rate")
        return self

    @property
    def highest(self) -> float:
        return self.rate / 2 if self.high is None else self.high

    def frames(self, samples: int) -> int:
        """How many frames there are of so many samples: one for each whole hop, and at least one."""
        return max(1, samples // self.hop)

    def seconds(self, frame: int | float) -> float:
        """When a frame is (its middle, counted from the first sample)."""
        return frame * self.hop / self.rate

    def save(self, folder: Path) -> None:
        """Write `preprocessor_config.json`; Whisper's form so that transformers reads it too."""
        own = self.model_dump(exclude_none=True)
        values: dict[str, Any] = {their: own.pop(mine) for mine, their in THEIR_KEYS.items()}
        if own == WHISPER.model_dump(exclude_none=True, exclude=set(THEIR_KEYS)):
            seconds = 30
            own = {"feature_extractor_type": "WhisperFeatureExtractor", "chunk_length": seconds,
                   "n_samples": seconds * self.rate, "nb_max_frames": seconds * self.rate // self.hop,
                   "padding_side": "right", "padding_value": 0.0, "return_attention_mask": False}  # fmt: skip
        (folder / PREPROCESSING).write_text(json.dumps({**values, **own}, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> LogMelConfig:
        """The form that a model folder says; Whisper's where it says nothing."""
        values = _read(folder)
        theirs = {mine: values[their] for mine, their in THEIR_KEYS.items() if their in values}
        own = {key: values[key] for key in cls.model_fields if key in values and key not in THEIR_KEYS}
        window = {} if "window" in own else {"window": theirs.get("n_fft", WHISPER.n_fft)}
        try:
            return cls.parse({**WHISPER.model_dump(), **theirs, **window, **own})
        except ConfigError as error:
            raise CheckpointError(f"{folder / PREPROCESSING} says no features that are understood: {error}") from None


CONFORMER = LogMelConfig()
WHISPER = LogMelConfig(n_fft=400, log="bounded", padding="reflect")


def log_mel(samples: Float[Tensor, "*B S"], config: LogMelConfig) -> Float[Tensor, "*B T M"]:
    """The log-mel spectrogram of samples. Zeros behind the samples of a row change none of its frames in the natural
    form with zeros as padding; Whisper's form depends on the loudest frame of the row."""
    rows = samples.float().reshape(-1, samples.shape[-1])
    least = max(config.hop, config.n_fft // 2 + 1)  # what a reflection needs
    if rows.shape[1] < least:
        frames = config.frames(rows.shape[1])
        return log_mel(functional.pad(samples, (0, least - rows.shape[1])), config)[..., :frames, :]
    window, filters = _tables(config, samples.device)
    padding = "constant" if config.padding == "zeros" else "reflect"
    spectrum = torch.stft(
        rows, config.n_fft, config.hop, config.window, window, center=True, pad_mode=padding, return_complex=True
    )
    energy = spectrum[..., : config.frames(rows.shape[1])].abs().square()
    bands = (filters @ energy).clamp(min=FLOOR).transpose(1, 2)
    return _logarithm(bands, config.log).reshape(*samples.shape[:-1], -1, config.mels)


def _logarithm(bands: Float[Tensor, "B T M"], form: str) -> Float[Tensor, "B T M"]:
    if form == "natural":
        return bands.log()
    logs = bands.log10()
    loudest = logs.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(logs, loudest - RANGE) + 4) / 4


@cache
def _tables(config: LogMelConfig, device: torch.device) -> tuple[Float[Tensor, W], Float[Tensor, "M F"]]:
    """The window and the filters, made once a device. Not inference tensors, so that training can use them too."""
    with torch.inference_mode(False):
        filters = torch.from_numpy(mel_filters(config).astype(np.float32))
        return torch.hann_window(config.window, device=device), filters.to(device)


def mel_filters(config: LogMelConfig) -> Float[np.ndarray, "M F"]:
    """Triangles over the frequencies of the Fourier transform, spaced evenly on the mel scale."""
    frequencies = np.linspace(0, config.rate / 2, config.n_fft // 2 + 1)
    lowest, highest = _to_mel(np.array([config.low, config.highest]), config.scale)
    edges = _to_hertz(np.linspace(lowest, highest, config.mels + 2), config.scale)
    left, middle, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (frequencies - left) / (middle - left), (right - frequencies) / (right - middle)
    triangles: NDArray[np.float64] = np.maximum(0, np.minimum(rising, falling))
    return triangles * (2 / (right - left)) if config.equal_areas else triangles


def _to_mel(hertz: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 2595 * np.log10(1 + hertz / 700)
    bent = BEND_MEL + np.log(np.maximum(hertz, BEND_HERTZ) / BEND_HERTZ) * STEP
    return np.where(hertz < BEND_HERTZ, hertz * BEND_MEL / BEND_HERTZ, bent)


def _to_hertz(mel: NDArray[np.float64], scale: str) -> NDArray[np.float64]:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    bent = BEND_HERTZ * np.exp((np.maximum(mel, BEND_MEL) - BEND_MEL) / STEP)
    return np.where(mel < BEND_MEL, mel * BEND_HERTZ / BEND_MEL, bent)


def _read(folder: Path) -> dict[str, Any]:
    """The values of a folder's feature extractor."""
    for name in (PREPROCESSING, PROCESSOR):
        path = folder / name
        if not path.is_file():
            continue
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            values = values.get("feature_extractor", values)
        except (ValueError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error})") from None
        if isinstance(values, dict):
            return values
    return {}


class Features(NamedTuple):
    """Spectrograms, padded with zeros, and which of their frames are real."""

    values: Float[Tensor, "B T M"]
    mask: Bool[Tensor, "B T"]


def speech_features(samples: Int[Tensor, "B S"], lengths: Int[Tensor, B], config: LogMelConfig) -> Features:
    """Log-mel spectrograms without the mean of each band, divided by one deviation for each recording.

    So neither loudness nor the tone of a microphone matters, and a recording alone is as in a batch.
    """
    with torch.autocast(samples.device.type, enabled=False):
        bands = log_mel(samples.float() / FULL, config)
        frames = (lengths // config.hop).clamp(min=1)
        mask = torch.arange(bands.shape[1], device=bands.device) < frames[:, None]
        real = mask[..., None]
        mean = torch.where(real, bands, 0.0).sum(dim=1, keepdim=True) / frames[:, None, None]
        centred = torch.where(real, bands - mean, 0.0)
        variance = centred.square().sum(dim=(1, 2), keepdim=True) / (frames[:, None, None] * config.mels)
        return Features(centred / variance.sqrt().clamp(min=QUIET), mask)


class SpecAugment(Config):
    """[augmentation] of speech; widths are drawn up to a share of all bands, or of the recording."""

    band_masks: NonNegativeInt = 2
    bands: float = Field(default=27 / 80, ge=0, lt=1)  # F = 27 of 80 bands
    time_masks: NonNegativeInt = 10
    time: float = Field(default=0.05, ge=0, lt=1)

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]:
        """The random numbers that `__call__` needs: a width and a place for every mask."""
        return rng.random((count, 2 * (self.band_masks + self.time_masks)), dtype=np.float32)

    @torch.no_grad()
    def __call__(
        self, features: Float[Tensor, "B T M"], frames: Int[Tensor, B], draws: Float[Tensor, "B K"]
    ) -> Float[Tensor, "B T M"]:
        """Normalised spectrograms of so many real frames, zero (their mean) where they are hidden."""
        if not draws.shape[1]:
            return features
        bands, time = draws[:, : 2 * self.band_masks], draws[:, 2 * self.band_masks :]
        sizes = torch.full_like(frames, features.shape[2])
        hidden = _covered(bands, sizes, self.bands, features.shape[2])[:, None, :]
        hidden = hidden | _covered(time, frames, self.time, features.shape[1])[:, :, None]
        return torch.where(hidden, 0.0, features)


def _covered(draws: Float[Tensor, "B K"], sizes: Int[Tensor, B], share: float, length: int) -> Bool[Tensor, "B length"]:
    """Which places some mask covers: masks up to `share` of each size wide, anywhere within it."""
    widths, places = draws.unflatten(1, (-1, 2)).unbind(dim=2)  # [B masks]
    widths = (widths * (share * sizes[:, None] + 1)).floor()
    first = (places * (sizes[:, None] - widths + 1)).floor()
    at = torch.arange(length, device=draws.device)[None, None]
    return ((at >= first[..., None]) & (at < (first + widths)[..., None])).any(dim=1)
