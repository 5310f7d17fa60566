"""Reading speech for sparse autoencoders: recordings with texts, and the loss of what a model hears in them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.data.batch import SpeechBatch, pad_rows
from regard.families.speech.audio import Samples, read_audio
from regard.families.speech.conformer import SUBSAMPLED, Conformer, subsampled
from regard.families.speech.ctc import needed_frames
from regard.families.speech.data import in_16_bits, read_spoken, speech_batch
from regard.families.speech.features import FULL, Features, speech_features
from regard.families.speech.manifest import SPEECH
from regard.families.speech.pipeline import BATCH_PIECES, SpeechRecognizer, TranscribeOptions
from regard.families.speech.task import speech_loss
from regard.families.speech.whisper_pipeline import WhisperTranscriber
from regard.look.reader import B, Example, Reader, Source, TokenUnits, fed_tokens, side_of, summed_loss


class RecordingReader(Reader[B]):
    """A model that hears a recording and reads its text. Places of its encoder belong to frames, others to tokens."""

    columns: ClassVar = {"samples": "<i2", "text": "<i4"}
    reads_text: ClassVar = False
    built_in: ClassVar = (SPEECH,)

    def __init__(self, pipeline: SpeechRecognizer | WhisperTranscriber) -> None:
        super().__init__(pipeline)
        self.tokenizer, self.rate = pipeline.tokenizer, pipeline.rate
        self.longest = round(pipeline.longest * pipeline.rate)  # samples heard at once

    @abstractmethod
    def text_ids(self, samples: Samples, text: str, to: str) -> list[int]:
        """The tokens of what is said, with their end."""

    @abstractmethod
    def fits(self, example: Example) -> bool:
        """Whether the model can read this text with its recording."""

    @abstractmethod
    def heard(self, samples: Samples) -> list[int]:
        """The tokens of what the model hears, with their end."""

    def examples(self, source: Source) -> Iterator[Example]:
        """Recordings with their texts; those that are too long, or too short for their text, are left out."""
        recordings = read_spoken(source.path, self.rate, part=source.part, count=source.count, seed=source.seed)
        for _, text, _, samples in islice(recordings, source.count):
            if len(samples) <= self.longest:
                ids = self.text_ids(samples, text, source.to)
                example = in_16_bits(samples), np.array(ids, dtype=np.int32)
                if self.fits(example):
                    yield example

    def given(self, text: str) -> Example:
        """The recording of a file, as far as the model hears at once, with what the model hears in it."""
        samples = read_audio(text, self.rate)[: self.longest]
        return in_16_bits(samples), np.array(self.heard(samples), dtype=np.int32)

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.pieces([number])[0]


class SpeechInputs(NamedTuple):
    """Recordings with the tokens of their texts, and their spectrograms."""

    texts: SpeechBatch
    features: Features


class SpeechReader(RecordingReader[SpeechInputs]):
    """A Conformer, by labels of frames, a decoder, or both."""

    model: Conformer

    def __init__(self, pipeline: SpeechRecognizer) -> None:
        super().__init__(pipeline)
        self.audio = pipeline.audio

    def text_ids(self, samples: Samples, text: str, to: str) -> list[int]:
        return list(self.tokenizer.encode([text])[0].ids)

    def fits(self, example: Example) -> bool:
        return needed_frames(example[1][:-1].tolist()) <= self.length(example)

    def heard(self, samples: Samples) -> list[int]:
        assert self.tokenizer.end is not None
        return [*self.pipeline.write([samples], self.pipeline.settings).texts[0][0].tokens, self.tokenizer.end]

    def batch(self, examples: Sequence[Example]) -> SpeechInputs:
        waves, texts = zip(*examples, strict=True)
        batch = speech_batch(waves, texts, self.tokenizer.pad).to(self.device)
        return SpeechInputs(batch, speech_features(batch.samples, batch.lengths, self.audio))

    def length(self, example: Example) -> int:
        """The frames of the encoder."""
        return subsampled(self.audio.frames(len(example[0])))

    def run(self, batch: SpeechInputs) -> object:
        inputs = None if self.model.decoder is None else batch.texts.inputs
        return self.model(*batch.features, inputs, batch.texts.labels_mask)

    def loss(self, batch: SpeechInputs) -> tuple[float, int]:
        loss = speech_loss(self.model, self.model.config, batch.features, batch.texts)
        return float(loss.total), int(loss.tokens)

    def real(self, batch: SpeechInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.features.mask[:, ::SUBSAMPLED] if side_of(place) == "source" else batch.texts.labels_mask

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> TokenUnits:
        """The time of every frame with the label it is given, or the tokens that a decoder is fed."""
        if side_of(place) != "source":
            return fed_tokens(self.tokenizer, example[1].tolist())
        frames = self.model(*self.batch([example]).features).frames
        times = [f" {self.audio.seconds(SUBSAMPLED * frame):.2f}s" for frame in range(self.length(example))]
        if frames is None:
            return TokenUnits(times)
        labels = frames[0, : len(times)].argmax(dim=-1).tolist()
        named = zip(times, labels, self.tokenizer.shown(labels), strict=True)
        blank = self.tokenizer.pad
        return TokenUnits([time if label == blank else f"{time} {piece}" for time, label, piece in named])

    def answer(self, example: Example, position: int) -> str:
        return self.tokenizer.decode(self.heard(_samples(example))[:-1]).strip()


class WhisperInputs(NamedTuple):
    """Spectrograms and which vectors of the encoder are of the recording; texts after what is asked for, and which of
    their labels are not part of that."""

    values: Float[Tensor, "B F M"]
    frames: Bool[Tensor, "B T"]
    inputs: Int[Tensor, "B L"]
    labels: Int[Tensor, "B L"]
    mask: Bool[Tensor, "B L"]
    counted: Bool[Tensor, "B L"]


class WhisperReader(RecordingReader[WhisperInputs]):
    """A Whisper. Its texts begin with tokens that ask for a language; the silence behind a recording is left out."""

    at_once: ClassVar = BATCH_PIECES  # all are padded to one length

    def __init__(self, pipeline: WhisperTranscriber) -> None:
        super().__init__(pipeline)
        self.asked = len(pipeline.prompt(next(iter(pipeline.tokens.languages), "")))  # tokens before a text

    def text_ids(self, samples: Samples, text: str, to: str) -> list[int]:
        language = self.pipeline.checked(TranscribeOptions(language=to)).language or self._language(samples)
        return [*self.pipeline.prompt(language), *self.pipeline.text_ids(text), self.pipeline.tokens.end]

    def fits(self, example: Example) -> bool:
        return len(example[1]) <= self.pipeline.positions

    def heard(self, samples: Samples) -> list[int]:
        return self._written(samples, self.pipeline.prompt(self._language(samples)))

    def batch(self, examples: Sequence[Example]) -> WhisperInputs:
        rows, mask = pad_rows([ids for _, ids in examples], self.pipeline.tokens.end)
        counts = torch.tensor([self.length(example) for example in examples])
        frames = torch.arange(self.pipeline.places) < counts[:, None]
        counted = mask[:, 1:] & (torch.arange(1, rows.shape[1]) >= self.asked)
        texts = frames, rows[:, :-1], rows[:, 1:], mask[:, 1:], counted
        values = self.pipeline.features([_samples(example) for example in examples])
        return WhisperInputs(values, *(tensor.to(self.device) for tensor in texts))

    def length(self, example: Example) -> int:
        """The vectors of the encoder that are of the recording."""
        return min(self.pipeline.places, max(1, round(len(example[0]) / self.rate / self.pipeline.step)))

    def run(self, batch: WhisperInputs) -> object:
        return self.model(batch.values, batch.inputs, factored=True)

    def loss(self, batch: WhisperInputs) -> tuple[float, int]:
        return summed_loss(self.model(batch.values, batch.inputs), batch.labels, batch.counted)

    def real(self, batch: WhisperInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.frames if side_of(place) == "source" else batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        """The time of every vector with the word that is said then, or the tokens that the decoder is fed."""
        if side_of(place) != "source":
            return TokenUnits(self.tokenizer.running(example[1][:-1].tolist()))
        times = [self.pipeline.step * frame for frame in range(self.length(example))]
        names = {token: name for name, token in self.pipeline.tokens.languages.items()}
        language = next((names[token] for token in example[1][: self.asked].tolist() if token in names), "")
        text = example[1][self.asked : -1].tolist()
        words = self.pipeline.words(_samples(example), text, language) if text else []
        said = [" ".join(word.text for word in words if word.start <= time < word.end) for time in times]
        return TokenUnits([f" {time:.2f}s {word}".rstrip() for time, word in zip(times, said, strict=True)])

    def answer(self, example: Example, position: int) -> str:
        """What is heard in the whole recording, in the language that its text asks for."""
        asked = example[1][: self.asked].tolist()
        return self.tokenizer.decode(self._written(_samples(example), asked)[self.asked : -1]).strip()

    def _language(self, samples: Samples) -> str:
        with torch.inference_mode():
            return self.pipeline.detect(self.pipeline.encode([samples]))[0]

    def _written(self, samples: Samples, prompt: Sequence[int]) -> list[int]:
        """A prompt, the tokens that the model writes after it, and their end."""
        with torch.inference_mode():
            memory = self.pipeline.encode([samples])
        (written,) = self.pipeline.write(memory, [prompt], self.pipeline.settings, times=False)
        return [*prompt, *written.hypotheses[0].tokens, self.pipeline.tokens.end]


def _samples(example: Example) -> Samples:
    return (example[0] / FULL).astype(np.float32)
