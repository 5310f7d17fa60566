"""Audio from good and bad files, resampling against formulas and Fourier sums, and cutting at silence."""

import io
import math
import tracemalloc
import warnings

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from regard.data.sources import PARTS
from regard.errors import DataError, UsageError
from regard.families.speech.audio import (
    Resampler,
    check_audio,
    cut_at_silence,
    read_audio,
    resample,
    stream_audio,
)
from regard.families.speech.manifest import DIGITS, utterances
from tiny_speech import write_wav


def tone(frequency, seconds=1.0, rate=16_000, loudness=0.5):
    return (loudness * np.sin(2 * np.pi * frequency * np.arange(math.ceil(seconds * rate)) / rate)).astype(np.float32)


def saved(samples, rate=16_000, form="WAV", subtype="PCM_16"):
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format=form, subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(
    ("form", "subtype", "precision"),
    [
        ("WAV", "PCM_U8", 1 / 100), ("WAV", "PCM_16", 1e-4), ("WAV", "PCM_24", 1e-6), ("WAV", "PCM_32", 1e-7),
        ("WAV", "FLOAT", 0), ("WAV", "DOUBLE", 1e-7), ("FLAC", "PCM_S8", 1 / 100), ("FLAC", "PCM_24", 1e-6),
    ],
)  # fmt: skip
def test_every_bit_depth_gives_the_samples(form, subtype, precision):
    samples = tone(440)
    assert np.abs(read_audio(saved(samples, form=form, subtype=subtype), 16_000) - samples).max() <= precision


@pytest.mark.parametrize("form", ["OGG", "MP3"])
def test_compressed_audio_is_read(form):
    samples = read_audio(saved(tone(440), form=form, subtype=None), 16_000)
    middle = samples[4000:12000]
    assert abs(np.abs(np.fft.rfft(middle)).argmax() * 2 - 440) <= 2


def test_eight_bit_stereo_at_another_rate_is_mixed_and_resampled(tmp_path):
    stereo = np.stack([tone(300, rate=11_025), tone(1200, rate=11_025)], axis=1)
    path = tmp_path / "old.wav"
    path.write_bytes(saved(stereo, 11_025, subtype="PCM_U8"))
    check_audio(path)
    expected = (tone(300) + tone(1200)) / 2
    inside = slice(1000, -1000)
    assert np.abs(read_audio(path, 16_000)[inside] - expected[inside]).max() < 0.02


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"RIFF", "no audio"),
        (b"This is a text, not a recording. " * 40, "no audio"),
        (saved(np.zeros(0, dtype=np.float32)), "has no samples"),
        (saved(np.array([0.1, np.nan, 0.2] * 8000), subtype="FLOAT"), r"no numbers .* at 0.00 s"),
        (saved(np.array([0.1] * 20_000 + [np.inf]), subtype="FLOAT"), r"no numbers .* at 1.25 s"),
        (saved(tone(440), form="FLAC")[:3000], "damaged or cut short"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_by_name(tmp_path, content, words):
    path = tmp_path / "speech.wav"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"speech\.wav .*{words}"):
        read_audio(path, 16_000)
    with pytest.raises(DataError, match=rf"^a recording .*{words}"):
        read_audio(content, 16_000, "a recording")


def test_folders_and_missing_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        read_audio(tmp_path, 16_000)
    with pytest.raises(DataError, match="there is no file"):
        check_audio(tmp_path / "nothing.wav")
    (tmp_path / "x.raw").write_bytes(b"\0" * 100)
    with pytest.raises(DataError, match="no audio"):
        read_audio(tmp_path / "x.raw", 16_000)


