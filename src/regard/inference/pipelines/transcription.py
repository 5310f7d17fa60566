"""Audio in, a transcript with times out: what every pipeline that transcribes shares.

A pipeline says how it hears pieces of audio (`hear`). Reading files, cutting long ones at silence, batches, and joining
the pieces are done here, so that hours of audio are transcribed piece by piece.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.config import Config
from regard.data.audio.cutting import Piece, cut_at_silence
from regard.data.audio.reading import SILENT, AudioSource, Samples, given_samples, stream_audio
from regard.data.formats.languages import find_language
from regard.errors import DataError, UsageError
from regard.inference.decoding.settings import SearchSettings

Audio = AudioSource | NDArray[Any]  # a file, the bytes of one, or samples at the rate of the model

BATCH_PIECES = 8  # pieces that are heard at once
DIGITS = 3  # of seconds in JSON


@dataclass(frozen=True)
class Word:
    """A word, when it is said (in seconds), and its mean log-probability where the model gives one."""

    text: str
    start: float
    end: float
    score: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The word as plain values, under OpenAI's names."""
        times = {"start": round(self.start, DIGITS), "end": round(self.end, DIGITS)}
        return {"word": self.text, **times} | ({} if self.score is None else {"score": round(self.score, 4)})


@dataclass(frozen=True)
class Segment:
    """Something that is said without a pause, and when (in seconds); `score` is the mean log-probability of tokens."""

    text: str
    start: float
    end: float
    words: list[Word] = field(default_factory=list)
    score: float | None = None
    language: str = ""

    def to_json(self) -> dict[str, Any]:
        """The segment as plain values."""
        found: dict[str, Any] = {
            "start": round(self.start, DIGITS),
            "end": round(self.end, DIGITS),
            "text": self.text,
        }
        if self.score is not None:
            found["score"] = round(self.score, 4)
        return found | ({"words": [word.to_json() for word in self.words]} if self.words else {})

    def later(self, seconds: float) -> Segment:
        """The same segment in audio that begins `seconds` earlier."""
        words = [replace(word, start=word.start + seconds, end=word.end + seconds) for word in self.words]
        return replace(self, start=self.start + seconds, end=self.end + seconds, words=words)


@dataclass(frozen=True)
class Transcript:
    """What is said in a file of `seconds`."""

    text: str
    segments: list[Segment]
    language: str
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """The transcript as plain values."""
        return {
            "text": self.text,
            "language": self.language,
            "seconds": round(self.seconds, DIGITS),
            "segments": [segment.to_json() for segment in self.segments],
        }


class TranscribeOptions(Config):
    """How to transcribe."""

    language: str = ""  # what is spoken; "" leaves it to the model
    prompt: str = ""  # a text before the audio, for models that take one: names, spelling
    timestamps: bool = False  # whether times of segments are wanted; some models find them only if asked
    words: bool = False  # whether times of words are wanted
    settings: SearchSettings | None = None  # None: the model's own


class Transcriber(ABC):
    """The base of pipelines that transcribe."""

    name: str
    rate: int  # of the samples that the model hears
    longest: float  # seconds of a piece
    languages: Sequence[str] = ()  # that can be asked for; none if the model has no choice
    settings: SearchSettings  # how it decodes if the options do not say otherwise
    takes_prompt = False
    gives_words = False  # whether it finds the times of words

    @abstractmethod
    def hear(self, pieces: Sequence[Samples], options: TranscribeOptions) -> list[list[Segment]]:
        """The segments of each piece, with times from the beginning of the piece."""

    def transcribe(
        self, audio: Audio | Sequence[Audio], *, options: TranscribeOptions | None = None, **changes: Any
    ) -> list[Transcript]:
        """A transcript of every recording: a path, the bytes of a file, or samples at the rate of the model, from -1 to
        1 or whole numbers of any depth. `changes` are single values of the options."""
        several: Sequence[Audio] = [audio] if isinstance(audio, str | Path | bytes | np.ndarray) else audio
        chosen = (options or TranscribeOptions()).replace(**changes)
        found = []
        for transcript in self.stream(several, chosen):
            if isinstance(transcript, DataError):
                raise transcript
            found.append(transcript)
        return found

    def stream(
        self, audio: Iterable[Audio], options: TranscribeOptions, names: Iterable[str] = ()
    ) -> Iterator[Transcript | DataError]:
        """The transcript of each file, or why it cannot be read, as soon as it is known. `names` are those of bytes."""
        return (found for found in self.steps(audio, options, names) if found is not None)

    def steps(
        self, audio: Iterable[Audio], options: TranscribeOptions, names: Iterable[str] = ()
    ) -> Iterator[Transcript | DataError | None]:
        """Like `stream`, with None after every batch of pieces, so that other work can be done in between."""
        options = self.checked(options)
        files, batch, called = deque[_File](), list[tuple[_File, Piece]](), iter(names)
        for source in audio:
            files.append(file := _File())
            try:
                blocks = self._blocks(source, next(called, ""))
                for piece in cut_at_silence(blocks, self.rate, self.longest):
                    file.samples = piece.start + len(piece.samples)
                    batch.append((file, piece))
                    if len(batch) == BATCH_PIECES:
                        self._hear(batch, options)
                        batch = []
                        yield None
            except DataError as error:
                file.error, batch = error, [each for each in batch if each[0] is not file]
            file.ended = True
            while files and files[0].ended and all(each is not files[0] for each, _ in batch):
                yield files.popleft().result(self.rate, options)
        self._hear(batch, options)
        for file in files:
            yield file.result(self.rate, options)

    def _blocks(self, source: Audio, name: str) -> Iterable[Samples]:
        """Samples at the rate of the model; `name` is that of bytes."""
        if isinstance(source, np.ndarray):
            return [given_samples(source)]
        return stream_audio(source, self.rate, name)

    def checked(self, options: TranscribeOptions) -> TranscribeOptions:
        """The options, with the model's own code for the language; refuses what the model cannot do."""
        who = self.name or "this model"
        if options.prompt and not self.takes_prompt:
            raise UsageError(f"{who} takes no prompt; leave it out")
        if options.words and not self.gives_words:
            raise UsageError(f"{who} does not know when words are said; ask for segments")
        if not options.language:
            return options
        if not self.languages:
            raise UsageError(f"{who} knows no languages by name; leave out the language {options.language!r}")
        code = find_language(self.languages, options.language)
        if code is None:
            raise UsageError(
                f"{who} does not know the language {options.language!r}; known: {', '.join(self.languages)}"
            )
        return options.replace(language=code)

    def _hear(self, batch: list[tuple[_File, Piece]], options: TranscribeOptions) -> None:
        """Hear the pieces in which there is any sound: models make words up in silence."""
        loud = [(file, piece) for file, piece in batch if np.abs(piece.samples).max() >= SILENT]
        if not loud:
            return
        found = self.hear([piece.samples for _, piece in loud], options)
        for (file, piece), segments in zip(loud, found, strict=True):
            file.segments += [segment.later(piece.start / self.rate) for segment in segments]


class _File:
    """A file that is being transcribed."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.samples, self.ended = 0, False
        self.error: DataError | None = None

    def result(self, rate: int, options: TranscribeOptions) -> Transcript | DataError:
        if self.error is not None:
            return self.error
        text = " ".join(" ".join(segment.text for segment in self.segments).split())
        spoken = Counter(segment.language for segment in self.segments if segment.language).most_common(1)
        language = options.language or (spoken[0][0] if spoken else "")
        return Transcript(text, self.segments, language, self.samples / rate)
