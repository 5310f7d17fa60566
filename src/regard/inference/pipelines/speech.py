"""Recordings in, texts out, with the time of every word, and where a Conformer looked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from regard.attention import record
from regard.attention.record import attention_names
from regard.data.audio.features import LogMelConfig, log_mel
from regard.data.audio.reading import Samples
from regard.data.speech.batches import padded_samples
from regard.data.speech.features import Features, speech_features
from regard.data.speech.store import in_16_bits
from regard.data.tokenizers.text import TextTokenizer
from regard.inference.decoding import ctc
from regard.inference.decoding.folder_settings import read_decoding
from regard.inference.decoding.search import Hypothesis
from regard.inference.decoding.settings import SearchSettings
from regard.inference.decoding.speech import HeardTexts, Way, write_speech
from regard.inference.fast.convert import fast_model
from regard.inference.insight.neurons import LayerNeurons, record_neurons
from regard.inference.pipelines.loading import load_for_pipeline
from regard.inference.pipelines.transcription import Segment, TranscribeOptions, Transcriber, Word
from regard.layers.conformer import SUBSAMPLED
from regard.models.conformer import Conformer

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

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        audio: LogMelConfig,
        *,
        settings: SearchSettings | None = None,
        name: str = "",
    ):
        self.model, self.tokenizer, self.audio, self.name = model.eval(), tokenizer, audio, name
        self.settings, self.fast = settings or SearchSettings(), fast_model(self.model)
        self.device = next(model.parameters()).device
        self.rate, self.longest = audio.rate, LONGEST
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
        segments = []
        for number, (found, samples) in enumerate(zip(heard.texts, pieces, strict=True)):
            frames = heard.frames[number] if heard.frames else None
            segments.append(self._segments(found[0], frames, len(samples) / self.rate, words=options.words))
        return segments

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
        for name, each in looks.items() if ids else ():
            rows = each[0].float().cpu().numpy()
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
        self, found: Hypothesis, frames: Float[np.ndarray, "T V"] | None, seconds: float, *, words: bool
    ) -> list[Segment]:
        text = self.tokenizer.decode(found.tokens).strip()
        if not text:
            return []
        timed = [] if frames is None else self._words(found.tokens, frames, seconds)
        start, end = (timed[0].start, timed[-1].end) if timed else (0.0, seconds)
        return [Segment(text, start, end, timed if words else [], found.score)]

    def _words(self, ids: Sequence[int], frames: Float[np.ndarray, "T V"], seconds: float) -> list[Word]:
        """The words of a text and when they are said, from the frames of its tokens; the last frame may reach beyond
        the end of the audio, the words do not."""
        found: dict[int, list[ctc.Span]] = {}
        spans = self._spans(ids, frames)
        texts = [self.tokenizer.decode(ids[: place + 1]) for place in range(len(ids))]
        for place, (span, text) in enumerate(zip(spans, texts, strict=False)):
            if text.strip() and text.split() != (texts[place - 1].split() if place else []):
                found.setdefault(len(text.split()) - 1, []).append(span)
        words = texts[-1].split() if texts else []
        return [
            Word(words[number], self._seconds(some[0].first), min(self._seconds(some[-1].last), seconds),
                 float(np.mean([span.score for span in some])))
            for number, some in found.items()
        ]  # fmt: skip

    def _spans(self, ids: Sequence[int], frames: Float[np.ndarray, "T V"]) -> list[ctc.Span]:
        """The frames of every token; none if a decoder said more than there is time for."""
        return ctc.align(frames, ids, self.tokenizer.pad) if ctc.needed_frames(ids) <= len(frames) else []
