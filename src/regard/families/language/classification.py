"""Fine-tuning a pretrained model to predict labels or values of texts and of pairs of texts (Devlin et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints import write_folder
from regard.data.batch import LabelledBatch
from regard.data.loader import Loader, Rows
from regard.data.sources import PARTS, Part
from regard.data.tokenizers.unknown_words import share_of_all, unknown_tokens
from regard.errors import DataError, UsageError
from regard.families.catalog import MODELS
from regard.families.contract import Evaluation, EvaluationOptions
from regard.families.language.bert import BertConfig
from regard.families.language.data import EncodedTexts, Row, read_examples, write_examples
from regard.families.language.elmo import ElmoConfig
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import Example
from regard.families.language.recipe import ClassificationRecipe, LabelledTextsSection, TagsRecipe
from regard.families.language.token_heads import AnsweringTask, TaggingTask, asked_questions, tagged_texts
from regard.search.settings import RECIPE
from regard.training.initial_model import build_model, initial_tokenizer
from regard.training.losses import Loss, symmetric_divergence
from regard.training.recipe.base import Recipe
from regard.training.recipe.load import load_recipe
from regard.training.safeguards import Poll
from regard.training.scores import label_scores, value_scores
from regard.training.task import SAMPLES, Forward, Sample, Values, loader_options
from regard.training.text_task import TextTask, no_validation

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


class TextClassificationTask(TextTask[LabelledBatch]):
    """Texts, or pairs of texts, that have a label or a value."""

    recipe: ClassificationRecipe

    @classmethod
    def prepare(cls, recipe: ClassificationRecipe, folder: Path, poll: Poll) -> None:
        """Copy the examples, so that a resumed run learns from the same ones."""
        if not folder.exists():
            write_folder(folder, lambda temporary: _write(recipe, temporary, poll))

    def __init__(self, recipe: ClassificationRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = initial_tokenizer(recipe.model.init)
        self.model = self._model()
        self.cut = 0
        self.examples = {part: read_examples(folder, part, Example) for part in PARTS}
        self.texts = {part: self._encoded(examples) for part, examples in self.examples.items()}
        self._refuse_unusable()
        counts = {part: f"{len(examples):,}" for part, examples in self.examples.items()}
        self.summary = (
            f"{counts['train']} labelled texts from {recipe.data.train}; {counts['valid']} for validation, "
            f"{counts['test']} for testing; {self.cut:,} cut to {self._longest()} tokens{self._unknown()}"
        )
        self.shown: list[Sample] = []
        self.loader = Loader(self._plan, self.texts["train"], **loader_options(recipe.training, device))

    def _unknown(self) -> str:
        tokens = [token for row in self.texts["train"].rows for token in row.ids]
        unknown = self.tokenizer.only_unknown
        return "" if unknown is None else unknown_tokens({"text": tokens.count(unknown) / max(1, len(tokens))})

    def build(self) -> nn.Module:
        """The pretrained model with a new head."""
        return self.model

    def loss(self, model: Forward, batch: LabelledBatch) -> Loss:
        """Cross-entropy of labels, or squared error of values, summed over the texts; R-Drop over two passes."""
        weight, texts = self.recipe.training.r_drop, batch.mask.any(1).sum()
        if not weight:
            return Loss(label_error(self._answers(model, batch), batch.targets), texts)
        first, second = self._answers(model, batch, passes=2).chunk(2)
        both = label_error(first, batch.targets) + label_error(second, batch.targets)
        return Loss(0.5 * (both + weight * self._difference(first, second)), texts)

    def _difference(self, first: Tensor, second: Tensor) -> Tensor:
        """The term of R-Drop: the divergence of probabilities, or the squared difference of values."""
        if self.recipe.data.labels:
            return symmetric_divergence(first, second, None)
        return functional.mse_loss(first, second, reduction="sum")

    @staticmethod
    def _answers(model: Forward, batch: LabelledBatch, passes: int = 1) -> Tensor:
        read = (each.repeat(passes, 1) for each in (batch.inputs, batch.mask, batch.segments))
        logits: Tensor = model(*read).logits
        return logits.float()

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The loss; for labels also accuracy, F1 and Matthews, for values Pearson and Spearman."""
        return self._measured(model, "valid", poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test texts; empty if the recipe has none."""
        return self._measured(model, "test", poll) if self.examples["test"] else {}

    def samples(self) -> Sequence[Sample]:
        """Some of the texts that were measured, with the predictions."""
        return self.shown

    @torch.inference_mode()
    def _measured(self, model: nn.Module, part: Part, poll: Poll) -> Values:
        texts, error = self.texts[part], 0.0
        answers = torch.empty(len(texts.rows), max(1, len(self.recipe.data.labels)))
        for rows in texts.plan(self.recipe.training.batch_tokens, seed=0, epoch=0):
            poll()
            batch = texts(rows).to(self.device)
            found = self._answers(model, batch)
            error += label_error(found, batch.targets).item()
            answers[rows] = found.cpu()
        self._show(part, answers)
        return {"loss": error / len(answers), **self._scores(part, answers)}

    def _scores(self, part: Part, answers: Tensor) -> Values:
        true, labels = [example.target for example in self.examples[part]], self.recipe.data.labels
        if not labels:
            return value_scores(answers[:, 0].numpy(), true)
        return label_scores(answers.argmax(-1).numpy(), true, len(labels))

    def _show(self, part: Part, answers: Tensor) -> None:
        examples = self.examples[part]
        chosen = range(0, len(examples), max(1, len(examples) // SAMPLES))
        self.shown = [
            Sample(
                source=" ||| ".join(filter(None, examples[i][:2])),
                target=self._named(examples[i].target),
                output=self._named(float(answers[i].argmax() if self.recipe.data.labels else answers[i, 0])),
            )
            for i in chosen
        ][:SAMPLES]

    def _named(self, target: float) -> str:
        return self.recipe.data.labels[int(target)] if self.recipe.data.labels else f"{target:.3g}"

    def _model(self) -> nn.Module:
        labels = self.recipe.data.labels
        pooler = {"pooler": True} if "pooler" in MODELS[self.recipe.model.name].config.model_fields else {}
        return build_model(
            self.recipe.model, self.tokenizer, head="classify", labels=max(1, len(labels)),
            label_names=labels, label_kind="one" if labels else "value", **pooler,
        )  # fmt: skip

    @property
    def _config(self) -> BertConfig | ElmoConfig:
        assert isinstance(self.model.config, BertConfig | ElmoConfig)
        return self.model.config

    def _longest(self) -> int:
        return min(self.recipe.data.longest, self._config.longest)

    def _plan(self, epoch: int) -> list[Rows]:
        return self.texts["train"].plan(self.recipe.training.batch_tokens, self.recipe.seed, epoch)

    def _encoded(self, examples: list[Example]) -> EncodedTexts[LabelledBatch]:
        longest, paired = self._longest(), self.recipe.data.pair is not None
        rows: list[Row] = []
        stream = iter(examples)
        while some := list(islice(stream, CHUNK)):
            texts, pairs = [each.text for each in some], [each.pair for each in some]
            whole = self.tokenizer.encode(texts, pairs if paired else None)
            self.cut += sum(len(row.ids) > longest for row in whole)
            cut = self.tokenizer.encode(texts, pairs if paired else None, longest=longest)
            rows += [Row(*row, [each.target]) for row, each in zip(cut, some, strict=True)]
        batch = partial(labelled_batch, valued=not self.recipe.data.labels)
        return EncodedTexts(rows, self.tokenizer.pad, self._config.segments, batch)

    def _refuse_unusable(self) -> None:
        data, targets = self.recipe.data, {example.target for example in self.examples["train"]}
        if not targets:
            raise DataError(f"{data.train} has no labelled text; give data.train some")
        if unseen := [label for number, label in enumerate(data.labels) if number not in targets]:
            raise DataError(
                f"{data.train}: the label {unseen[0]!r} never occurs, so it cannot be learnt; leave it out of "
                "data.labels, or add examples of it"
            )
        if self.recipe.training.validate_every and not self.examples["valid"]:
            raise no_validation()


def _write(recipe: ClassificationRecipe, folder: Path, poll: Poll) -> None:
    for part in PARTS:
        path: str = getattr(recipe.data, part)
        write_examples(folder, part, recipe.data.table.read(path) if path else (), poll)


def evaluate_texts(encoder: TextEncoder, data: str, options: EvaluationOptions) -> Evaluation:
    """What the head of the model is measured by: GLUE's metrics of a table, tags, or SQuAD's metrics; long texts are
    cut."""
    encoder.warns = False  # the share of unknown words is among the scores
    match encoder.config.head:
        case "tags":
            recipe = _recipe(options.folder)
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
            scores = _labels_scored(encoder, section, rows) if rows else {}
    if not texts:
        raise DataError(f"{data} has no {kind}")
    return Evaluation({"texts": len(texts), **share_of_all(texts, encoder.unknown_words), **scores})


def label_tables(folder: Path) -> LabelledTextsSection:
    """The tables of texts and labels that the recipe of a model names."""
    recipe = _recipe(folder)
    if not isinstance(recipe, ClassificationRecipe):
        raise UsageError(
            f"{folder} has no {RECIPE} of a classifier, which says where texts and labels are in a table; "
            "measure a model that `regard train` made"
        )
    return recipe.data


def _recipe(folder: Path) -> Recipe | None:
    return load_recipe(str(folder / RECIPE)) if (folder / RECIPE).is_file() else None


def _labels_scored(encoder: TextEncoder, section: LabelledTextsSection, rows: Sequence[Example]) -> Values:
    texts, pairs, true = zip(*rows, strict=True)
    answers = encoder.classify(texts, None if section.pair is None else pairs, truncate=True, longest=section.longest)
    if not section.labels:
        return value_scores([float(answer.value or 0.0) for answer in answers], true)
    return label_scores([section.labels.index(answer.label) for answer in answers], true, len(section.labels))
