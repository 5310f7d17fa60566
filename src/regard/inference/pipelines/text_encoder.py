"""Text in; sentence vectors, predictions of masked words, labels and attention out: encoders such as BERT and ELMo."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from tokenizers.normalizers import Lowercase
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import record
from regard.data.arguments import all_texts
from regard.data.batch import pad_rows
from regard.data.tokenizers.text import Encoded, TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words, warn_of_unknown
from regard.errors import CheckpointError, DataError, UsageError
from regard.inference.fast.convert import fast_model, is_on_cpu
from regard.inference.insight.contacts import contact_probabilities
from regard.inference.insight.forced_pass import require_attention
from regard.inference.insight.predictions import TOP, TokenPrediction, TokenProbability, check_top
from regard.inference.pipelines.batching import batches_by_length
from regard.inference.pipelines.found_spans import FoundAnswer, TaggedWord, best_spans, tagged_words
from regard.inference.pipelines.loading import load_for_pipeline
from regard.inference.pipelines.sentence_embedding import MODES, SentenceModules, pool, read_sentence_modules
from regard.models.bert import Bert, BertConfig, BertOutput
from regard.models.elmo import Elmo, ElmoConfig, ElmoOutput

ANY_MASK = "[MASK]"
NEXT_SENTENCE = ("next", "other")  # whether the second of two texts follows the first; BERT's outputs in this order
FEW = 64  # tokens; above this, the model itself is as fast as its fast version


class Guess(NamedTuple):
    """A token for a hidden word, its probability, and the text with it filled in."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class Labelled:
    """The labels of a text with their probabilities, best first; for a model that rates texts, the value instead."""

    labels: dict[str, float]
    value: float | None = None
    unknown: list[UnknownWord] = field(default_factory=list)  # words of the text that the model does not know

    @property
    def label(self) -> str:
        return next(iter(self.labels), "")

    @property
    def probability(self) -> float | None:
        return next(iter(self.labels.values()), None)


@dataclass(frozen=True)
class SelfAttention:
    """The attention between the tokens of a text, in every recorded layer and head."""

    pieces: list[str]
    words_of: list[int]  # the whitespace word each token is in; -1: special tokens
    weights: dict[str, Float[np.ndarray, "H T T"]]


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


