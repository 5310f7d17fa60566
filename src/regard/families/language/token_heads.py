"""Training a BERT to say something about parts of a text (Devlin et al. 2019): a tag for every word, or where in a text
the answer to a question stands."""

from __future__ import annotations

import re
import string
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import SpanBatch, TextBatch, pad_rows
from regard.data.sources import Part
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import ConfigError, DataError
from regard.families.language.bert import Bert
from regard.families.language.data import ReadTextsTask, Row
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import FACTS, Question, TaggedText, entities, facts, read_questions, read_tagged
from regard.families.language.recipe import AnswersRecipe, TagsRecipe, TokenHeadRecipe
from regard.training.initial_model import build_model, initial_tokenizer
from regard.training.losses import Loss, cross_entropy
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values


def tag_scores(found: Sequence[list[str]], true: Sequence[list[str]]) -> dict[str, float]:
    """The share of right tags, and F1 of whole phrases: kind, beginning and end must be right."""
    same = sum(one == other for pair in zip(found, true, strict=True) for one, other in zip(*pair, strict=True))
    guessed, right, both = 0, 0, 0
    for one, other in zip(found, true, strict=True):
        ours, theirs = entities(one), entities(other)
        guessed, right, both = guessed + len(ours), right + len(theirs), both + len(ours & theirs)
    words = sum(map(len, true))
    return {"accuracy": same / max(1, words), "f1": 2 * both / max(1, guessed + right)}


def answer_scores(found: Sequence[str], right: Sequence[list[str]]) -> dict[str, float]:
    """The share of exactly right answers, and the mean F1 of their words, each against the best of the right answers.

    An empty answer says that the text does not have one; it is right where no answer is. Case, punctuation and English
    articles do not count.
    """
    pairs = [(answer, acceptable or [""]) for answer, acceptable in zip(found, right, strict=True)]
    exact = [max(_words(answer) == _words(each) for each in acceptable) for answer, acceptable in pairs]
    shared = [max(_overlap(answer, each) for each in acceptable) for answer, acceptable in pairs]
    return {"exact": sum(exact) / max(1, len(exact)), "f1": sum(shared) / max(1, len(shared))}


def _overlap(answer: str, right: str) -> float:
    ours, theirs = _words(answer), _words(right)
    if not ours or not theirs:
        return float(ours == theirs)
    both = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * both / (len(ours) + len(theirs))


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


TOKENIZER, OUTSIDE = "tokenizer", "O"
E = TypeVar("E", TaggedText, Question)
B = TypeVar("B", TextBatch, SpanBatch)


def tagged_texts(path: str, part: Part, count: int, seed: int, column: int | None = None) -> Iterator[TaggedText]:
    """The texts of a CoNLL file, or `count` built-in ones."""
    if path == FACTS:
        return (text.tagged for text in facts(part, count, seed))
    return read_tagged(path, column)


def asked_questions(path: str, part: Part, count: int, seed: int) -> Iterator[Question]:
    """The questions of a file as SQuAD has them, or `count` built-in ones."""
    return (text.question for text in facts(part, count, seed)) if path == FACTS else read_questions(path)


def tag_row(tokenizer: TextTokenizer, example: TaggedText, names: Sequence[str]) -> Row:
    """The tokens of a text, and the number of each word's tag at its first token."""
    (encoded,), words = tokenizer.encode([example.text]), tokenizer.words_of(example.text)
    numbers = {tag: number for number, tag in enumerate(names)}
    firsts = [word if word >= 0 and word not in words[:place] else -1 for place, word in enumerate(words)]
    return Row(*encoded, [numbers[example.tags[word]] if word >= 0 else -1 for word in firsts])


def span_row(tokenizer: TextTokenizer, asked: Question) -> Row:
    """The tokens of a question and a text, and the first and last token of the answer; 0 where there is none."""
    (encoded,) = tokenizer.encode([asked.question], [asked.context])
    if not asked.answers:
        return Row(*encoded, [0, 0])
    begin, end = asked.begin, asked.begin + len(asked.answers[0])
    spans = tokenizer.spans(asked.question, asked.context)
    inside = [place for place, (side, i, j) in enumerate(spans) if side == 1 and i < end and j > begin]
    return Row(*encoded, [inside[0], inside[-1]] if inside else [0, 0])


