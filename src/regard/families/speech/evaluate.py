"""Models that transcribe: the error rates of words and characters on recordings with known texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from regard.errors import DataError
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.speech.audio import AudioSource, Samples, read_audio
from regard.families.speech.manifest import Recording, read_recordings, utterances
from regard.families.speech.metrics import NORMALISATION, error_rates
from regard.families.speech.pipeline import TranscribeOptions, Transcriber
from regard.families.speech.recipe import SPEECH

DRAWN_DIGITS = (1, 5)


class Measured(NamedTuple):
    """A recording, its name and its text."""

    audio: AudioSource | Samples
    name: str
    text: str


def evaluate_speech(transcriber: Transcriber, data: str, options: EvaluationOptions) -> Evaluation:
    """Error rates of words (WER) and characters (CER), by kind of error, and the share of recordings that are not
    exactly right."""
    settings = None if options.beam is None else transcriber.settings.replace(beam=options.beam)
    asked, given = TranscribeOptions(settings=settings), list[Measured]()

    def audio() -> Iterator[AudioSource | Samples]:
        for each in _recordings(transcriber, data, options, unread):
            given.append(each)
            yield each.audio

    unread: list[str] = []
    said, heard, seconds = list[str](), list[str](), 0.0
    for number, found in enumerate(transcriber.stream(audio(), asked)):
        if isinstance(found, DataError):
            unread.append(f"{given[number].name}: {found}")
            continue
        said.append(given[number].text)
        heard.append(found.text)
        seconds += found.seconds
    if not said:
        raise DataError(f"{data} has no recording that can be read")
    rates = error_rates(said, heard)
    scores: dict[str, object] = {
        "recordings": len(said),
        "minutes": seconds / 60,
        "words": rates.words,
        "text": NORMALISATION,
        "wer": rates.wer,
        "cer": rates.cer,
        "substitutions": rates.substitutions,
        "deletions": rates.deletions,
        "insertions": rates.insertions,
        "recordings with an error": rates.wrong_texts,
    }
    return Evaluation(scores, unread)


def _recordings(
    transcriber: Transcriber, data: str, options: EvaluationOptions, unread: list[str]
) -> Iterator[Measured]:
    if data == SPEECH:
        drawn = utterances(
            part="test", count=options.count, seed=options.seed, digits=DRAWN_DIGITS, rate=transcriber.rate
        )
        yield from (Measured(each.samples, f"utterance {number}", each.text) for number, each in enumerate(drawn))
        return
    for recording in read_recordings(data):
        try:
            yield Measured(_audio(recording, transcriber.rate), recording.name, recording.text)
        except DataError as error:
            unread.append(str(error))


def _audio(recording: Recording, rate: int) -> AudioSource | Samples:
    """A whole file as it is, or the samples of a part of it."""
    if not recording.start and recording.end is None:
        return recording.audio
    samples = read_audio(recording.audio, rate, recording.name)
    end = len(samples) if recording.end is None else round(recording.end * rate)
    part = samples[round(recording.start * rate) : end]
    if not len(part):
        raise DataError(f"{recording.name} has no samples from {recording.start:g} s on")
    return part
