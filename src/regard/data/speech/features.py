"""From samples of 16 bits to normalised spectrograms, for batches on any device."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.audio.features import LogMelConfig, log_mel
from regard.data.speech.store import FULL

QUIET = 0.1  # the least deviation that a spectrogram is divided by, so that silence stays silent


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