class TextEncoder:
    """A BERT-like model, or an ELMo, with its tokenizer."""

    def __init__(
        self,
        model: Bert | Elmo,
        tokenizer: TextTokenizer,
        *,
        name: str = "",
        sentences: SentenceModules | None = None,
    ):
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.sentences = sentences or SentenceModules()
        self.config: BertConfig | ElmoConfig = model.config
        self.device, self.readers = next(model.parameters()).device, Readers(self.model)
        self.warns = True  # warn about texts that are mostly unknown, if the result cannot say so
        if tokenizer.size > self.config.vocab:
            raise CheckpointError(
                f"the tokenizer of {name or 'this model'} has {tokenizer.size:,} tokens, but the model knows "
                f"{self.config.vocab:,}; they do not belong together"
            )

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> "TextEncoder":
        """Read a model folder, ours or Hugging Face's."""
        loaded = load_for_pipeline("text_encoder", folder, device, allow_pickle, cannot="reads no single texts")
        assert isinstance(loaded.model, Bert | Elmo)
        tokenizer = TextTokenizer.load(loaded.folder)
        sentences = read_sentence_modules(loaded.folder, _width(loaded.model.config), allow_pickle)
        return cls(loaded.model, tokenizer, name=Path(folder).name, sentences=sentences)

    @torch.inference_mode()
    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pooling: str = "",
        prompt: str = "",
        normalise: bool = True,
        truncate: bool = False,
    ) -> Float[Tensor, "N D"]:
        """One vector for each text: the mean of its tokens, or the result of the folder's sentence-transformers
        modules.

        `pooling` (mean, cls, max, …) replaces these modules. `prompt` names one of the folder's prompts, which is put
        before each text instead of the default. Normalised vectors have length 1, so that their products are cosines.
        """
        if pooling not in ("", *MODES.values()):
            raise UsageError(f"pooling is {pooling!r}; known are {', '.join(MODES.values())}")
        given, modes = _several(texts), (pooling,) if pooling else self.sentences.modes
        rows = self._encode(self._prompted(given, prompt), truncate=truncate, longest=self.sentences.longest)
        self._warn_of_unknown([text for text, row in zip(given, rows, strict=True) if self._has_unknown(row)])
        skipped, layers = self._skipped(prompt), nn.Identity() if pooling else self.sentences.layers.to(self.device)
        vectors = torch.empty(len(rows), _width(self.config) if pooling else self.width)
        for chosen in batches_by_length([len(row.ids) for row in rows]):
            tokens, mask, segments = self._padded([rows[i] for i in chosen])
            hidden = self.readers.of(tokens).encode(tokens, mask, segments)
            vectors[chosen] = layers(pool(hidden, mask, modes, skipped)).cpu()
        return functional.normalize(vectors, dim=-1) if normalise else vectors

    @property
    def width(self) -> int:
        """The size of a vector."""
        return self.sentences.width or _width(self.config)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, with the default prompt."""
        return [len(row.ids) for row in self.tokenizer.encode(self._prompted(texts))]

    def _prompted(self, texts: Sequence[str], prompt: str = "") -> Sequence[str]:
        """The texts with their prompt, as they are read for sentence vectors."""
        before = self.sentences.prompt(prompt)
        texts = [before + text for text in texts] if before else texts
        return [Lowercase().normalize_str(text) for text in texts] if self.sentences.lowercase else texts

    def _skipped(self, prompt: str) -> int:
        """The number of prompt tokens at the beginning of each text that are not pooled."""
        if self.sentences.pools_prompt or not self.sentences.prompt(prompt):
            return 0
        ids = self.tokenizer.encode(self._prompted([""], prompt))[0].ids
        return len(ids) - (ids[-1] in self.tokenizer.specials.values())

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

    def fill(self, text: str, top: int = 5) -> list[Guess]:
        """The most probable tokens for the one hidden word of a text, written [MASK]."""
        guesses = self.fill_each(text, top)
        if len(guesses) != 1:
            raise DataError(f"{text[:60]!r} hides {len(guesses)} words; expected one {ANY_MASK} (or use fill_each)")
        return guesses[0]

    def fill_each(self, text: str, top: int = 5) -> list[list[Guess]]:
        """The most probable tokens for every hidden word; each is predicted while the others stay hidden."""
        text, name = self._hidden(text)
        self._warn_of_unknown([text])
        return [
            [
                Guess(self.tokenizer.spelled(token)[0], probability, self._put(token, text, name, number))
                for token, probability in guesses
            ]
            for number, guesses in enumerate(self._guesses(text, top=top).values())
        ]

    def predict_tokens(self, text: str, pair: str | None = None, *, top: int = TOP) -> list[TokenPrediction]:
        """The most probable tokens for every hidden word of a text or a pair, by the place of the word among their
        tokens."""
        self._hidden(text)
        found, pieces = self._guesses(text, pair, top=top), self.tokenizer.pieces
        return [
            TokenPrediction(
                place, [TokenProbability(pieces([token])[0], probability) for token, probability in guesses]
            )
            for place, guesses in found.items()
        ]

    def fill_all(self, text: str) -> str:
        """The text with every hidden word replaced by its most probable token."""
        text, name = self._hidden(text)
        self._warn_of_unknown([text])
        for (token, _), *_ in self._guesses(text, top=1).values():
            text = self._put(token, text, name, 0)
        return text

    @torch.inference_mode()
    def classify(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncate: bool = False,
        longest: int | None = None,
    ) -> list[Labelled]:
        """The labels of each text, or of each text with its partner in `pairs`. With `truncate`, long texts are cut to
        `longest` tokens, or to the model's limit if that is smaller.

        A model that was pre-trained with next sentences says whether the partner follows the text: `next` or `other`.
        """
        if self.config.head == "pretraining" and pairs is None:
            raise UsageError(f"{self._who()} only says whether one text follows another; give pairs, or fine-tune it")
        if self.config.head not in ("classify", "pretraining"):
            raise UsageError(f"{self._who()} has the head {self.config.head!r}, not 'classify'; fine-tune it first")
        pairs = None if pairs is None else _several(pairs)
        rows = self._encode(_several(texts), pairs, truncate=truncate, longest=longest)
        unknown = [
            self.unknown_words(*both) if self._has_unknown(row) else []
            for row, *both in zip(rows, _several(texts), *([] if pairs is None else [pairs]), strict=True)
        ]
        answers: list[Labelled | None] = [None] * len(rows)
        for chosen in batches_by_length([len(row.ids) for row in rows]):
            output = self._read([rows[i] for i in chosen])
            logits = output.logits
            if isinstance(output, BertOutput) and output.next_sentence is not None:
                logits = output.next_sentence
            assert isinstance(logits, Tensor)
            for i, scores in zip(chosen, logits.float().cpu(), strict=True):
                answers[i] = replace(self._labelled(scores), unknown=unknown[i])
        return cast(list[Labelled], answers)

    @torch.inference_mode()
    def tag(self, texts: str | Sequence[str], *, truncate: bool = False) -> list[list[TaggedWord]]:
        """The tag of every word of each text; words are what spaces separate. With `truncate`, words beyond the model's
        limit get its first tag."""
        self._require("tags")
        given, names = _several(texts), self._label_names()
        rows = self._encode(given, truncate=truncate)
        found: list[list[TaggedWord]] = [[] for _ in rows]
        for chosen in batches_by_length([len(row.ids) for row in rows]):
            logits = self._read([rows[i] for i in chosen]).logits
            assert isinstance(logits, Tensor)
            for i, scores in zip(chosen, logits.float().cpu(), strict=True):
                words_of = self.tokenizer.words_of(given[i])[: len(rows[i].ids)]
                found[i] = tagged_words(given[i].split(), words_of, scores, names)
        return found

    @torch.inference_mode()
    def answer(self, question: str, text: str, *, top: int = 1, truncate: bool = False) -> list[FoundAnswer]:
        """The most probable answers to a question that stand in a text, best first; one without text says that the
        text does not have it. With `truncate`, a text beyond the model's limit is cut."""
        self._require("answer")
        check_top(top)
        rows = self._encode([question], [text], truncate=truncate)
        logits = self._read(rows).logits
        assert isinstance(logits, Tensor)
        spans = self.tokenizer.spans(question, text)[: len(rows[0].ids)]
        return best_spans(logits[0].float().cpu(), spans, text, top)

    def _require(self, head: str) -> None:
        if self.config.head != head:
            raise UsageError(f"{self._who()} has the head {self.config.head!r}, not {head!r}; fine-tune it first")

    @torch.inference_mode()
    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        layers: str | Sequence[str] = "*",
        marked: bool = False,
        scores: bool = False,
    ) -> SelfAttention:
        """The recorded attention of reading a text, or a pair, in the layers whose names match.

        With `marked`, special tokens are shown by their names, such as [MASK]; with `scores`, the values before the
        softmax are recorded instead.
        """
        require_attention(self.model, self.name)
        rows = self._encode([text], None if pair is None else [pair], marked=marked)
        with record(self.model, layers, scores=scores, stop=True) as looks:
            self.model.encode(*self._padded(rows))
        weights = {name: each[0].float().cpu().numpy() for name, each in looks.items()}
        words = self.tokenizer.words_of(text, pair, marked=marked)
        return SelfAttention(self.tokenizer.pieces(rows[0].ids), words, weights)

    @torch.inference_mode()
    def read_once(self, text: str, pair: str | None = None, *, marked: bool = False) -> None:
        """Read a text, or a pair, in one pass of the model itself, for those who record or change it."""
        self.model.encode(*self._padded(self._encode([text], None if pair is None else [pair], marked=marked)))

    @torch.inference_mode()
    def contacts(self, text: str) -> Float[Tensor, "L L"]:
        """The probability that each two residues of a protein touch, by a model that has a layer for it (ESM-2)."""
        layer = self.model.contacts if isinstance(self.model, Bert) else None
        if layer is None:
            raise UsageError(f"{self._who()} predicts no contacts; use a language model of proteins such as ESM-2")
        rows = self._encode([text])
        with record(self.model) as looks:
            self.model.encode(*self._padded(rows))
        heads = torch.cat([each[0] for each in looks.values()])
        return contact_probabilities(heads[:, 1:-1, 1:-1], layer).cpu()  # without the first and the last token

    def pieces(self, text: str, pair: str | None = None, *, marked: bool = False) -> list[str]:
        """The tokens of a text, or of a pair, as they are displayed."""
        return self.tokenizer.pieces(self._encode([text], None if pair is None else [pair], marked=marked)[0].ids)

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

    def _hidden(self, text: str) -> tuple[str, str]:
        """The text with hidden words replaced by the tokenizer's mask token, and that token."""
        if isinstance(self.model, Elmo) or self.model.masked is None:
            raise UsageError(f"{self._who()} guesses no words: it has the head {self.config.head!r}, not 'masked'")
        if not self.mask_name:
            raise UsageError(f"the tokenizer of {self._who()} has no token for hidden words")
        return text.replace(ANY_MASK, self.mask_name), self.mask_name

    @torch.inference_mode()
    def _guesses(self, text: str, pair: str | None = None, *, top: int) -> dict[int, list[tuple[int, float]]]:
        """The most probable tokens and their probabilities, for every hidden word."""
        check_top(top)
        rows = self._encode([text], None if pair is None else [pair], marked=True)
        places = [place for place, token in enumerate(rows[0].ids) if token == self.tokenizer.mask]
        if not places:
            raise DataError(f"{text[:60]!r} hides no word; write {ANY_MASK} where one is to be guessed")
        tokens, *others = self._padded(rows)
        states = self.readers.of(tokens).encode(tokens, *others)[0, places]
        assert isinstance(self.model, Bert)
        best = self.model.predict(states)[:, : self.tokenizer.size].softmax(dim=-1)
        values, chosen = (each.tolist() for each in best.topk(min(top, self.tokenizer.size)))
        return {place: list(zip(*each, strict=True)) for place, *each in zip(places, chosen, values, strict=True)}

    def _put(self, token: int, text: str, name: str, number: int) -> str:
        """The text with a token in place of the hidden word of this number, from 0."""
        parts = text.split(name)
        before, after = name.join(parts[: number + 1]), name.join(parts[number + 1 :])
        word, continues = self.tokenizer.spelled(token)
        return f"{before.rstrip() if continues else before}{word}{after}"

    def _labelled(self, scores: Float[Tensor, "L"]) -> Labelled:
        if self.config.label_kind == "value" or self.config.labels == 1:
            return Labelled({}, value=scores[0].item())
        shares = scores.sigmoid() if self.config.label_kind == "several" else scores.softmax(dim=-1)
        names = self._label_names()
        return Labelled({names[i]: shares[i].item() for i in shares.argsort(descending=True, stable=True).tolist()})

    def _label_names(self) -> Sequence[str]:
        if self.config.head == "pretraining":
            return NEXT_SENTENCE
        return self.config.label_names or [f"LABEL_{number}" for number in range(self.config.labels)]

    def _who(self) -> str:
        return self.name or "this model"


def _several(texts: str | Sequence[str]) -> Sequence[str]:
    return all_texts(texts)


def _width(config: BertConfig | ElmoConfig) -> int:
    """The size of a token's vector."""
    return config.width * (2 if isinstance(config, ElmoConfig) else 1)
