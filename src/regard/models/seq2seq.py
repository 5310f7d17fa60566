"""Sequence to sequence with recurrent networks, through one fixed vector (Sutskever et al. 2014) or with attention
(Bahdanau et al. 2015, "RNNsearch"; also with the scores of Luong et al. 2015 and Vaswani et al. 2017).

Presets: tiny, small, base; bottleneck (no attention, one direction), sutskever and bahdanau (the sizes of the papers).
Deviations: the two directions of the encoder share `width`, so that the memory is as wide as the decoder and any score
fits; s_0 = tanh(W h) is made of the last encoder state for all decoder layers; the deep output has one tanh layer in
place of maxout; the convolutional encoder (Gehring et al. 2017) has no position vectors and is summarised by its mean.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.dropout import Dropout
from regard.attention.packing import packed, packing_for, unpacked
from regard.attention.scores import Reading, ScoredAttention
from regard.config import Config, Fraction, refuse_even
from regard.errors import ConfigError
from regard.layers.blocks import Factors
from regard.layers.convolution import ConvolutionEncoder
from regard.layers.recurrent import CELLS, Kind, Recurrent, reverse

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"embedding": 64, "width": 128, "cell": "gru", "dropout": 0.1},
    "small": {"embedding": 256, "width": 256, "cell": "gru"},
    "base": {"embedding": 256, "width": 512, "cell": "lstm", "encoder_depth": 2},
    "bottleneck": {"embedding": 256, "width": 512, "attention": "none", "bidirectional": False, "reverse_source": True},
    "sutskever": {
        "embedding": 1000, "width": 1000, "encoder_depth": 4, "decoder_depth": 4, "cell": "lstm", "tie": "none",
        "attention": "none", "bidirectional": False, "reverse_source": True, "dropout": 0.0,
    },
    "bahdanau": {"embedding": 620, "width": 1000, "cell": "gru", "tie": "none", "dropout": 0.0},
}  # fmt: skip


class Seq2SeqConfig(Config):
    """Sizes and choices of a recurrent encoder-decoder; the defaults suit some ten thousand sentence pairs."""

    source_vocab: PositiveInt
    target_vocab: PositiveInt
    pad: NonNegativeInt = 0
    embedding: PositiveInt = 256  # width of the word vectors
    width: PositiveInt = 512  # of the decoder state and of the memory
    encoder_depth: PositiveInt = 1
    decoder_depth: PositiveInt = 1
    cell: Kind = "lstm"
    attention: Literal["none", "additive", "dot", "general", "scaled_dot"] = "additive"
    reading: Reading = "soft"
    encoder: Literal["recurrent", "convolution"] = "recurrent"
    kernel: PositiveInt = 3  # of the convolutional encoder
    bidirectional: bool = True
    reverse_source: bool = False  # read the source from its end; attention is still reported in the written order
    dropout: Fraction = 0.3
    tie: Literal["none", "target", "all"] = "target"  # which embeddings share the output matrix

    @model_validator(mode="after")
    def _check_encoder(self) -> "Seq2SeqConfig":
        if self.encoder == "convolution":
            refuse_even("kernel", self.kernel)
        elif self.bidirectional and self.width % 2:
            raise ConfigError(
                f"width = {self.width}: cannot be halved between the two directions of the encoder; make it even or "
                "set bidirectional = false"
            )
        return self


@dataclass
class EncodedSource:
    """S encoded source sentences: a vector per token, and one vector for the whole sentence."""

    memory: Float[Tensor, "S L D"]
    keys: Float[Tensor, "S L P"]
    mask: Bool[Tensor, "S L"]
    summary: Float[Tensor, "S D"]

    def keep(self, sentences: Int[Tensor, "S2"]) -> "EncodedSource":
        return EncodedSource(
            self.memory[sentences], self.keys[sentences], self.mask[sentences], self.summary[sentences]
        )


@dataclass
class Seq2SeqState:
    """A decoding in progress: the sources, and the decoder state [parts, layers, S, W, D] of every hypothesis."""

    source: EncodedSource
    hidden: Float[Tensor, "N L S W D"]

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        sentences = torch.arange(len(origin), device=origin.device)[:, None]
        self.hidden = self.hidden[:, :, sentences, origin]

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        self.hidden = self.hidden[:, :, sentences]
        self.source = self.source.keep(sentences)

    def copy(self) -> "Seq2SeqState":
        """An independent state; the tensors are shared, because no method changes them in place."""
        return Seq2SeqState(self.source, self.hidden)


class Seq2Seq(nn.Module):
    """Encodes a source sequence, then for every target token: attend, update, predict."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__()
        _check(config)
        self.config = c = config
        self.source_embedding = nn.Embedding(c.source_vocab, c.embedding)
        self.target_embedding = self.source_embedding if c.tie == "all" else nn.Embedding(c.target_vocab, c.embedding)
        self.dropout = Dropout(c.dropout)
        self.encoder: Recurrent | ConvolutionEncoder
        if c.encoder == "recurrent":
            width = c.width // 2 if c.bidirectional else c.width
            self.encoder = Recurrent(c.cell, c.embedding, width, c.encoder_depth, c.bidirectional, c.dropout)
        else:
            self.widen = nn.Linear(c.embedding, c.width)
            self.encoder = ConvolutionEncoder(c.width, c.encoder_depth, c.kernel, c.dropout)
        self.cross = (
            None if c.attention == "none" else ScoredAttention(c.width, c.width, score=c.attention, reading=c.reading)
        )
        self.bridge = nn.Linear(c.width, CELLS[c.cell].parts * c.decoder_depth * c.width)
        self.decoder = Recurrent(c.cell, c.embedding + c.width, c.width, c.decoder_depth, dropout=c.dropout)
        self.deep_output = nn.Linear(c.width + c.width + c.embedding, c.embedding)
        self.output_weight = (
            nn.Parameter(torch.empty(c.target_vocab, c.embedding)) if c.tie == "none" else self.target_embedding.weight
        )
        self.output_bias = nn.Parameter(torch.zeros(c.target_vocab))
        self._initialise()

    def forward(
        self,
        source: Int[Tensor, "B S"],
        source_mask: Bool[Tensor, "B S"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next target token, each step given the true previous token (teacher forcing); with
        `factored`, unmultiplied. `inputs_mask` is False at padding, where the result has no meaning."""
        encoded = self.encode(source, source_mask)
        previous = self.dropout(self.target_embedding(inputs))
        hidden = self.first_hidden(encoded)
        if self.cross is None:
            contexts = encoded.summary[:, None].expand(-1, inputs.shape[1], -1)
            outputs, _ = self.decoder(torch.cat([previous, contexts], dim=-1), hidden)
        else:
            outputs, contexts = self._decode_attending(previous, hidden, encoded)
        packing = packing_for(outputs, inputs_mask)
        factors = self.factors(*(packed(each, packing) for each in (outputs, contexts, previous)))
        factors = factors._replace(hidden=unpacked(factors.hidden, packing))
        return factors if factored else functional.linear(*factors)

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> Seq2SeqState:
        """Encode S sentences, with one hypothesis each."""
        encoded = self.encode(source, source_mask)
        return Seq2SeqState(encoded, self.first_hidden(encoded)[:, :, :, None])

    def step(self, tokens: Int[Tensor, "S W"], state: Seq2SeqState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S sentences; returns the logits of the next."""
        previous = self.dropout(self.target_embedding(tokens))
        context = self.attend(state.hidden[0, -1], state.source)
        output, state.hidden = self.update(previous, state.hidden, context)
        return self.predict(output, context, previous)

    def encode(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> EncodedSource:
        """h_i for every source token, and the last state as the summary of the sentence."""
        x = self.dropout(self.source_embedding(source))
        if self.config.reverse_source:
            x = reverse(x, source_mask)
        if isinstance(self.encoder, Recurrent):
            memory, final = self.encoder(x, mask=source_mask)
            summary = final[0, -self.encoder.directions :].transpose(0, 1).flatten(1)
        else:
            memory = self.encoder(self.widen(x), source_mask)
            summary = memory.sum(dim=1) / source_mask.sum(dim=1, keepdim=True).clamp(min=1)
        if self.config.reverse_source:
            memory = reverse(memory, source_mask)
        memory, summary = self.dropout(memory), self.dropout(summary)
        return EncodedSource(memory, memory if self.cross is None else self.cross.project(memory), source_mask, summary)

    def first_hidden(self, encoded: EncodedSource) -> Float[Tensor, "N L S D"]:
        """s_0 = tanh(W h_last), for every part and layer of the decoder."""
        flat = torch.tanh(self.bridge(encoded.summary))
        return flat.view(len(flat), -1, self.config.decoder_depth, self.config.width).permute(1, 2, 0, 3)

    def attend(self, hidden: Float[Tensor, "S W D"], encoded: EncodedSource) -> Float[Tensor, "S W D"]:
        """e_{t,i} = f_att(s_{t-1}, h_i), a_t = softmax(e_t), c_t = Σ_i a_{t,i} h_i; without attention c_t = c."""
        if self.cross is None:
            return encoded.summary[:, None].expand_as(hidden)
        context, _ = self.cross(hidden, encoded.memory, encoded.keys, encoded.mask)
        return context

    def update(
        self, previous: Float[Tensor, "S W E"], hidden: Float[Tensor, "N L S W D"], context: Float[Tensor, "S W D"]
    ) -> tuple[Float[Tensor, "S W D"], Float[Tensor, "N L S W D"]]:
        """s_t = g(y_{t-1}, s_{t-1}, c_t)."""
        x = torch.cat([previous, context], dim=-1).flatten(0, 1)
        output, after = self.decoder.step(x, hidden.flatten(2, 3))
        return output.view_as(context), after.view_as(hidden)

    def predict(
        self,
        output: Float[Tensor, "B T D"],
        context: Float[Tensor, "B T D"],
        previous: Float[Tensor, "B T E"],
    ) -> Float[Tensor, "B T V"]:
        """Logits of y_t from s_t, c_t and y_{t-1} (Bahdanau's deep output)."""
        return functional.linear(*self.factors(output, context, previous))

    def factors(
        self,
        output: Float[Tensor, "B T D"],
        context: Float[Tensor, "B T D"],
        previous: Float[Tensor, "B T E"],
    ) -> Factors:
        """The unmultiplied logits: hidden states, output matrix, bias."""
        deep = torch.tanh(self.deep_output(torch.cat([self.dropout(output), context, previous], dim=-1)))
        return Factors(self.dropout(deep), self.output_weight, self.output_bias)

    def _decode_attending(
        self, previous: Float[Tensor, "B T E"], hidden: Float[Tensor, "N L B D"], encoded: EncodedSource
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
        """Attend and update for all steps; parts that do not depend on the state are computed once, before the loop."""
        bottom, *upper = (self.decoder.cell(layer) for layer in range(self.config.decoder_depth))
        of_token, of_context = bottom.of_input.split([self.config.embedding, self.config.width], dim=1)
        states = [layer.unbind() for layer in hidden.unbind(1)]
        outputs, contexts = [], []
        for token in functional.linear(previous, of_token, bottom.input_bias).unbind(1):
            context = self.attend(states[-1][0][:, None], encoded)[:, 0]
            states[0] = bottom.update(token + functional.linear(context, of_context), states[0])
            for layer, cell in enumerate(upper, start=1):
                states[layer] = cell(self.dropout(states[layer - 1][0]), states[layer])
            outputs.append(states[-1][0])
            contexts.append(context)
        return torch.stack(outputs, dim=1), torch.stack(contexts, dim=1)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=0.1)
        if self.config.tie == "none":
            nn.init.xavier_uniform_(self.output_weight)


def _check(config: Seq2SeqConfig) -> None:
    if config.tie == "all" and config.source_vocab != config.target_vocab:
        raise ConfigError(
            f"tie = 'all' shares one embedding, but the vocabularies have {config.source_vocab} and "
            f"{config.target_vocab} entries; use a joint tokenizer or tie = 'target'"
        )
