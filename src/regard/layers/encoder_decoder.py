"""The base of encoder-decoder Transformers: teacher forcing, decoding steps, and the decoding state.

`MemoryDecoder` is the decoder alone, over a memory of any origin, such as the grid of an image. A model of two texts
derives from `EncoderDecoder` and defines how it embeds tokens, which position biases it adds to attention scores, and
how it ends its encoder and decoder. It has an `encoder`, a `decoder` of `DecoderLayer`s and an `Output`.
"""

from abc import abstractmethod
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import core as masks
from regard.attention.cache import GrowingCache, LayerCache, Slots, growing, round_up
from regard.attention.multihead import Memory
from regard.attention.packing import Packing, packed, packing_for, unpacked
from regard.layers.blocks import DecoderLayer, Factors, Output

Position = int | Int[Tensor, ""]  # on the host, or on the device inside a captured step


class EncoderDecoderState:
    """A decoding in progress: for each layer the projected source, and the keys and values of the tokens so far.

    With `slots` it has a fixed shape: all caches are static, and the length is that of the slots.
    """

    def __init__(self, memories: list[Memory], caches: list[LayerCache], length: int = 0, slots: Slots | None = None):
        self.memories, self.caches, self.length, self.slots = memories, caches, length, slots

    def storage_size(self, width: int, steps: int) -> tuple[int, int]:
        """The source length and the number of slots that a state of fixed shape needs, rounded up so that few shapes
        occur."""
        return round_up(self.memories[0].k.shape[2]), round_up(width * steps)

    def reset_from(self, state: "EncoderDecoderState") -> None:
        """In a state of fixed shape: start over with the source that `state` has read."""
        assert self.slots is not None
        self.slots.reset(0)
        for mine, memory in zip(self.memories, state.memories, strict=True):
            length = memory.k.shape[2]
            mine.k[:, :, :length], mine.v[:, :, :length] = memory.k, memory.v
            assert mine.mask is not None
            mine.mask.zero_()
            mine.mask[..., :length] = True if memory.mask is None else memory.mask

    def open(self, tokens: int) -> Position:
        """Count the next tokens of every hypothesis (one token if there are slots); returns the first's position."""
        if self.slots is not None:
            self.slots.open()
            return self.slots.length
        self.length += tokens
        return self.length - tokens

    def reorder(self, origin: Int[Tensor, "S W2"]) -> None:
        for cache in self.caches if self.slots is None else [self.slots]:
            cache.reorder(origin)

    def copy(self) -> "EncoderDecoderState":
        """An independent state that has read the same; both use the same projected source."""
        return EncoderDecoderState(self.memories, [cache.copy() for cache in growing(self.caches)], self.length)

    def rollback(self, tokens: int) -> None:
        """Remove the last tokens."""
        self.length -= tokens
        for cache in growing(self.caches):
            cache.rollback(tokens)

    def keep(self, sentences: Int[Tensor, "S2"]) -> None:
        # A reader that follows the ancestry of the caches also follows the row numbers of the memories.
        in_place = all(isinstance(cache, GrowingCache) and cache.in_place for cache in self.caches)
        self.memories = [memory.keep(sentences, in_place=in_place) for memory in self.memories]
        for cache in self.caches:
            cache.keep(sentences)


