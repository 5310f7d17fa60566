"""Log-mel features: against the direct formula, transformers' extractor of Whisper, and librosa."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from regard.errors import CheckpointError, ConfigError
from regard.families.speech.features import CONFORMER, PREPROCESSING, WHISPER, LogMelConfig, log_mel, mel_filters


def noise(samples, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.1, samples).astype(np.float32))


@cache
def edges_of(config):
    """Where the triangles of the bands begin and end, in Hz."""

    def mel(hertz):
        if config.scale == "htk":
            return 2595 * math.log10(1 + hertz / 700)
        return hertz * 3 / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000, 6.4)

    def hertz(wanted):  # by halving, so that no inverse is trusted
        low, high = 0.0, float(config.rate)
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if mel(middle) < wanted else (low, middle)
        return low

    lowest, highest = mel(config.low), mel(config.highest)
    return [hertz(lowest + (highest - lowest) * each / (config.mels + 1)) for each in range(config.mels + 2)]


def by_formula(samples, config, frame):
    """One frame by the definitions: a Fourier sum of windowed samples, triangles, a logarithm."""
    half, offset = config.n_fft // 2, (config.n_fft - config.window) // 2
    padded = np.pad(samples, half, mode="reflect" if config.padding == "reflect" else "constant")
    cut = padded[frame * config.hop : frame * config.hop + config.n_fft]
    window = np.zeros(config.n_fft)
    place = np.arange(config.window)
    window[offset : offset + config.window] = 0.5 - 0.5 * np.cos(2 * np.pi * place / config.window)
    bins = np.arange(half + 1)
    spectrum = np.exp(-2j * np.pi * bins[:, None] * np.arange(config.n_fft) / config.n_fft) @ (cut * window)

    power = np.abs(spectrum) ** 2
    frequency = np.arange(half + 1) * config.rate / config.n_fft
    bands, edges = [], edges_of(config)
    for left, middle, right in zip(edges, edges[1:], edges[2:], strict=False):
        height = np.maximum(0, np.minimum((frequency - left) / (middle - left), (right - frequency) / (right - middle)))
        total = (height * power).sum() * (2 / (right - left) if config.equal_areas else 1)
        bands.append(max(total, 1e-10))
    return np.array(bands)


@pytest.mark.parametrize(
    "config",
    [
        CONFORMER,
        LogMelConfig(
            rate=8_000, n_fft=256, window=200, hop=80, mels=23, scale="htk", equal_areas=False, low=60, high=3_800
        ),
    ],
)  # fmt: skip
def test_frames_follow_the_formula(config):
    samples = noise(2_000)
    found = log_mel(samples, config)
    assert found.shape == (config.frames(2_000), config.mels)
    for frame in (0, 5, len(found) - 1):
        assert np.abs(found[frame].numpy() - np.log(by_formula(samples.numpy(), config, frame))).max() < 1e-3


def test_whispers_form_follows_the_formula():
    samples = noise(1_600)
    logs = np.log10([by_formula(samples.numpy(), WHISPER, frame) for frame in range(10)])
    expected = (np.maximum(logs, logs.max() - 8) + 4) / 4
    assert np.abs(log_mel(samples, WHISPER).numpy() - expected).max() < 1e-4


@pytest.mark.parametrize("mels", [80, 128])
def test_whispers_form_is_that_of_transformers(mels):
    config = WHISPER.replace(mels=mels)
    samples = np.concatenate([noise(70_000), np.sin(np.arange(40_000) / 9).astype(np.float32)])
    theirs = WhisperFeatureExtractor(feature_size=mels)(samples, sampling_rate=16_000, return_tensors="pt")
    padded = torch.zeros(480_000)
    padded[: len(samples)] = torch.from_numpy(samples)
    found = log_mel(padded, config)
    assert found.shape == (3000, mels)
    assert torch.allclose(found.T, theirs["input_features"][0], atol=2e-5)


@pytest.mark.parametrize("scale", ["slaney", "htk"])
def test_features_are_those_of_librosa(scale):
    librosa = pytest.importorskip("librosa", reason="librosa is not installed")
    config = CONFORMER.replace(scale=scale)
    theirs = librosa.filters.mel(sr=16_000, n_fft=512, n_mels=80, htk=scale == "htk", norm="slaney", dtype=np.float64)
    assert np.abs(mel_filters(config) - theirs).max() < 1e-9
    samples = noise(16_000).numpy()
    power = librosa.feature.melspectrogram(
        y=samples, sr=16_000, n_fft=512, win_length=400, hop_length=160, n_mels=80, htk=scale == "htk",
        pad_mode="constant",
    )  # fmt: skip
    expected = np.log(np.maximum(power, 1e-10)).T[:100]
    assert np.abs(log_mel(torch.from_numpy(samples), config).numpy() - expected).max() < 1e-3


def test_zeros_behind_a_row_change_none_of_its_frames():
    short, long = noise(4_000), noise(9_000, 1)
    batch = torch.zeros(2, 9_000)
    batch[0, :4_000], batch[1] = short, long
    together = log_mel(batch, CONFORMER)
    frames = CONFORMER.frames(4_000)
    # Some CPUs add the products of another number of rows in another order: the last bits may differ.
    torch.testing.assert_close(together[0, :frames], log_mel(short, CONFORMER)[:frames], rtol=0, atol=1e-5)
    torch.testing.assert_close(together[1], log_mel(long, CONFORMER), rtol=0, atol=1e-5)


@pytest.mark.parametrize("config", [CONFORMER, WHISPER])
@pytest.mark.parametrize("samples", [1, 100, 159, 257, 500])
def test_the_shortest_audio_has_a_frame(config, samples):
    found = log_mel(noise(samples), config)
    assert found.shape == (config.frames(samples), 80) and found.isfinite().all()
    assert torch.isfinite(log_mel(torch.zeros(samples), config)).all()


def test_a_tone_is_in_its_band():
    samples = torch.sin(2 * math.pi * 1000 * torch.arange(8_000) / 16_000)
    loudest = log_mel(samples, CONFORMER)[20].argmax()
    frequencies = np.linspace(0, 8_000, 257)
    assert abs(frequencies[mel_filters(CONFORMER)[loudest].argmax()] - 1000) < 40
    assert CONFORMER.seconds(25) == 0.25


@pytest.mark.parametrize(
    "config", [CONFORMER, WHISPER, WHISPER.replace(mels=128), CONFORMER.replace(scale="htk", low=20)]
)
def test_a_folder_keeps_the_form(tmp_path, config):
    config.save(tmp_path)
    assert LogMelConfig.load(tmp_path) == config


def test_folders_of_transformers_are_read(tmp_path):
    assert LogMelConfig.load(tmp_path) == WHISPER  # says nothing
    WhisperFeatureExtractor(feature_size=128).save_pretrained(tmp_path)
    assert LogMelConfig.load(tmp_path) == WHISPER.replace(mels=128)
    values = json.loads((tmp_path / PREPROCESSING).read_text())
    (tmp_path / PREPROCESSING).unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"feature_extractor": values}))
    assert LogMelConfig.load(tmp_path) == WHISPER.replace(mels=128)
    WHISPER.save(tmp_path)
    assert WhisperFeatureExtractor.from_pretrained(tmp_path).n_samples == 480_000


def test_what_a_form_cannot_be_is_said(tmp_path):
    with pytest.raises(ConfigError, match="window = 600"):
        LogMelConfig.parse({"window": 600})
    with pytest.raises(ConfigError, match="high = 9000"):
        LogMelConfig.parse({"high": 9000})
    (tmp_path / PREPROCESSING).write_text('{"feature_size": 0}')
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json says no features"):
        LogMelConfig.load(tmp_path)
    (tmp_path / PREPROCESSING).write_text("[")
    with pytest.raises(CheckpointError, match="cannot be read"):
        LogMelConfig.load(tmp_path)
