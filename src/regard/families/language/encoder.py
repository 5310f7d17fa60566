"""Text in; sentence vectors, predictions of masked words, labels and attention out: encoders such as BERT and ELMo."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from tokenizers.normalizers import Lowercase
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import record
from regard.data.arguments import all_texts
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError, UsageError
from regard.families.language.bert import Bert, BertConfig, BertOutput
from regard.families.language.elmo import Elmo, ElmoConfig
from regard.families.language.sentence_embedding import MODES, SentenceModules, pool, read_sentence_modules
from regard.families.language.text_reader import ANY_MASK, FoundAnswer, TaggedWord, TextReader, best_spans, tagged_words
from regard.look.forced_pass import require_attention
from regard.look.predictions import TOP, TokenPrediction, TokenProbability, check_top
from regard.search.pipeline import Labelled, batches_by_length, load_for_pipeline


def contact_probabilities(weights: Float[Tensor, "N L L"], layer: nn.Linear) -> Float[Tensor, "L L"]:
    """A logistic regression on the attention between residues in all N heads, each made symmetrical and corrected by
    the average product of its rows and columns."""
    both = weights + weights.transpose(1, 2)
    rows, columns = both.sum(dim=2, keepdim=True), both.sum(dim=1, keepdim=True)
    corrected = both - rows * columns / both.sum(dim=(1, 2), keepdim=True)
    return torch.sigmoid(layer(corrected.permute(1, 2, 0))[..., 0])


NEXT_SENTENCE = ("next", "other")  # whether the second of two texts follows the first; BERT's outputs in this order


class Guess(NamedTuple):
    """A token for a hidden word, its probability, and the text with it filled in."""

    token: str
    probability: float
    text: str


@dataclass(frozen=True)
class SelfAttention:
    """The attention between the tokens of a text, in every recorded layer and head."""

    pieces: list[str]
    words_of: list[int]  # the whitespace word each token is in; -1: special tokens
    weights: dict[str, Float[np.ndarray, "H T T"]]


class TextEncoder(TextReader):
    """A BERT-like model, or an ELMo, with its tokenizer."""

    pipeline: ClassVar[str] = "text_encoder"

    def __init__(
        self,
        model: Bert | Elmo,
        tokenizer: TextTokenizer,
        *,
        name: str = "",
        sentences: SentenceModules | None = None,
    ):
        super().__init__(model, tokenizer, name)
        self.sentences = sentences or SentenceModules()

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
        given, modes = all_texts(texts), (pooling,) if pooling else self.sentences.modes
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
        pairs = None if pairs is None else all_texts(pairs)
        rows = self._encode(all_texts(texts), pairs, truncate=truncate, longest=longest)
        unknown = [
            self.unknown_words(*both) if self._has_unknown(row) else []
            for row, *both in zip(rows, all_texts(texts), *([] if pairs is None else [pairs]), strict=True)
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
        given, names = all_texts(texts), self.label_names()
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
        names = self.label_names()
        return Labelled({names[i]: shares[i].item() for i in shares.argsort(descending=True, stable=True).tolist()})

    def label_names(self) -> Sequence[str]:
        if self.config.head == "pretraining":
            return NEXT_SENTENCE
        return self.config.label_names or [f"LABEL_{number}" for number in range(self.config.labels)]


def _width(config: BertConfig | ElmoConfig) -> int:
    """The size of a token's vector."""
    return config.width * (2 if isinstance(config, ElmoConfig) else 1)
