"""Whisper, speech to text in many languages (Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak
Supervision").

Presets: tiny, base, small, medium, large (the paper's), large-v3 (128 mel bands), turbo (large-v3 with 4 decoder
layers). An encoder-decoder Transformer, pre-norm, whose encoder reads a log-mel spectrogram through two convolutions;
the keys of attention have no bias. What language and task are asked for, and times, are tokens of the text.
Deviations: none known. The encoder's positions are a fixed table that is stored with the weights, as published.

A text is written after a prompt: an earlier text (optional), the start token, language and task (models of several
languages), and a token that asks for no times. With times, a text is a row of segments, each between two of them.
The rules of what may come next (§4.5) are as `generation_config.json` declares them.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.multihead import MultiHeadAttention
from regard.attention.positions import LearnedPositions, sinusoidal
from regard.config import Config, Fraction, refuse_uneven
from regard.errors import CheckpointError, ConfigError
from regard.layers.blocks import Activation, DecoderLayer, EncoderLayer, Factors, FeedForward, Output
from regard.layers.encoder_decoder import EncoderDecoderState, MemoryDecoder, Position
from regard.layers.example import Example, blank_tokens
from regard.search.candidates import Grid

HALVED = 2  # frames of the spectrogram for one vector of the encoder
SEVERAL_LANGUAGES = 51_865  # tokens of the models that know more than English
LANGUAGE = re.compile(r"<\|[a-z]{2,3}\|>")
PROMPT_SHARE = 2  # an earlier text takes at most half of the places, as in training

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"width": 384, "heads": 6, "encoder_depth": 4, "decoder_depth": 4, "ffn_width": 1536},
    "base": {"width": 512, "heads": 8, "encoder_depth": 6, "decoder_depth": 6, "ffn_width": 2048},
    "small": {"width": 768, "heads": 12, "encoder_depth": 12, "decoder_depth": 12, "ffn_width": 3072},
    "medium": {"width": 1024, "heads": 16, "encoder_depth": 24, "decoder_depth": 24, "ffn_width": 4096},
    "large": {"width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 32, "ffn_width": 5120},
    "large-v3": {
        "bands": 128, "width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 32, "ffn_width": 5120,
    },
    "turbo": {"bands": 128, "width": 1280, "heads": 20, "encoder_depth": 32, "decoder_depth": 4, "ffn_width": 5120},
}  # fmt: skip


class WhisperConfig(Config):
    """Sizes of a Whisper; the defaults are the tiny one of the paper."""

    vocab: PositiveInt
    pad: NonNegativeInt = 0
    bands: PositiveInt = 80  # of the spectrogram
    width: PositiveInt = 384
    heads: PositiveInt = 6
    encoder_depth: PositiveInt = 4
    decoder_depth: PositiveInt = 4
    ffn_width: PositiveInt = 1536
    activation: Activation = "gelu"
    max_frames: PositiveInt = 1500  # vectors of the encoder, of 20 ms each
    max_length: PositiveInt = 448  # tokens of a text, with those that say what is asked for
    dropout: Fraction = 0.0
    attention_dropout: Fraction = 0.0
    activation_dropout: Fraction = 0.0

    @model_validator(mode="after")
    def _check(self) -> "WhisperConfig":
        refuse_uneven("width", self.width, "heads", self.heads)
        if self.width % 2 or self.width < 4:
            raise ConfigError(f"width = {self.width}: sinusoidal positions need an even width of 4 or more")
        return self

    @property
    def usual_source(self) -> int:
        """The frames of the spectrogram that the encoder reads; shorter audio is padded."""
        return HALVED * self.max_frames


class Whisper(MemoryDecoder):
    """Reads a log-mel spectrogram and writes what is said, token by token."""

    def __init__(self, config: WhisperConfig):
        super().__init__()
        self.config = c = config
        self.first_convolution = nn.Conv1d(c.bands, c.width, kernel_size=3, padding=1)
        self.second_convolution = nn.Conv1d(c.width, c.width, kernel_size=3, stride=HALVED, padding=1)
        self.encoder_positions: Tensor
        self.register_buffer("encoder_positions", sinusoidal(c.max_frames, c.width, "halves", to_end=True))
        self.embedding = nn.Embedding(c.vocab, c.width)
        self.positions = LearnedPositions(c.width, c.max_length)
        self.dropout = Dropout(c.dropout)
        self.encoder = nn.ModuleList(
            EncoderLayer(self._attention(), self._feed_forward(), c.dropout, "pre") for _ in range(c.encoder_depth)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(self._attention(), self._attention(), self._feed_forward(), c.dropout, "pre")
            for _ in range(c.decoder_depth)
        )
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(c.width), nn.LayerNorm(c.width)
        self.output_weight = self.embedding.weight
        self.output = Output()
        self._initialise()

    def forward(
        self,
        features: Float[Tensor, "B F M"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next token, given the true token before it; with `factored`, unmultiplied."""
        memory = self.encode(features)
        memories = (layer.cross.remember(memory) for layer in self._decoder_layers())
        x = self._decode(inputs, memories, mask=inputs_mask)
        return self.factors(x) if factored else self.predict(x)

    def encode(self, features: Float[Tensor, "B F M"]) -> Float[Tensor, "B L D"]:
        """One vector for every two frames."""
        x = functional.gelu(self.first_convolution(features.transpose(1, 2)))
        x = functional.gelu(self.second_convolution(x)).transpose(1, 2)
        if x.shape[1] > len(self.encoder_positions):
            raise ValueError(f"{features.shape[1]} frames came; the encoder reads at most {self.config.usual_source}")
        x = self.dropout(x + self.encoder_positions[: x.shape[1]].to(x.dtype))
        for layer in self.encoder:
            x = layer(x)
        return self.encoder_norm(x)

    def start(self, features: Float[Tensor, "S F M"]) -> EncoderDecoderState:
        """Listen to S spectrograms, with one hypothesis each."""
        return self.first_state(self.encode(features))

    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        return self.dropout(self.embedding(tokens) + self.positions(tokens.shape[1], first))

    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        return self.decoder_norm(x)

    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        return Factors(x, self.output_weight)

    def _attention(self) -> MultiHeadAttention:
        c = self.config
        return MultiHeadAttention(c.width, c.heads, key_bias=False, dropout=c.attention_dropout)

    def _feed_forward(self) -> FeedForward:
        c = self.config
        return FeedForward(c.width, c.ffn_width, c.activation, c.activation_dropout)

    @torch.no_grad()
    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.Conv1d):
                nn.init.normal_(module.weight, std=0.02)
                bias = getattr(module, "bias", None)
                if bias is not None:
                    nn.init.zeros_(bias)