class MemoryDecoder(nn.Module):
    """A Transformer decoder: predicts tokens one by one while its layers attend to a memory, whatever made that."""

    decoder: nn.ModuleList
    output: Output

    @abstractmethod
    def embed_target(self, tokens: Int[Tensor, "R T"], first: Position) -> Float[Tensor, "R T D"]:
        """The input of the first decoder layer; `first` is the position of the first of these tokens."""

    @abstractmethod
    def finish_decoder(self, x: Float[Tensor, "R T D"]) -> Float[Tensor, "R T D"]:
        """The computation after the last decoder layer, before the output matrix."""

    @abstractmethod
    def factors(self, x: Float[Tensor, "B T D"]) -> Factors:
        """The unmultiplied logits: hidden states, output matrix, bias."""

    def target_bias(
        self, tokens: int, first: Position, state: EncoderDecoderState | None
    ) -> Float[Tensor, "1 H T Tk"] | None:
        """A bias of the decoder's self-attention scores, the same for all layers."""
        return None

    def first_state(
        self, memory: Float[Tensor, "S L D"], mask: Bool[Tensor, "S 1 1 L"] | None = None
    ) -> EncoderDecoderState:
        """The state before the first token: the memory, projected once for every layer."""
        memories = [layer.cross.remember(memory, mask) for layer in self._decoder_layers()]
        return EncoderDecoderState(memories, [GrowingCache(len(memory)) for _ in memories])

    def step(self, tokens: Int[Tensor, "S W"], state: EncoderDecoderState) -> Float[Tensor, "S W V"]:
        """Feed one token to W hypotheses of each of S sources; returns the logits of the next."""
        return self.extend(tokens.reshape(-1, 1), state).view(*tokens.shape, -1)

    def extend(self, tokens: Int[Tensor, "R T"], state: EncoderDecoderState) -> Float[Tensor, "R T V"]:
        """Feed T tokens at once to each of R hypotheses; returns the logits after every one of them."""
        return self.predict(self._decode(tokens, state.memories, state))

    def static_state(self, state: EncoderDecoderState, width: int, size: tuple[int, int]) -> EncoderDecoderState:
        """An empty state of fixed shape for the source that `state` has read; `size` is its `storage_size`."""
        memory, (longest, capacity) = state.memories[0].k, size
        sentences, device = len(memory), memory.device
        slots = Slots(sentences, width, capacity, device)
        memories = [
            Memory(
                each.k.new_zeros(*each.k.shape[:2], longest, each.k.shape[3]),
                each.v.new_zeros(*each.v.shape[:2], longest, each.v.shape[3]),
                torch.zeros(sentences, 1, 1, longest, dtype=torch.bool, device=device),
            )
            for each in state.memories
        ]
        caches: list[LayerCache] = [
            layer.attention.static_cache(slots, memory.dtype) for layer in self._decoder_layers()
        ]
        return EncoderDecoderState(memories, caches, slots=slots)

    def predict(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The output layer: one linear layer, whose softmax is the distribution over the vocabulary."""
        return self.output(*self.factors(x))

    def unembed(self, stream: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        """The logits that the stream after any decoder layer would give."""
        return self.predict(self.finish_decoder(stream))

    def _decode(
        self,
        tokens: Int[Tensor, "R T"],
        memories: Iterable[Memory],
        state: EncoderDecoderState | None = None,
        mask: Bool[Tensor, "R T"] | None = None,
    ) -> Float[Tensor, "R T D"]:
        first = 0 if state is None else state.open(tokens.shape[1])
        x, bias = self.embed_target(tokens, first), self.target_bias(tokens.shape[1], first, state)
        packing = packing_for(x, mask)
        x = packed(x, packing)
        for number, (layer, memory) in enumerate(zip(self.decoder, memories, strict=True)):
            x = layer(x, memory, None if state is None else state.caches[number], bias, packing)
        return unpacked(self.finish_decoder(x), packing)

    def _decoder_layers(self) -> Iterable[DecoderLayer]:
        return (layer for layer in self.decoder if isinstance(layer, DecoderLayer))


class EncoderDecoder(MemoryDecoder):
    """Reads a source sequence and predicts a target sequence token by token."""

    encoder: nn.Module

    @abstractmethod
    def embed_source(self, tokens: Int[Tensor, "B S"]) -> Float[Tensor, "B S D"]:
        """The input of the first encoder layer."""

    @abstractmethod
    def finish_encoder(self, x: Float[Tensor, "R S D"]) -> Float[Tensor, "R S D"]:
        """The computation after the last encoder layer, such as a final norm."""

    def source_bias(self, length: int) -> Float[Tensor, "1 H S S"] | None:
        """A bias of the encoder's attention scores, the same for all layers."""
        return None

    def forward(
        self,
        source: Int[Tensor, "B S"],
        source_mask: Bool[Tensor, "B S"],
        inputs: Int[Tensor, "B T"],
        inputs_mask: Bool[Tensor, "B T"] | None = None,
        *,
        factored: bool = False,
    ) -> Float[Tensor, "B T V"] | Factors:
        """Logits of every next target token, all positions in parallel under the causal mask (teacher forcing); with
        `factored`, unmultiplied. `inputs_mask` is False at padding, where the result has no meaning."""
        memory, mask, packing = self._read(source, source_mask)
        memories = (layer.cross.remember(memory, mask).laid_out(packing) for layer in self._decoder_layers())
        x = self._decode(inputs, memories, mask=inputs_mask)
        return self.factors(x) if factored else self.predict(x)

    def encode(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "B S D"], Bool[Tensor, "B 1 1 S"]]:
        """The memory that every decoder layer attends to (the encoder's output), and its padding mask."""
        memory, mask, packing = self._read(source, source_mask)
        return unpacked(memory, packing), mask

    def start(self, source: Int[Tensor, "S L"], source_mask: Bool[Tensor, "S L"]) -> EncoderDecoderState:
        """Encode S sources and project their memory once for every decoder layer."""
        memory, mask = self.encode(source, source_mask)
        needed = None if bool(source_mask.all()) else mask  # attention without a mask uses a faster kernel
        return self.first_state(memory, needed)

    def _read(
        self, source: Int[Tensor, "B S"], source_mask: Bool[Tensor, "B S"]
    ) -> tuple[Float[Tensor, "_ _ D"], Bool[Tensor, "B 1 1 S"], Packing | None]:
        """What `encode` returns, possibly packed: then it holds the real tokens only."""
        assert isinstance(self.encoder, nn.ModuleList)
        x, mask = self.embed_source(source), masks.padding(source_mask)
        bias, packing = self.source_bias(source.shape[1]), packing_for(x, source_mask)
        x = packed(x, packing)
        for layer in self.encoder:
            x = layer(x, mask, bias=bias, packing=packing)
        return self.finish_encoder(x), mask, packing
