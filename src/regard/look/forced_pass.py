"""Forced passes: record the attention of a translation model while it is fed a given translation.

Teacher forcing an answer gives the same attention weights as the search that found it. So nothing is recorded during a
search: one extra pass over the finished pair gives every layer and head exactly.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from regard.attention import record
from regard.attention.record import attention_names
from regard.config import Config
from regard.data.batch import collate
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import UsageError
from regard.look.word_alignment import (
    Link,
    choose_layer,
    choose_layer_by_words,
    links,
    share_columns,
    token_alignment,
    token_links,
    word_weights,
)

CROSS = "*cross"
GUIDED_THRESHOLD = 0.4  # a target word may link to two source words, each with about half of its weight
ALIGNMENT = "alignment.json"  # the file of a model folder that holds AlignmentSettings
Kind = Literal["self", "cross", "causal"]
SIDES: dict[Kind, tuple[str, str]] = {  # whose tokens are the queries, whose are the keys
    "self": ("source", "source"),
    "cross": ("target", "source"),
    "causal": ("target", "target"),
}


class AlignmentSettings(Config):
    """The attention that aligns words in a model, and how it is read.

    `shift` reads a target word where it is the decoder's input instead of where it is predicted (see
    `token_alignment`). Without `head` the heads of the layer are averaged. A guided head was trained to attend to the
    end token if a target word has no source word. With `threshold`, a target word links to every source word that has
    at least that share of its weight, and to none if the end token has it; see `share_columns` for source words claimed
    by several target words.
    """

    layer: str
    shift: bool
    head: int | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class Pass:
    """One forced pass: the weights of the recorded layers for one sentence pair, and which word each token is in."""

    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]
    source_words_of: list[int]  # -1: language tag and end token
    target_words_of: list[int]  # for the target tokens, without the end token
    source_words: int  # the number of words; a tokenizer may have dropped all characters of one
    target_words: int

    def rows(self, settings: AlignmentSettings) -> Float[np.ndarray, "T S"]:
        """One row of weights for each target token, read by these settings."""
        heads = self.weights[settings.layer]
        chosen = heads if settings.head is None else heads[settings.head : settings.head + 1]
        return token_alignment(chosen, shift=settings.shift)

    def words(self, settings: AlignmentSettings) -> Float[np.ndarray, "targets sources"]:
        """Word-level weights of the aligning layer: rows are target words and sum to 1, less the weight that a guided
        head gives the end token."""
        weights = word_weights(
            self.rows(settings), self.target_words_of, self.source_words_of, renormalise=settings.threshold is None
        )
        rows, columns = weights.shape
        return np.pad(weights, ((0, self.target_words - rows), (0, self.source_words - columns)))

    def links(self, settings: AlignmentSettings) -> list[Link]:
        """Word links: by the threshold of a guided head, else from every token to its heaviest source word."""
        if settings.threshold is not None:
            return links(share_columns(self.words(settings)), "threshold", threshold=settings.threshold)
        return token_links(self.rows(settings), self.target_words_of, self.source_words_of)

    def heaviest_words(self, settings: AlignmentSettings, among: Collection[int] = ()) -> list[int]:
        """For every target token the source word with the most weight, chosen from `among` if given."""
        words_of = np.asarray(self.source_words_of)
        real = np.isin(words_of, list(among)) if among else words_of >= 0
        if not real.any():
            return [0] * len(self.target_words_of)
        return words_of[real][self.rows(settings)[:, real].argmax(axis=1)].tolist()


@torch.inference_mode()
def forced_passes(
    model: nn.Module,
    tokenizer: PairTokenizer,
    sources: Sequence[str],
    target_ids: Sequence[Sequence[int]],
    target_words_of: Sequence[list[int]],
    *,
    to: str = "",
    layers: str | Sequence[str] = CROSS,
    scores: bool = False,
) -> list[Pass]:
    """Record the layers that match `layers` while the model is fed `target_ids` (without end token) for `sources`.

    `target_words_of` has the target word of each of these ids. With `scores`, the values before the softmax are
    recorded instead.
    """
    end, device = tokenizer.target.end, next(model.parameters()).device
    source_ids = tokenizer.source_ids(sources, to)
    told = [[*ids, end] for ids in target_ids]
    batch = collate(source_ids, told, pad=tokenizer.target.pad, start=tokenizer.target.start).to(device)
    with record(model, layers, scores=scores, stop=True) as looks:
        model(batch.source, batch.source_mask, batch.inputs)
    recorded = {name: weights.float().cpu().numpy() for name, weights in looks.items()}
    tag = [-1] * len(tokenizer.tag(to))
    passes = []
    for row, (source, ids, answer, words_of) in enumerate(zip(sources, source_ids, told, target_words_of, strict=True)):
        length = {"source": len(ids), "target": len(answer)}
        weights = {}
        for name, each in recorded.items():
            queries, keys = SIDES[kind_of(name)]
            weights[name] = each[row, :, : length[queries], : length[keys]]
        words = len(source.split())
        source_words_of = [*tag, *within(tokenizer.source.words_in(source), words), -1]
        passes.append(Pass(weights, source_words_of, words_of, words, max(words_of, default=-1) + 1))
    return passes


def within(words_of: Sequence[int], words: int) -> list[int]:
    """Word numbers limited to the last word: a tokenizer that rewrites characters may see more spaces than the text
    has."""
    return [min(word, words - 1) for word in words_of]


def kind_of(layer: str) -> Kind:
    """The kind of attention of an encoder-decoder's layer, by its name."""
    if layer.endswith("cross"):
        return "cross"
    return "self" if layer.startswith("encoder") else "causal"