@dataclass(frozen=True)
class SpokenTokens:
    """The ids of special tokens, and the tokens that a text may not contain or begin with."""

    start: int
    end: int
    no_times: int  # asks for a text without times; times follow it in the vocabulary
    no_speech: int
    transcribe: int | None = None
    previous: int | None = None  # before an earlier text
    languages: Mapping[str, int] = field(default_factory=dict)  # none if the model knows one alone
    suppressed: Sequence[int] = ()
    suppressed_first: Sequence[int] = ()
    latest_first: int | None = None  # the first time of a text is at most this step
    heads: Sequence[tuple[int, int]] = ()  # layers and heads whose attention follows the audio

    @property
    def first_time(self) -> int:
        return self.no_times + 1

    def prompt(self, language: str, earlier: Sequence[int], *, times: bool, places: int) -> list[int]:
        """What is fed before a text."""
        room = max(1, places // PROMPT_SHARE - 1)
        before = [] if self.previous is None or not earlier else [self.previous, *earlier[-room:]]
        asked = [self.languages[language], *([] if self.transcribe is None else [self.transcribe])] if language else []
        return [*before, self.start, *asked, *([] if times else [self.no_times])]

    @classmethod
    def read(cls, values: Mapping[str, Any], vocabulary: Mapping[str, int], where: str) -> "SpokenTokens":
        """The tokens from the values of a folder's configs, and from the names in its vocabulary."""

        def find(key: str, *names: str) -> int | None:
            number = values.get(key)
            named = (vocabulary[name] for name in names if name in vocabulary)
            return number if isinstance(number, int) else next(named, None)

        end = values.get("eos_token_id")
        end = end[0] if isinstance(end, list) and end else end
        end = end if isinstance(end, int) else vocabulary.get("<|endoftext|>")
        start = find("decoder_start_token_id", "<|startoftranscript|>")
        no_times = find("no_timestamps_token_id", "<|notimestamps|>")
        if start is None or end is None or no_times is None:
            raise CheckpointError(f"{where} names no <|startoftranscript|>, <|endoftext|> or <|notimestamps|> token")
        several = values.get("is_multilingual", "lang_to_id" in values or len(vocabulary) >= SEVERAL_LANGUAGES)
        named = {name: number for name, number in vocabulary.items() if LANGUAGE.fullmatch(name)}
        languages = values.get("lang_to_id", named) if several else {}
        silent = find("no_speech_token_id", "<|nospeech|>", "<|nocaptions|>")
        return cls(
            start=start,
            end=end,
            no_times=no_times,
            no_speech=no_times - 1 if silent is None else silent,
            transcribe=(values.get("task_to_id") or {}).get("transcribe", vocabulary.get("<|transcribe|>")),
            previous=find("prev_sot_token_id", "<|startofprev|>"),
            languages={name.strip("<|>"): number for name, number in languages.items()},
            suppressed=[token for token in values.get("suppress_tokens") or () if token >= 0],
            suppressed_first=list(values.get("begin_suppress_tokens") or ()),
            latest_first=values.get("max_initial_timestamp_index"),
            heads=[(layer, head) for layer, head in values.get("alignment_heads") or ()],
        )


class SpokenRule:
    """What may come next in a text of speech; a `Rule` of a search."""

    def __init__(self, tokens: SpokenTokens, device: torch.device, *, times: bool):
        self.tokens, self.times = tokens, times
        self.never, self.not_first = (
            torch.tensor(list(some), dtype=torch.long, device=device)
            for some in (tokens.suppressed, tokens.suppressed_first)
        )

    def __call__(self, log_p: Float[Tensor, "S W V"], grid: Grid) -> None:
        log_p.index_fill_(2, self.never, -math.inf)
        if grid.length == 0:
            log_p.index_fill_(2, self.not_first, -math.inf)
        if self.times:
            self._forbid_times(log_p, grid.history)

    def _forbid_times(self, log_p: Float[Tensor, "S W V"], history: Int[Tensor, "S W T"]) -> None:
        """Times come in pairs and never decrease; a text begins with one, and one comes where all together are more
        probable than any other token."""
        begin = self.tokens.first_time
        log_p[..., self.tokens.no_times] = -math.inf
        if not history.shape[2]:
            log_p[..., :begin] = -math.inf
            if self.tokens.latest_first is not None:
                log_p[..., begin + self.tokens.latest_first + 1 :] = -math.inf
        else:
            is_time = history >= begin
            last = is_time[..., -1]
            before = is_time[..., -2] if history.shape[2] > 1 else torch.ones_like(last)
            log_p[..., begin:].masked_fill_((last & before)[..., None], -math.inf)
            log_p[..., : self.tokens.end].masked_fill_((last & ~before)[..., None], -math.inf)
            latest = torch.where(is_time, history, begin - 1).amax(dim=-1)
            lowest = torch.where(last & ~before, latest, latest + 1)
            times = torch.arange(begin, log_p.shape[2], device=log_p.device)
            log_p[..., begin:].masked_fill_(times < lowest[..., None], -math.inf)
        together = log_p[..., begin:].logsumexp(dim=-1) > log_p[..., :begin].amax(dim=-1)
        log_p[..., :begin].masked_fill_(together[..., None], -math.inf)


def _transcribe(model: Whisper, rows: int, source: int, target: int) -> Any:
    return model(torch.zeros(rows, source, model.config.bands), blank_tokens(rows, target), factored=True)


def _start(model: Whisper, rows: int, source: int) -> EncoderDecoderState:
    return model.start(torch.zeros(rows, source, model.config.bands))


EXAMPLE = Example(_transcribe, "target", "recordings of {source} frames with {target} tokens", start=_start)