def span_scores(logits: Tensor, mask: Tensor) -> Tensor:
    """The logits of first and last tokens [B T 2], without padding."""
    return logits.masked_fill(~mask[..., None], -torch.inf)


class TokenHeadTask(ReadTextsTask[E, B]):
    """Texts with something to find in each; a subclass says what, and how it is measured."""

    recipe: TokenHeadRecipe
    head: str

    @abstractmethod
    def row(self, example: E) -> Row:
        """An example as tokens and labels."""

    @staticmethod
    @abstractmethod
    def error(logits: Tensor, batch: B) -> Tensor:
        """The loss, summed over what the batch counts."""

    @staticmethod
    @abstractmethod
    def scored(encoder: TextEncoder, examples: Sequence[E]) -> tuple[Values, list[str]]:
        """The scores of a model, and what it found in each text as a line."""

    @abstractmethod
    def labels(self) -> tuple[str, ...]:
        """The names of the head's outputs; none if they are always the same."""

    @classmethod
    def write(cls, recipe: TokenHeadRecipe, folder: Path, poll: Poll) -> None:
        """Also learn the vocabulary, unless it comes with the model."""
        super().write(recipe, folder, poll)
        if recipe.model.init:
            tokenizer = initial_tokenizer(recipe.model.init)
        else:
            texts = (text for example in cls.copied(folder, "train") for text in cls.sides(example))
            tokenizer = train_vocabulary(texts, recipe.tokenizer, "enclosed")
        tokenizer.save(folder / TOKENIZER)

    def _tokenizer(self, folder: Path) -> TextTokenizer:
        return TextTokenizer.load(folder / TOKENIZER)

    def _model(self) -> nn.Module:
        names = self.labels()
        return build_model(self.recipe.model, self.tokenizer, head=self.head, labels=len(names) or 2, label_names=names)

    def _rows(self, examples: Sequence[E]) -> list[Row]:
        return [row for row in map(self.row, examples) if len(row.ids) <= self.longest]

    def _refuse_unusable(self) -> None:
        if not self.texts["train"].rows:
            raise DataError(f"{self.recipe.data.train} has no text of at most {self.longest} tokens to learn from")

    def _summary(self, train: str, others: str) -> str:
        left = len(self.examples["train"]) - len(self.texts["train"].rows)
        longer = f"{left:,} of more than {self.longest} tokens left out"
        return f"{train} texts from {self.recipe.data.train}; {others}; {longer}"

    def loss(self, model: Forward, batch: B) -> Loss:
        """The cross-entropy of what is to be found."""
        return Loss.of(self.error(self._logits(model, batch), batch), batch.tokens)

    def said(self, model: nn.Module, part: Part, poll: Poll) -> tuple[Values, Sequence[str]]:
        total, tokens, texts = 0.0, 0, self.texts[part]
        for rows in texts.plan(self.recipe.training.batch_tokens, seed=0, epoch=0):
            poll()
            batch = texts(rows).to(self.device)
            total, tokens = total + self.error(self._logits(model, batch), batch).item(), tokens + batch.tokens
        assert isinstance(model, Bert)
        encoder = TextEncoder(model, self.tokenizer)
        encoder.warns = False
        scores, found = self.scored(encoder, self.examples[part])
        return {"loss": total / max(1, tokens), **scores}, found

    @staticmethod
    def _logits(model: Forward, batch: TextBatch | SpanBatch) -> Tensor:
        logits: Tensor = model(batch.inputs, batch.mask, batch.segments).logits
        return logits.float()


