"""The recipe of task `translation`."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt

from regard.checkpoints.models import identify
from regard.config import Fraction
from regard.data.tokenizers.pair import TokenizerConfig, read_pair_tokenizer
from regard.errors import ConfigError
from regard.families.translation.seq2seq import draws
from regard.families.translation.shipped import model_into
from regard.search.settings import SearchSettings, read_decoding
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import PairsSection
from regard.training.recipe.files import PHRASEBOOK
from regard.training.recipe.sections import (
    DECODED,
    LOSS,
    PERPLEXITY,
    AnswerTrainingSection,
    DrawsTrainingSection,
    ModelSection,
    RDropTrainingSection,
)

Frozen = Literal["embeddings", "encoder", "decoder"]
BUCKETS = 12  # lengths of sentences on a GPU: more shapes take longer to compile, fewer have more padding


class TranslationTrainingSection(AnswerTrainingSection, RDropTrainingSection, DrawsTrainingSection):
    """[training] of translators."""

    retired: ClassVar = {"round_lengths": 1}

    label_smoothing: Fraction = 0.1
    guide: NonNegativeFloat = 0.0  # weight of the loss that teaches attention the alignments found by statistics
    anchor: NonNegativeFloat = 0.0  # weight of the squared distance to the weights of model.init, against forgetting
    freeze: tuple[Frozen, ...] = ()  # parts that keep the weights of model.init
    buckets: NonNegativeInt | Literal["auto"] = "auto"  # how many lengths sentences are padded to; auto: 12 on a GPU

    @property
    def shapes_recur(self) -> bool:
        """Unless batches are as long as their sentences. Recording attention for the guide cannot be captured."""
        return self.buckets != 0 and not self.guide

    def lengths(self, device: str) -> int:
        """To how many different lengths sentences are padded on this kind of device; 0: to those of their batch."""
        if self.buckets != "auto":
            return self.buckets
        return BUCKETS if device == "cuda" else 0

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.guide and self.compile:
            raise ConfigError("training.guide watches the attention, which a compiled model hides; set one of them off")
        if self.anchor and self.parallel in ("fsdp", "hsdp"):
            raise ConfigError(
                "training.anchor needs whole weights, which training.parallel = 'fsdp' cuts up; set it to 0"
            )
        return self


class TranslationRecipe(Recipe):
    """Everything the training of a translator depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, *DECODED)

    task: Literal["translation"] = "translation"
    model: ModelSection = ModelSection()
    data: PairsSection
    tokenizer: TokenizerConfig = TokenizerConfig.parse({})
    training: TranslationTrainingSection = TranslationTrainingSection()
    decoding: SearchSettings = SearchSettings()

    @pydantic.model_validator(mode="before")
    @classmethod
    def _choose_built_in(cls, values: Any) -> Any:
        """Replace model.init = "builtin" by the built-in model of the data's target language."""
        match values:
            case {"model": {"init": "builtin", **model}, "data": {"target": target, **_rest}}:
                init = model_into(target if isinstance(target, str) else "")
                return {**values, "model": {**model, "init": init}}
        return values

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.model.init:
            self._check_adaptation()
        else:
            self._check_new_model()
        if self.training.guide and self.tokenizer.dropout:
            raise ConfigError(
                "training.guide links the tokens of one segmentation, which tokenizer.dropout changes all the time; "
                "set one of them to 0"
            )
        return self

    def _check_adaptation(self) -> None:
        given = self.tokenizer.model_dump(exclude={"dropout"})
        if given != TokenizerConfig.parse({}).model_dump(exclude={"dropout"}):
            raise ConfigError(
                "tokenizer comes from model.init; leave out [tokenizer], or all of it but dropout, or set tokenizer={}"
            )

    def _check_new_model(self) -> None:
        data, training = self.data, self.training
        only_with_init = {
            "data.old": data.old, "data.old_valid": data.old_valid,
            "training.anchor": training.anchor, "training.freeze": training.freeze,
        }  # fmt: skip
        if alone := next((key for key, value in only_with_init.items() if value), ""):
            raise ConfigError(f"model.init must be given with {alone}: a model folder, or hf:owner/name, to adapt")
        config = self.model.config(source_vocab=8, target_vocab=8, pad=0)
        if getattr(config, "tie", "") == "all" and not self.tokenizer.joint:
            raise ConfigError("model.tie = 'all': shares one embedding, which needs tokenizer.joint = true")
        if training.r_drop and draws(config):
            raise ConfigError("training.r_drop compares two passes, which draw different places; set it to 0")

    @property
    def vocabulary(self) -> int:
        """The largest vocabulary that a new model may get: that of the given files, where there are some."""
        if self.model.init or not self.tokenizer.file:
            return super().vocabulary
        tokenizer = read_pair_tokenizer(self.tokenizer, self.data.sources, self.data.targets)
        return max(tokenizer.source.size, tokenizer.target.size)

    def reversed(self) -> Self:
        """The recipe of the other direction, on the same files."""
        if self.model.init:
            raise ConfigError(f"model.init = {self.model.init!r}: knows one direction; adapt each direction by itself")
        if len(self.data.sources) > 1 or self.data.is_mixture:
            raise ConfigError(
                "data.train is a list of corpora, or data.source is one; write a recipe for each direction"
            )
        if len(self.data.targets) > 1 or (isinstance(self.data.train, dict) and not self.data.source_lines("train")):
            raise ConfigError(f"data.target is {self.data.target!r}; both directions need one target language")
        if self.data.train == PHRASEBOOK:
            raise ConfigError("data.train is 'phrasebook', which is written from English; give a file of pairs")
        data = self.data.replace(source=self.data.targets[0], target=self.data.source, swap=not self.data.swap)
        files = self.tokenizer.file, self.tokenizer.target_file
        tokenizer = self.tokenizer.replace(file=files[1], target_file=files[0]) if files[1] else self.tokenizer
        return type(self)(**{**dict(self), "data": data, "tokenizer": tokenizer})

    def resolved(self) -> Self:
        """With `model.init`, what the recipe does not say comes from that folder: the kind of model, and [decoding]."""
        if not self.model.init:
            return super().resolved()
        model, decoding = self.model, self.decoding
        named, decodes = "name" in model.model_fields_set, "decoding" in self.model_fields_set
        if not (named and decodes):
            from regard.families.translation.base_translator import translator_folder

            folder = translator_folder(model.init)
            decoding = decoding if decodes else read_decoding(folder).settings
            model = model if named else model.named(identify(folder)[0])
        return type(self)(**{**dict(self), "model": model, "decoding": decoding})