def test_odd_audio_is_read_with_one_warning(tmp_path):
    loud = np.clip(tone(440, loudness=3.0), -1, 1)
    for name, content, words in (
        ("quiet.wav", saved(np.zeros(48_000)), "quiet.wav is silent"),
        ("loud.wav", saved(loud), r"loud.wav is clipped: \d+.\d% of its samples"),
        ("cut.wav", saved(tone(440))[:9000], "cut.wav is shorter than its header says"),
        ("scale.wav", saved(32768 * tone(440), subtype="FLOAT"), "samples of up to 16,384, where full scale is 1"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.warns(UserWarning, match=words) as told:
            samples = read_audio(path, 8_000)
        assert len(told) == 1 and len(samples)
    with warnings.catch_warnings(action="error"):
        read_audio(saved(tone(440, loudness=1.0)), 16_000)  # loud, but every peak is round
        read_audio(saved(tone(440, loudness=1.5), subtype="FLOAT"), 16_000)  # louder than full scale, but not cut off
        for subtype in ("PCM_U8", "PCM_24", "ALAW"):  # an odd number of bytes is padded, not cut off
            read_audio(saved(tone(440)[:15_999], subtype=subtype), 16_000)


def test_silence_of_opposite_channels_is_told():
    with pytest.warns(UserWarning, match="silent"):
        read_audio(saved(np.stack([tone(440), -tone(440)], axis=1)), 16_000)


def test_a_rate_that_cannot_be_is_refused():
    content = bytearray(saved(tone(440)))
    content[24:28] = (7).to_bytes(4, "little")
    with pytest.raises(DataError, match="7 samples a second"):
        read_audio(bytes(content), 16_000)


# Resampling


@pytest.mark.parametrize(("source", "target"), [(8_000, 16_000), (44_100, 16_000), (48_000, 16_000), (16_000, 11_025)])
@pytest.mark.parametrize("share", [0.03, 0.5, 0.85])
def test_a_tone_at_another_rate_is_the_same_tone(source, target, share):
    frequency = share * min(source, target) / 2
    found = resample(tone(frequency, 0.5, source), source, target)
    expected = tone(frequency, 0.5, target)
    assert len(found) == len(expected)
    edge = target // 50
    assert np.abs(found - expected)[edge:-edge].max() < 5e-4


def test_what_the_lower_rate_cannot_hold_is_gone():
    assert np.abs(resample(tone(9_000, 0.5, 44_100), 44_100, 16_000))[300:-300].max() < 2e-5


@given(st.integers(1, 60), st.integers(1, 60), st.lists(st.integers(0, 400), min_size=1, max_size=5))
def test_resampling_in_blocks_is_resampling_at_once(source, target, sizes):
    samples = np.random.default_rng(source * 61 + target).normal(0, 0.3, sum(sizes)).astype(np.float32)
    resampler, done = Resampler(source, target), 0
    parts = []
    for size in sizes:
        parts.append(resampler.push(samples[done : done + size]))
        done += size
    parts.append(resampler.finish())
    whole = np.concatenate(parts)
    assert len(whole) == -(-len(samples) * target // source)
    assert np.allclose(whole, resample(samples, source, target), atol=1e-5)


def test_a_constant_stays_and_rates_must_be_positive():
    assert np.allclose(resample(np.ones(4000, dtype=np.float32), 4_411, 1_601)[400:-400], 1, atol=1e-5)
    with pytest.raises(UsageError, match="positive"):
        resample(np.ones(3, dtype=np.float32), 0, 16_000)


@pytest.mark.parametrize(("source", "target"), [(44_100, 16_000), (8_000, 16_000), (22_050, 16_000)])
def test_resampling_agrees_with_fourier_sums(source, target):
    """A second of noise whose frequencies both rates can hold, evaluated at the new times."""
    frequencies = np.fft.rfft(np.random.default_rng(0).normal(0, 0.2, source))
    frequencies[int(0.4 * min(source, target)) :] = 0
    noise = np.fft.irfft(frequencies, source).astype(np.float32)
    expected = np.fft.irfft(frequencies, target) * target / source
    assert np.abs(resample(noise, source, target) - expected)[500:-500].max() < 5e-4


def test_streamed_blocks_are_the_whole_file(tmp_path):
    path = tmp_path / "long.flac"
    samples = np.random.default_rng(1).normal(0, 0.1, 8_000 * 65).astype(np.float32)
    soundfile.write(path, samples, 8_000)
    blocks = list(stream_audio(path, 16_000))
    assert len(blocks) > 2
    whole = np.concatenate(blocks)
    assert np.array_equal(whole, read_audio(path, 16_000))
    assert len(whole) == 2 * len(samples) and np.abs(whole - resample(samples, 1, 2)).max() < 1e-4


# Cutting


@given(st.integers(0, 2**32), st.integers(1, 40_000), st.floats(0.01, 5.0), st.sampled_from([100, 1_000, 8_000]))
def test_pieces_are_the_input_and_short_enough(seed, count, longest, rate):
    rng = np.random.default_rng(seed)
    samples = (rng.normal(0, 1, count) * np.repeat(rng.integers(0, 2, 40), 1000)[:count]).astype(np.float32)
    blocks = np.split(samples, sorted(rng.integers(0, count + 1, 3)))
    if int(longest * rate) < 2:
        with pytest.raises(UsageError, match="hold nothing"):
            list(cut_at_silence(blocks, rate, longest))
        return
    pieces = list(cut_at_silence(blocks, rate, longest))
    assert np.array_equal(np.concatenate([piece.samples for piece in pieces]), samples)
    assert [piece.start for piece in pieces] == [0, *np.cumsum([len(piece.samples) for piece in pieces])[:-1]]
    assert all(1 <= len(piece.samples) <= longest * rate for piece in pieces)


def test_cuts_lie_in_the_pauses():
    spoken = tone(300, 1.4, 8_000)
    pause = np.zeros(8_000 * 6 // 10, dtype=np.float32)
    samples = np.concatenate([spoken, pause] * 6)
    pieces = list(cut_at_silence([samples], 8_000, 3.0))
    for piece in pieces[1:]:
        assert 1.4 < piece.start / 8_000 % 2.0 < 2.0, "a cut within a word"


def test_two_hours_are_cut_without_lying_in_memory():
    rate, hours = 8_000, 2

    def blocks():
        for number in range(hours * 120):
            yield np.roll(np.ones(30 * rate, dtype=np.float32), number)

    tracemalloc.start()
    total = sum(len(piece.samples) for piece in cut_at_silence(blocks(), rate, 30))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == hours * 3600 * rate
    assert peak < 0.2 * total * 4  # of what all samples would need


# Drawn speech


def test_drawn_speech_repeats_and_parts_differ():
    first, second = (list(utterances(part="train", count=2, seed=3)) for _ in range(2))
    assert all(np.array_equal(a.samples, b.samples) and a.words == b.words for a, b in zip(first, second, strict=True))
    openings = [next(utterances(part=part, count=1, seed=3)).samples[:3000] for part in PARTS]
    assert not np.array_equal(openings[0], openings[1])
    with pytest.raises(UsageError, match="too few frequencies"):
        next(utterances(part="train", count=1, seed=0, rate=4_000))


def test_drawn_words_lie_where_they_are_said_to(tmp_path):
    said = set()
    for drawn in utterances(part="train", count=25, seed=5, digits=(2, 4), rate=8_000):
        said |= set(drawn.text.split())
        loud = np.abs(drawn.samples)
        assert loud.max() < 1 and 2 <= len(drawn.words) <= 4
        inside = np.zeros(len(loud), dtype=bool)
        for word in drawn.words:
            inside[int(word.start * 8_000) : int(word.end * 8_000)] = True
        assert loud[inside].mean() > 5 * loud[~inside].mean()
    assert said == set(DIGITS)
    write_wav(tmp_path / "said.wav", drawn.samples, 8_000)
    assert np.abs(read_audio(tmp_path / "said.wav", 8_000) - drawn.samples).max() < 1e-4