class TaggingTask(TokenHeadTask[TaggedText, TextBatch]):
    """A tag for every word. The first token of a word carries its tag."""

    recipe: TagsRecipe
    head, example = "tags", TaggedText

    @classmethod
    def read(cls, recipe: TagsRecipe, path: str, part: Part) -> Iterator[TaggedText]:
        return tagged_texts(path, part, _count(recipe, part), recipe.seed, recipe.data.column)

    @classmethod
    def sides(cls, example: TaggedText) -> Sequence[str]:
        """The words with a space between two."""
        return (example.text,)

    def labels(self) -> tuple[str, ...]:
        """The tags of the training texts; O is the first, if there is one."""
        tags = {tag for example in self.examples["train"] for tag in example.tags}
        for part, examples in self.examples.items():
            if new := {tag for example in examples for tag in example.tags} - tags:
                raise DataError(f"data.{part} has the tag {min(new)!r}, which never occurs in data.train; add texts")
        if len(tags) < 2:
            raise ConfigError(f"{self.recipe.data.train} has only the tag {min(tags, default='')!r}; see data.column")
        return tuple(sorted(tags, key=lambda tag: (tag != OUTSIDE, tag)))

    def row(self, example: TaggedText) -> Row:
        return tag_row(self.tokenizer, example, self.config.label_names)

    @staticmethod
    def batch(inputs: Tensor, mask: Tensor, segments: Tensor, labels: list[Sequence[float]]) -> TextBatch:
        """Only first tokens of words have a tag."""
        padded, _ = pad_rows([np.array(row, dtype=np.int64) for row in labels], -1)
        return TextBatch(inputs, mask, padded.clamp(min=0), padded >= 0, segments)

    @staticmethod
    def error(logits: Tensor, batch: TextBatch) -> Tensor:
        return cross_entropy(logits, batch.labels, batch.labels_mask)

    @staticmethod
    def scored(encoder: TextEncoder, examples: Sequence[TaggedText]) -> tuple[Values, list[str]]:
        answers = encoder.tag([example.text for example in examples], truncate=True)
        tags = [[word.tag for word in words] for words in answers]
        return tag_scores(tags, [example.tags for example in examples]), [" ".join(row) for row in tags]

    def line(self, example: TaggedText) -> str:
        return " ".join(example.tags)


class AnsweringTask(TokenHeadTask[Question, SpanBatch]):
    """Where in a text the answer to a question begins and ends; at the first token if the text does not have it."""

    recipe: AnswersRecipe
    head, example = "answer", Question

    @classmethod
    def read(cls, recipe: AnswersRecipe, path: str, part: Part) -> Iterator[Question]:
        return asked_questions(path, part, _count(recipe, part), recipe.seed)

    @classmethod
    def sides(cls, example: Question) -> Sequence[str]:
        return example.question, example.context

    def labels(self) -> tuple[str, ...]:
        """None: the outputs are always the beginning and the end."""
        return ()

    def row(self, example: Question) -> Row:
        return span_row(self.tokenizer, example)

    @staticmethod
    def batch(inputs: Tensor, mask: Tensor, segments: Tensor, labels: list[Sequence[float]]) -> SpanBatch:
        return SpanBatch(inputs, mask, segments, torch.tensor(np.array(labels)).long())

    @staticmethod
    def error(logits: Tensor, batch: SpanBatch) -> Tensor:
        """The mean cross-entropy of the first and of the last token, among all tokens of the texts."""
        scores = span_scores(logits, batch.mask).transpose(1, 2)  # [B 2 T]
        return functional.cross_entropy(scores.flatten(0, 1), batch.spans.flatten(), reduction="sum") / 2

    @staticmethod
    def scored(encoder: TextEncoder, examples: Sequence[Question]) -> tuple[Values, list[str]]:
        answers = [encoder.answer(each.question, each.context, truncate=True)[0].text for each in examples]
        return answer_scores(answers, [example.answers for example in examples]), answers

    def line(self, example: Question) -> str:
        return example.answers[0] if example.answers else ""


def _count(recipe: TokenHeadRecipe, part: Part) -> int:
    """How many built-in texts a part has."""
    return recipe.data.count if part == "train" else recipe.data.held_out
