"""Building the model of a recipe: a new one, or one with the weights of `model.init`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from regard.checkpoints import LoadedModel, load_model
from regard.checkpoints.folder import local_folder, resolve
from regard.checkpoints.models import identify, own_tensors
from regard.config import Config
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import CheckpointError, UsageError, with_article
from regard.families.catalog import MODELS
from regard.training.recipe.sections import ModelSection

C = TypeVar("C", bound=Config)
# weights that a task may add to a model or drop, or that depend on its classes
HEADS = ("output.", "pooler.", "masked.", "next_sentence.", "sampler.", "regions.label.", "regions.box.")


def initial_folder(init: str) -> Path:
    """The folder of the model that training starts from."""
    folder = local_folder(init)
    if not folder.is_dir():
        raise UsageError(f"model.init is {init!r}, which is not a folder; give a model folder or hf:owner/name")
    return resolve(folder)


def initial_tokenizer(init: str) -> TextTokenizer:
    """The tokenizer of the model that training starts from."""
    return TextTokenizer.load(initial_folder(init))


def planned_config(section: ModelSection, kind: type[C]) -> C:
    """The configuration of the model to train, before its vocabulary is known."""
    if section.init:
        config = identify(initial_folder(section.init))[1].replace(**section.overrides)
    else:
        config = section.config(source_vocab=8, target_vocab=8, pad=0)
    assert isinstance(config, kind)
    return config


def build_model(section: ModelSection, tokenizer: TextTokenizer, **changes: Any) -> nn.Module:
    """A new model with the vocabulary of the tokenizer, or one with the weights of `model.init`.

    `changes` are values of its configuration that the task decides.
    """
    if section.init:
        model = initialised(section, changes)
        assert isinstance(model.config, Config)
        check_vocabulary(section.init, tokenizer, model.config)
        return model
    config = section.config(source_vocab=tokenizer.size, target_vocab=tokenizer.size, pad=tokenizer.pad)
    return MODELS[section.name].model(config.replace(**changes))


def initialised(section: ModelSection, changes: dict[str, Any]) -> nn.Module:
    """A model with the weights of `model.init`, or of its shape with new weights; only heads may differ from it."""
    return started_from(load_model(initial_folder(section.init)), section, changes)


def started_from(loaded: LoadedModel, section: ModelSection, changes: dict[str, Any]) -> nn.Module:
    """A model with the weights of a loaded one, or of its shape with new weights; only heads may differ from it."""
    if loaded.name != section.name:
        raise UsageError(f"{section.init} holds a {loaded.name} model, but model.name is {section.name!r}")
    model = MODELS[section.name].model(loaded.config.replace(**{**section.overrides, **changes}))
    if not section.fresh:
        copy_body(own_tensors(loaded.model), own_tensors(model), section.init)
    return model


def build_on_body(section: ModelSection, config: Config, names: tuple[str, ...]) -> nn.Module:
    """A model on a body that knows the names of its classes: new, perhaps with a body that starts from the folder
    `model.body_init`, or with the weights of `model.init`."""
    if section.init:
        return initialised(section, {"classes": len(names), "class_names": names})
    model = MODELS[section.name].model(config.replace(class_names=names))
    if section.body_init:
        assert isinstance(model.body, nn.Module)
        start_body(model.body, section.body_init)
    return model


def start_body(body: nn.Module, init: str) -> None:
    """Give a body the weights of a model folder; only its output layer, which the body has not, may differ."""
    loaded = load_model(initial_folder(init))
    given, into = own_tensors(loaded.model), own_tensors(body)
    if not {name for name in given if not name.startswith(HEADS)} <= into.keys():
        raise CheckpointError(
            f"model.body_init: {init} is {with_article(loaded.name)} of another shape than the body of this model"
        )
    copy_body(given, into, init)


def check_vocabulary(init: str, tokenizer: TextTokenizer, config: Config) -> None:
    """Refuse a tokenizer with tokens that the model of `init` does not know."""
    known: int = getattr(config, "vocab", 0) or getattr(config, "target_vocab", 0)
    if tokenizer.size > known:
        raise CheckpointError(
            f"the tokenizer of {init} has {tokenizer.size:,} tokens, but the model knows {known:,}; "
            "they do not belong together"
        )


@torch.no_grad()
def copy_body(given: dict[str, torch.Tensor], into: dict[str, torch.Tensor], init: str) -> None:
    """Copy all weights, except heads that only one of the two models has or that differ in size."""
    for name, tensor in into.items():
        if name in given and given[name].shape == tensor.shape:
            tensor.copy_(given[name])
        elif not name.startswith(HEADS):
            raise CheckpointError(f"{init}: {name} does not fit the model of this recipe; change [model] back")
