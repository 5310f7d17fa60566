"""Fine-tuning a pretrained model to predict labels or values of texts and of pairs of texts (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import LabelledBatch
from regard.data.sources import Part
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import share_of_all, unknown_tokens
from regard.errors import DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.language.data import ReadTextsTask, Row
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import Example
from regard.families.language.recipe import ClassificationRecipe, LabelledTextsSection, TagsRecipe
from regard.families.language.token_heads import AnsweringTask, TaggingTask, asked_questions, tagged_texts
from regard.search.pipeline import Labelled
from regard.search.settings import RECIPE
from regard.training.initial_model import build_model, initial_tokenizer
from regard.training.losses import Loss, symmetric_divergence
from regard.training.recipe.load import trained_recipe
from regard.training.safeguards import Poll
from regard.training.scores import Numbers, label_scores, value_scores
from regard.training.task import Forward, Values

CHUNK = 1000  # texts encoded together


def labelled_batch(
    inputs: Tensor, mask: Tensor, segments: Tensor, labels: list[Sequence[float]], valued: bool = False
) -> LabelledBatch:
    """A batch of texts with one label or value each."""
    targets = torch.tensor([float(target) for (target,) in labels])
    return LabelledBatch(inputs, mask, segments, targets if valued else targets.long())


def label_error(answers: Tensor, targets: Tensor) -> Tensor:
    """The summed cross-entropy of labels, or the squared error of values."""
    if targets.is_floating_point():
        return functional.mse_loss(answers[:, 0], targets, reduction="sum")
    return functional.cross_entropy(answers, targets, reduction="sum")


class TextClassificationTask(ReadTextsTask[Example, LabelledBatch]):
    """Texts, or pairs of texts, that have a label or a value."""

    recipe: ClassificationRecipe
    example = Example

    def __init__(self, recipe: ClassificationRecipe, folder: Path, device: torch.device) -> None:
        self.cut, self.batch = 0, partial(labelled_batch, valued=not recipe.data.labels)
        super().__init__(recipe, folder, device)

    @classmethod
    def read(cls, recipe: ClassificationRecipe, path: str, part: Part) -> Iterator[Example]:
        return recipe.data.table.read(path)

    def _tokenizer(self, folder: Path) -> TextTokenizer:
        return initial_tokenizer(self.recipe.model.init)

    def _model(self) -> nn.Module:
        labels = self.recipe.data.labels
        pooler = {"pooler": True} if "pooler" in MODELS[self.recipe.model.name].config.model_fields else {}
        return build_model(
            self.recipe.model, self.tokenizer, head="classify", labels=max(1, len(labels)),
            label_names=labels, label_kind="one" if labels else "value", **pooler,
        )  # fmt: skip

    def _rows(self, examples: Sequence[Example]) -> list[Row]:
        rows: list[Row] = []
        for begin in range(0, len(examples), CHUNK):
            some = examples[begin : begin + CHUNK]
            texts = [each.text for each in some]
            pairs = None if self.recipe.data.pair is None else [each.pair for each in some]
            self.cut += sum(len(row.ids) > self.longest for row in self.tokenizer.encode(texts, pairs))
            encoded = self.tokenizer.encode(texts, pairs, longest=self.longest)
            rows += [Row(*row, [each.target]) for row, each in zip(encoded, some, strict=True)]
        return rows

    def _refuse_unusable(self) -> None:
        data, targets = self.recipe.data, {example.target for example in self.examples["train"]}
        if not targets:
            raise DataError(f"{data.train} has no labelled text; give data.train some")
        if unseen := [label for number, label in enumerate(data.labels) if number not in targets]:
            raise DataError(
                f"{data.train}: the label {unseen[0]!r} never occurs, so it cannot be learnt; leave it out of "
                "data.labels, or add examples of it"
            )

    def _summary(self, train: str, others: str) -> str:
        tokens = [token for row in self.texts["train"].rows for token in row.ids]
        unknown = self.tokenizer.only_unknown
        told = "" if unknown is None else unknown_tokens({"text": tokens.count(unknown) / max(1, len(tokens))})
        cut = f"{self.cut:,} cut to {self.longest} tokens"
        return f"{train} labelled texts from {self.recipe.data.train}; {others}; {cut}{told}"

    def loss(self, model: Forward, batch: LabelledBatch) -> Loss:
        """Cross-entropy of labels, or squared error of values, summed over the texts; R-Drop over two passes."""
        weight, texts = self.recipe.training.r_drop, batch.mask.any(1).sum()
        if not weight:
            return Loss(label_error(self._answers(model, batch), batch.targets), texts)
        first, second = self._answers(model, batch, passes=2).chunk(2)
        both = label_error(first, batch.targets) + label_error(second, batch.targets)
        if self.recipe.data.labels:
            difference = symmetric_divergence(first, second, None)
        else:
            difference = functional.mse_loss(first, second, reduction="sum")
        return Loss(0.5 * (both + weight * difference), texts)

    @staticmethod
    def _answers(model: Forward, batch: LabelledBatch, passes: int = 1) -> Tensor:
        read = (each.repeat(passes, 1) for each in (batch.inputs, batch.mask, batch.segments))
        logits: Tensor = model(*read).logits
        return logits.float()

    def said(self, model: nn.Module, part: Part, poll: Poll) -> tuple[Values, Sequence[str]]:
        """The loss; for labels also accuracy, F1 and Matthews, for values Pearson and Spearman."""
        texts, labels, error = self.texts[part], self.recipe.data.labels, 0.0
        answers = torch.empty(len(texts.rows), max(1, len(labels)))
        for rows in texts.plan(self.recipe.training.batch_tokens, seed=0, epoch=0):
            poll()
            batch = texts(rows).to(self.device)
            found = self._answers(model, batch)
            error += label_error(found, batch.targets).item()
            answers[rows] = found.cpu()
        said = (answers.argmax(-1) if labels else answers[:, 0]).numpy()
        scores = _scores(said, [example.target for example in self.examples[part]], labels)
        return {"loss": error / len(answers), **scores}, [self._named(target) for target in said.tolist()]

    @classmethod
    def sides(cls, example: Example) -> Sequence[str]:
        return [text for text in example[:2] if text]

    def line(self, example: Example) -> str:
        return self._named(example.target)

    def _named(self, target: float) -> str:
        return self.recipe.data.labels[int(target)] if self.recipe.data.labels else f"{target:.3g}"


def _scores(found: Numbers, true: Sequence[float], labels: Sequence[str]) -> Values:
    return label_scores(found, true, len(labels)) if labels else value_scores(found, true)


def evaluate_texts(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """What the head of the model is measured by: GLUE's metrics of a table, tags, or SQuAD's metrics; long texts are
    cut."""
    encoder.warns = False  # the share of unknown words is among the scores
    match encoder.config.head:
        case "tags":
            recipe = trained_recipe(options.folder)
            column = recipe.data.column if isinstance(recipe, TagsRecipe) else None
            tagged, kind = list(tagged_texts(data, "test", options.count, options.seed, column)), "tagged text"
            texts = [example.text for example in tagged]
            scores = TaggingTask.scored(encoder, tagged)[0] if tagged else {}
        case "answer":
            asked, kind = list(asked_questions(data, "test", options.count, options.seed)), "question"
            texts = [question.context for question in asked]
            scores = AnsweringTask.scored(encoder, asked)[0] if asked else {}
        case _:
            section, kind = label_tables(options.folder), "labelled text"
            rows = list(section.table.read(data))
            texts = [row.text for row in rows]
            scores = _labels_scored(encoder, section, rows, options) if rows else {}
    if not texts:
        raise DataError(f"{data} has no {kind}")
    return Evaluation({"texts": len(texts), **share_of_all(texts, encoder.unknown_words), **scores})


def label_tables(folder: Path) -> LabelledTextsSection:
    """The tables of texts and labels that the recipe of a model names."""
    recipe = trained_recipe(folder)
    if not isinstance(recipe, ClassificationRecipe):
        raise UsageError(
            f"{folder} has no {RECIPE} of a classifier, which says where texts and labels are in a table; "
            "measure a model that `regard train` made"
        )
    return recipe.data


AT_ONCE = 512  # texts that are labelled between two reports of progress


def _labels_scored(
    encoder: TextEncoder, section: LabelledTextsSection, rows: Sequence[Example], options: EvaluationOptions
) -> Values:
    answers, true = list[Labelled](), [row[-1] for row in rows]
    for begin in range(0, len(rows), AT_ONCE):
        texts, pairs, _ = zip(*rows[begin : begin + AT_ONCE], strict=True)
        both = None if section.pair is None else pairs
        answers += encoder.classify(texts, both, truncate=True, longest=section.longest)
        options.measured(len(texts), len(rows))
    said = [section.labels.index(each.label) if section.labels else float(each.value or 0.0) for each in answers]
    return _scores(said, true, section.labels)
