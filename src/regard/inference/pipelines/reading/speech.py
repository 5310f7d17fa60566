"""Reading speech: Conformers, by the loss of labels of frames and of every token that a decoder says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.data.audio.reading import Samples, read_audio
from regard.data.batch import decoder_inputs, pad_rows
from regard.data.speech.batches import padded_samples
from regard.data.speech.features import speech_features
from regard.data.speech.manifest import read_recordings
from regard.data.speech.store import FULL, in_16_bits
from regard.data.synthetic.speech import utterances
from regard.inference.decoding.ctc import needed_frames
from regard.inference.pipelines.reading.base import SPEECH, Example, Reader, Source, TokenUnits, side_of
from regard.inference.pipelines.speech import LONGEST, SpeechRecognizer
from regard.layers.conformer import SUBSAMPLED, subsampled
from regard.models.conformer import Conformer


class SpeechInputs(NamedTuple):
    """Spectrograms and which of their frames are real; the texts as a decoder is fed them and as it answers."""

    values: Float[Tensor, "B T M"]
    mask: Bool[Tensor, "B T"]
    inputs: Int[Tensor, "B L"]
    labels: Int[Tensor, "B L"]
    labels_mask: Bool[Tensor, "B L"]

    @property
    def frames(self) -> Bool[Tensor, "B T2"]:
        """Which frames of the encoder are real."""
        return self.mask[:, ::SUBSAMPLED]


class SpeechReader(Reader[SpeechInputs]):
    """A recogniser that hears a recording and reads its text. Places of its encoder belong to frames."""

    columns: ClassVar = {"samples": "<i2", "text": "<i4"}
    reads_text: ClassVar = False

    def __init__(self, pipeline: SpeechRecognizer) -> None:
        assert isinstance(pipeline.model, Conformer)
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer, self.audio = pipeline.tokenizer, pipeline.audio

    def examples(self, source: Source) -> Iterator[Example]:
        """Recordings with their texts; those that are too long, or too short for their text, are left out."""
        for samples, text in islice(self._spoken(source), source.count):
            (encoded,) = self.tokenizer.encode([text])
            example = in_16_bits(samples), np.array(encoded.ids, dtype=np.int32)
            if len(samples) <= LONGEST * self.audio.rate and needed_frames(encoded.ids[:-1]) <= self.length(example):
                yield example

    def given(self, text: str) -> Example:
        """The recording of a file, as far as the model hears at once, with what the model hears in it."""
        samples = read_audio(text, self.audio.rate)[: round(LONGEST * self.audio.rate)]
        return in_16_bits(samples), np.array([*self._heard(samples), self.tokenizer.end], dtype=np.int32)

    def batch(self, examples: Sequence[Example]) -> SpeechInputs:
        waves, texts = zip(*examples, strict=True)
        samples, lengths = padded_samples(list(waves))
        features = speech_features(samples.to(self.device), lengths.to(self.device), self.audio)
        labels, mask = pad_rows(texts, self.tokenizer.pad)
        inputs = decoder_inputs(labels, mask, pad=self.tokenizer.pad, start=self.tokenizer.pad)
        return SpeechInputs(*features, *(each.to(self.device) for each in (inputs, labels, mask)))

    def length(self, example: Example) -> int:
        """The frames of the encoder."""
        return subsampled(self.audio.frames(len(example[0])))

    def run(self, batch: SpeechInputs) -> object:
        inputs = None if self.model.decoder is None else batch.inputs
        return self.model(batch.values, batch.mask, inputs, batch.labels_mask)

    def loss(self, batch: SpeechInputs) -> tuple[float, int]:
        inputs = None if self.model.decoder is None else batch.inputs
        heard = self.model(batch.values, batch.mask, inputs, batch.labels_mask)
        total = torch.zeros((), device=self.device)
        if heard.frames is not None:
            logs, said = heard.frames.float().log_softmax(dim=-1).transpose(0, 1), batch.labels_mask.sum(dim=1) - 1
            total += functional.ctc_loss(
                logs, batch.labels, batch.frames.sum(dim=1), said, blank=self.tokenizer.pad, reduction="sum"
            )
        if heard.taught is not None:
            logits, real = heard.taught, batch.labels_mask
            total += functional.cross_entropy(logits[real].float(), batch.labels[real], reduction="sum")
        return float(total), int(batch.labels_mask.sum())

    def real(self, batch: SpeechInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.frames if side_of(place) == "source" else batch.labels_mask

    @torch.inference_mode()
    def units(self, example: Example, place: str) -> TokenUnits:
        """The time of every frame with the label it is given, or the tokens that a decoder is fed."""
        if side_of(place) != "source":
            return TokenUnits(self.tokenizer.pieces([self.tokenizer.pad, *example[1][:-1].tolist()]))
        batch = self.batch([example])
        heard = self.model(batch.values, batch.mask)
        count = int(batch.frames.sum())
        times = [f" {self.audio.seconds(SUBSAMPLED * frame):.2f}s" for frame in range(count)]
        if heard.frames is None:
            return TokenUnits(times)
        found, blank = heard.frames[0, :count].argmax(dim=-1).tolist(), self.tokenizer.pad
        pieces = self.tokenizer.shown(found)
        heard_at = zip(times, found, pieces, strict=True)
        return TokenUnits([time if label == blank else f"{time} {piece}" for time, label, piece in heard_at])

    def answer(self, example: Example, position: int) -> str:
        """What is heard in the whole recording."""
        return self.tokenizer.decode(self._heard((example[0] / FULL).astype(np.float32))).strip()

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.pieces([number])[0]

    def _spoken(self, source: Source) -> Iterator[tuple[Samples, str]]:
        rate = self.audio.rate
        if source.path == SPEECH:
            for said in utterances(part=source.part, count=source.count, seed=source.seed, digits=(1, 3), rate=rate):
                yield said.samples, said.text
            return
        for each in read_recordings(source.path):
            yield each.part_of(read_audio(each.audio, rate, each.name), rate), " ".join(each.text.split())

    def _heard(self, samples: NDArray[np.float32]) -> list[int]:
        return list(self.pipeline.write([samples], self.pipeline.settings).texts[0][0].tokens)
