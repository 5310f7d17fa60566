"""Recordings in, texts out, with the time of every word, and where a Conformer looked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import nn

from regard.attention import record
from regard.attention.record import attention_names
from regard.config import Config
from regard.data.formats.languages import find_language
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError, UsageError
from regard.families.speech import ctc
from regard.families.speech.audio import (
    SILENT,
    AudioSource,
    Piece,
    Samples,
    cut_at_silence,
    given_samples,
    stream_audio,
)
from regard.families.speech.conformer import SUBSAMPLED, Conformer
from regard.families.speech.ctc import HeardTexts, Way, write_speech
from regard.families.speech.data import in_16_bits, padded_samples
from regard.families.speech.features import Features, LogMelConfig, log_mel, speech_features
from regard.look.neurons import LayerNeurons, record_neurons
from regard.runtime.convert import fast_model
from regard.search.pipeline import load_for_pipeline
from regard.search.search import Hypothesis
from regard.search.settings import SearchSettings, read_decoding

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
        values = {"start": round(self.start, DIGITS), "end": round(self.end, DIGITS), "text": self.text}
        score = {} if self.score is None else {"score": round(self.score, 4)}
        return values | score | ({"words": [word.to_json() for word in self.words]} if self.words else {})

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

    rate: int  # of the samples that the model hears
    longest: float  # seconds of a piece
    languages: Sequence[str] = ()  # that can be asked for; none if the model has no choice
    takes_prompt = False
    gives_words = False  # whether it finds the times of words

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        audio: LogMelConfig,
        *,
        settings: SearchSettings | None = None,
        name: str = "",
    ) -> None:
        """`settings` say how it decodes if the options do not say otherwise."""
        self.model, self.tokenizer, self.audio, self.name = model.eval(), tokenizer, audio, name
        self.settings, self.fast = settings or SearchSettings(), cast(Any, fast_model(self.model))
        self.device, self.rate = next(model.parameters()).device, audio.rate

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
        transcripts = []
        for transcript in self.stream(several, chosen):
            if isinstance(transcript, DataError):
                raise transcript
            transcripts.append(transcript)
        return transcripts

    def stream(
        self, audio: Iterable[Audio], options: TranscribeOptions, names: Iterable[str] = ()
    ) -> Iterator[Transcript | DataError]:
        """The transcript of each file, or why it cannot be read, as soon as it is known. `names` are those of bytes."""
        return (transcript for transcript in self.steps(audio, options, names) if transcript is not None)

    def steps(
        self, audio: Iterable[Audio], options: TranscribeOptions, names: Iterable[str] = ()
    ) -> Iterator[Transcript | DataError | None]:
        """Like `stream`, with None after every batch of pieces, so that other work can be done in between."""
        options = self.checked(options)
        files, batch, called = deque[_File](), list[tuple[_File, Piece]](), iter(names)
        for source in audio:
            files.append(file := _File())
            try:
                name = next(called, "")
                blocks: Iterable[Samples] = (
                    [given_samples(source)] if isinstance(source, np.ndarray) else stream_audio(source, self.rate, name)
                )
                for piece in cut_at_silence(blocks, self.rate, self.longest):
                    file.samples = piece.start + len(piece.samples)
                    batch.append((file, piece))
                    if len(batch) == BATCH_PIECES:
                        self._hear(batch, options)
                        batch = []
                        yield None
            except DataError as error:
                file.error, batch = error, [(other, piece) for other, piece in batch if other is not file]
            file.ended = True
            while files and files[0].ended and all(other is not files[0] for other, _ in batch):
                yield files.popleft().result(self.rate, options)
        self._hear(batch, options)
        for file in files:
            yield file.result(self.rate, options)

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
        heard = self.hear([piece.samples for _, piece in loud], options)
        for (file, piece), segments in zip(loud, heard, strict=True):
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


LONGEST = 20.0  # seconds that the model hears at once


@dataclass(frozen=True)
class HeardAttention:
    """What a recogniser heard in samples, and where it looked.

    `weights` are those of every layer between tokens and frames, [heads, tokens, frames]: the cross-attention of a
    decoder, and the self-attention of the encoder, as the mean over the frames of each token.
    """

    text: str
    spectrogram: Float[np.ndarray, "frames bands"]
    tokens: list[str]
    seconds: float  # of one frame of the weights
    weights: Mapping[str, Float[np.ndarray, "H T F"]]
    path: list[tuple[str, float, float, float]]  # label, begin and end in seconds, mean log-probability
    words: list[Word]
    neurons: Mapping[str, LayerNeurons] = field(default_factory=dict)  # of the layers that tokens themselves look in


class SpeechRecognizer(Transcriber):
    """A Conformer with its tokenizer, spectrograms and decoding defaults."""

    pipeline: ClassVar[str] = "speech_recognizer"
    longest = LONGEST

    def __init__(self, model: nn.Module, tokenizer: TextTokenizer, audio: LogMelConfig, **options: Any) -> None:
        super().__init__(model, tokenizer, audio, **options)
        assert isinstance(model, Conformer)
        self.gives_words = model.config.ctc

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> SpeechRecognizer:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle)
        return cls(
            loaded.model,
            TextTokenizer.load(loaded.folder),
            LogMelConfig.load(loaded.folder),
            settings=read_decoding(loaded.folder).settings,
            name=Path(folder).name,
        )

    def hear(self, pieces: Sequence[Samples], options: TranscribeOptions) -> list[list[Segment]]:
        """One segment for every piece in which something is said."""
        heard = self.write(pieces, options.settings or self.settings)
        frames = heard.frames or repeat(None, len(pieces))
        return [
            self._segments(texts[0], logs, len(samples) / self.rate, words=options.words)
            for texts, logs, samples in zip(heard.texts, frames, pieces, strict=True)
        ]

    def write(self, pieces: Sequence[Samples], settings: SearchSettings, way: Way | None = None) -> HeardTexts:
        """The texts of pieces, and the log-probabilities of their frames."""
        features = self._features(pieces)
        return write_speech(self.fast, features.values, features.mask, settings, self.tokenizer, way)

    @torch.inference_mode()
    def attention(self, samples: Samples) -> HeardAttention:
        """What the model hears in samples, and what it looks at for every token."""
        heard, seconds = self.write([samples], self.settings), len(samples) / self.rate
        ids, spectrogram = heard.texts[0][0].tokens, log_mel(torch.from_numpy(samples), self.audio).numpy()
        spans = self._spans(ids, heard.frames[0]) if heard.frames else []
        features, tokens = self._features([samples]), self.tokenizer.shown(ids)
        inputs = torch.tensor([[self.tokenizer.pad, *ids]], device=self.device)
        layers = attention_names(self.model)
        with record(self.model) as looks, record_neurons(self.model, layers) as seen:
            self.model(features.values, None, inputs)
        frames = [slice(span.first, span.last) for span in spans]  # of every token
        weights, neurons = dict[str, np.ndarray](), dict[str, LayerNeurons]()
        for name, recorded in looks.items() if ids else ():
            rows = recorded[0].float().cpu().numpy()
            if name.endswith("cross"):
                weights[name], neurons[name] = rows[:, : len(ids)], seen[name].part(slice(len(ids)))
            elif name.startswith("encoder") and spans:
                weights[name] = np.stack([rows[:, some].mean(axis=1) for some in frames], axis=1)
                neurons[name] = seen[name].mean_over(frames)
        path = [
            (token, self._seconds(span.first), min(self._seconds(span.last), seconds), span.score)
            for token, span in zip(tokens, spans, strict=False)
        ]
        words = self._words(ids, heard.frames[0], seconds) if heard.frames else []
        text = self.tokenizer.decode(ids).strip()
        return HeardAttention(text, spectrogram, tokens, self._seconds(1), weights, path, words, neurons)

    def _features(self, pieces: Sequence[Samples]) -> Features:
        samples, lengths = padded_samples([in_16_bits(piece) for piece in pieces])
        return speech_features(samples.to(self.device), lengths.to(self.device), self.audio)

    def _seconds(self, frame: int) -> float:
        """When a frame of the encoder begins."""
        return self.audio.seconds(SUBSAMPLED * frame)

    def _segments(
        self, best: Hypothesis, frames: Float[np.ndarray, "T V"] | None, seconds: float, *, words: bool
    ) -> list[Segment]:
        text = self.tokenizer.decode(best.tokens).strip()
        if not text:
            return []
        timed = [] if frames is None else self._words(best.tokens, frames, seconds)
        start, end = (timed[0].start, timed[-1].end) if timed else (0.0, seconds)
        return [Segment(text, start, end, timed if words else [], best.score)]

    def _words(self, ids: Sequence[int], frames: Float[np.ndarray, "T V"], seconds: float) -> list[Word]:
        """The words of a text and when they are said, from the frames of its tokens; the last frame may reach beyond
        the end of the audio, the words do not."""
        spans_of: dict[int, list[ctc.Span]] = {}
        spans = self._spans(ids, frames)
        texts = [self.tokenizer.decode(ids[: place + 1]) for place in range(len(ids))]
        for place, (span, text) in enumerate(zip(spans, texts, strict=False)):
            if text.strip() and text.split() != (texts[place - 1].split() if place else []):
                spans_of.setdefault(len(text.split()) - 1, []).append(span)
        words = texts[-1].split() if texts else []
        return [
            Word(words[number], self._seconds(some[0].first), min(self._seconds(some[-1].last), seconds),
                 float(np.mean([span.score for span in some])))
            for number, some in spans_of.items()
        ]  # fmt: skip

    def _spans(self, ids: Sequence[int], frames: Float[np.ndarray, "T V"]) -> list[ctc.Span]:
        """The frames of every token; none if a decoder said more than there is time for."""
        return ctc.align(frames, ids, self.tokenizer.pad) if ctc.needed_frames(ids) <= len(frames) else []
