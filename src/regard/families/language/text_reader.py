"""What a model finds in a text: the tag of a word, and the part that answers a question."""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from jaxtyping import Float, Int
from torch import Tensor

from regard.data.batch import pad_rows
from regard.data.tokenizers.text import Encoded, TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words, warn_of_unknown
from regard.errors import CheckpointError, DataError
from regard.families.language.bert import Bert, BertConfig, BertOutput
from regard.families.language.elmo import Elmo, ElmoConfig, ElmoOutput
from regard.runtime.convert import fast_model, is_on_cpu

ANY_MASK = "[MASK]"
FEW = 64  # tokens; above this, the model itself is as fast as its fast version


class Readers:
    """A model and its fast version, which reads a short text on a CPU in less than half the time."""

    def __init__(self, model: Bert | Elmo):
        self.model, self.use_fast = model, is_on_cpu(model)

    @cached_property
    def fast(self) -> Bert | Elmo:
        """The fast version, made when it is first needed, because it takes memory."""
        return fast_model(self.model)

    def of(self, tokens: Int[Tensor, "B T"]) -> Bert | Elmo:
        """The faster one for these tokens."""
        return self.fast if self.use_fast and tokens.numel() <= FEW else self.model


class TextReader:
    """An encoder with its tokenizer: what comes before every answer of it."""

    def __init__(self, model: Bert | Elmo, tokenizer: TextTokenizer, name: str):
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.config: BertConfig | ElmoConfig = model.config
        self.device, self.readers = next(model.parameters()).device, Readers(self.model)
        self.warns = True  # warn about texts that are mostly unknown, if the result cannot say so
        if tokenizer.size > self.config.vocab:
            raise CheckpointError(
                f"the tokenizer of {name or 'this model'} has {tokenizer.size:,} tokens, but the model knows "
                f"{self.config.vocab:,}; they do not belong together"
            )

    def unknown_words(self, text: str, pair: str = "") -> list[UnknownWord]:
        """The words of a text and its partner that become unknown tokens, without hidden words."""
        for name in filter(None, (ANY_MASK, self.mask_name)):
            text = text.replace(name, " " * len(name))
        return unknown_words(f"{text}\t{pair}" if pair else text, self.tokenizer.reads)

    def _has_unknown(self, row: Encoded) -> bool:
        """A quick check whether a text may have unknown words; few texts have."""
        return self.tokenizer.unknown in row.ids

    def _warn_of_unknown(self, texts: Sequence[str]) -> None:
        if self.warns:
            warn_of_unknown(texts, self.unknown_words)

    def hides_words(self, *texts: str) -> bool:
        """Whether any of these texts has a hidden word."""
        return any(name in text for text in texts for name in (ANY_MASK, self.mask_name) if name)

    @property
    def mask_name(self) -> str:
        """The tokenizer's mask token; empty if it has none."""
        return "" if self.tokenizer.mask is None else self.tokenizer.pieces([self.tokenizer.mask])[0]

    def _encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncate: bool = False,
        longest: int | None = None,
        marked: bool = False,
    ) -> list[Encoded]:
        """Token ids for the model; a text that is too long is refused, unless it may be cut."""
        longest = min(longest or self.config.longest, self.config.longest)
        if marked and self.mask_name:
            texts = [text.replace(ANY_MASK, self.mask_name) for text in texts]
            pairs = None if pairs is None else [pair.replace(ANY_MASK, self.mask_name) for pair in pairs]
        rows = self.tokenizer.encode(texts, pairs, longest=longest if truncate else None, marked=marked)
        for text, row in zip(texts, rows, strict=True):
            if len(row.ids) > longest:
                raise DataError(
                    f"the text that begins with {text[:40]!r} has {len(row.ids):,} tokens; this model reads at most "
                    f"{longest:,}: break it into shorter texts, or let it be cut at the end (truncate)"
                )
        return rows

    def _padded(self, rows: Sequence[Encoded]) -> tuple[Tensor, Tensor, Tensor]:
        tokens, mask = pad_rows([row.ids for row in rows], self.tokenizer.pad)
        segments, _ = pad_rows([row.segments for row in rows], 0)
        segments = segments.clamp(max=max(0, self.config.segments - 1))  # some models read pairs with one segment
        return tokens.to(self.device), mask.to(self.device), segments.to(self.device)

    def _read(self, rows: Sequence[Encoded]) -> BertOutput | ElmoOutput:
        tokens, *others = self._padded(rows)
        return self.readers.of(tokens)(tokens, *others)

    def _who(self) -> str:
        return self.name or "this model"


LONGEST_ANSWER = 30  # tokens, as SQuAD's own systems have it


class TaggedWord(NamedTuple):
    """A word of a text, its most probable tag, and the probability."""

    word: str
    tag: str
    probability: float


class FoundAnswer(NamedTuple):
    """A part of a text: `text[begin:end]`; empty if the text does not have the answer."""

    text: str
    probability: float
    begin: int
    end: int


def tagged_words(
    words: Sequence[str], words_of: Sequence[int], scores: Float[Tensor, "T L"], names: Sequence[str]
) -> list[TaggedWord]:
    """Every word with the tag of its first token; `words_of` has the word of each token.

    A word without a token, such as one that was cut off, gets the first tag with probability 0.
    """
    firsts: dict[int, int] = {}
    for place, word in enumerate(words_of):
        firsts.setdefault(word, place)
    best = scores.softmax(dim=-1).max(dim=-1)
    return [
        TaggedWord(word, names[int(best.indices[firsts[n]])], float(best.values[firsts[n]]))
        if n in firsts
        else TaggedWord(word, names[0], 0.0)
        for n, word in enumerate(words)
    ]


def best_spans(
    logits: Float[Tensor, "T 2"], spans: Sequence[tuple[int, int, int]], text: str, top: int
) -> list[FoundAnswer]:
    """The most probable answers: P(begins at i) · P(ends at j), i ≤ j < i + 30, both in the second text.

    The first token stands for "not in this text".
    """
    chances = logits.softmax(dim=0)
    begins, ends = chances.unbind(-1)
    product = begins[:, None] * ends[None]  # [T T]
    allowed = logits.new_zeros(product.shape).bool()
    places = [place for place, (side, _, _) in enumerate(spans) if side == 1]
    if places:
        first, last = places[0], places[-1] + 1
        allowed[first:last, first:last] = True
    allowed = allowed.triu().tril(LONGEST_ANSWER - 1)
    allowed[0, 0] = True
    best = product.where(allowed, -1.0).flatten().topk(min(top, int(allowed.sum())))
    found = []
    for probability, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
        i, j = divmod(place, len(spans))
        begin, end = (spans[i][1], spans[j][2]) if place else (0, 0)
        found.append(FoundAnswer(text[begin:end], probability, begin, end))
    return found
