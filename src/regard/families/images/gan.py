"""Generative adversarial training (SAGAN): a critic learns to tell generated images from real ones, a generator to
mislead it.

Each step has two phases, the critic's and then the generator's, with the hinge loss (Lim & Ye 2017). Validation
measures the Fréchet distance between generated and real images in the features of a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from regard.data.batch import ImageBatch
from regard.data.images.reading import Preprocessing, grid, png
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.families.images.data import LabelledCorpus
from regard.families.images.recipe import GanRecipe
from regard.families.images.sagan import Sagan, SaganConfig
from regard.families.images.task import FrechetJudge, LabelledTask
from regard.training.image_task import DeviceImages, image_config
from regard.training.losses import Loss, hinge_critic, hinge_generator
from regard.training.recipe.sections import ModelSection
from regard.training.safeguards import Poll
from regard.training.task import Forward, Values

CRITIC, GENERATOR = "critic", "generator"
SHEET, COLUMNS = "samples.png", 10


class GanTask(LabelledTask):
    """Real images, and a generator that learns to make more of them."""

    divisible = False  # its phases call parts of the model, which DDP and FSDP do not wrap
    recipe: GanRecipe

    @classmethod
    def images(cls, recipe: GanRecipe) -> LabelledCorpus:
        config = _sagan_config(recipe.model)
        size, half = config.image_size, (0.5,) * config.channels  # the generator's pixels lie between -1 and 1
        given = Preprocessing(size=(size, size), resize=size, mean=half, std=half)
        return LabelledCorpus(recipe.data, size, config.channels, recipe.seed, given)

    def __init__(self, recipe: GanRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.config = _sagan_config(recipe.model)
        self.compiled_critic: Callable[..., Tensor] | None = None
        judge, size, channels = recipe.data.judge, self.config.image_size, self.config.channels
        self.judge = FrechetJudge(judge, size, channels, device) if judge else None

    def build(self) -> nn.Module:
        """A generator and a critic that know the names of the classes."""
        names = self.corpus.names
        if self.config.classes != len(names):
            raise ConfigError(f"model.classes must be {len(names)}, as many as the images have")
        return MODELS[self.recipe.model.name].model(self.config.replace(class_names=names))

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """One group for each network; they are updated in turns."""
        assert isinstance(model, Sagan)
        return {CRITIC: list(model.critic.parameters()), GENERATOR: list(model.generator.parameters())}

    def rate(self, group: str) -> float:
        """The critic learns faster."""
        return self.recipe.training.critic_rate if group == CRITIC else 1.0

    def phases(self, model: Forward, batch: ImageBatch) -> Iterator[tuple[str, Loss]]:
        """The critic judges real and generated images; then the generator makes new ones for it."""
        networks = cast(Sagan, model)  # may be compiled
        labels = self._labels(self.train.labels[batch.rows])
        count = torch.full((), len(labels), device=self.device)
        pixels = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        real = self.corpus.preprocessing.normalise(pixels)
        with torch.no_grad():
            made = model(networks.draw(labels), labels)
        critic = self._critic(model)
        scores = critic(torch.cat([real, made]), labels.repeat(2))  # one call, since each computes the spectral norms
        yield CRITIC, Loss(hinge_critic(*scores.chunk(2)), count)
        made = model(networks.draw(labels), labels)
        yield GENERATOR, Loss(hinge_generator(critic(made, labels)), count)

    def _critic(self, model: Forward) -> Callable[..., Tensor]:
        """The critic, compiled if the generator is: the loop compiles only what it calls, which is the generator."""
        if isinstance(model, Sagan):
            return model.critic
        if self.compiled_critic is None:
            self.compiled_critic = torch.compile(cast(Sagan, model).critic, dynamic=False)
        return self.compiled_critic

    def _labels(self, labels: Tensor) -> Tensor:
        return labels if self.config.conditional else torch.zeros_like(labels)

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """The Fréchet distance between generated and real images."""
        if self.judge is None:
            return {}
        count, batch = self.recipe.training.validate_pictures, self.recipe.training.batch

        def made() -> Iterator[UInt8[Tensor, "B C H W"]]:
            for begin in range(0, count, batch):
                poll()
                yield self._generated(model, min(batch, count - begin), begin)

        real = (images.pixels(some) for some in images.in_order(batch))
        return {"frechet": self.judge.distance(real, made())}

    def _generated(self, model: nn.Module, count: int, seed: int) -> UInt8[Tensor, "B C H W"]:
        """Generated images of all classes in turn."""
        labels = self._labels(torch.arange(count, device=self.device) % len(self.corpus.names))
        latent = cast(Sagan, model).draw(labels, torch.Generator().manual_seed(seed))
        return self.corpus.preprocessing.restored(model(latent, labels))

    @torch.inference_mode()
    def finish(self, model: nn.Module, folder: Path) -> None:
        """A sheet of generated images."""
        images = self._generated(model, COLUMNS * COLUMNS, seed=0)
        (folder / SHEET).write_bytes(png(grid(images, COLUMNS)))


def _sagan_config(section: ModelSection) -> SaganConfig:
    config = image_config(section)
    assert isinstance(config, SaganConfig)
    return config