def require_attention(model: nn.Module, name: str) -> None:
    """Refuse a model without attention, such as recurrent language models and word vectors."""
    if not attention_names(model):
        raise UsageError(f"{name or 'this model'} has no attention to look at")


def aligning_layers(model: nn.Module) -> list[str]:
    """The cross-attention layers; none in a model with a fixed context."""
    return [name for name in attention_names(model) if kind_of(name) == "cross"]


def default_alignment(model: nn.Module) -> AlignmentSettings | None:
    """The default if none was measured: the middle decoder layer, shifted (Chen 2020), or an RNN's only attention."""
    layers = aligning_layers(model)
    if not layers:
        return None
    return AlignmentSettings(layer=layers[(len(layers) - 1) // 2], shift=len(layers) > 1 or "." in layers[0])


def guided_alignment(model: nn.Module) -> AlignmentSettings | None:
    """The attention that guided training teaches to align: the first head of the last decoder layer but one (Garg et
    al. 2019), read where the target word is known (Chen et al. 2020), or an RNN's only attention. None for a fixed
    context."""
    layers = aligning_layers(model)
    if not layers:
        return None
    layer = layers[max(0, len(layers) - 2)]
    return AlignmentSettings(layer=layer, shift="." in layer, head=0, threshold=GUIDED_THRESHOLD)


def readings(passes: Sequence[Pass]) -> list[AlignmentSettings]:
    """Every reading of recorded cross-attention: the mean of a layer or one head, shifted or not."""
    return [
        AlignmentSettings(layer=layer, shift=shift, head=head)
        for layer, weights in passes[0].weights.items()
        for head in (None, *(range(len(weights)) if len(weights) > 1 else ()))
        for shift in ((True, False) if "." in layer else (False,))  # an RNN attends before it knows the word
    ]


def choose_alignment(passes: Sequence[Pass], pairs: Sequence[Pair]) -> AlignmentSettings | None:
    """The reading that aligns these pairs best: by gold links if all have them, else by `choose_layer_by_words`."""
    if not passes or not passes[0].weights:
        return None
    candidates = {reading: [each.links(reading) for each in passes] for reading in readings(passes)}
    if all(pair.links is not None for pair in pairs):
        return choose_layer(candidates, [p.links or () for p in pairs], [p.possible or p.links or () for p in pairs])
    return choose_layer_by_words(
        candidates, [pair.source.split() for pair in pairs], [pair.target.split() for pair in pairs]
    )
