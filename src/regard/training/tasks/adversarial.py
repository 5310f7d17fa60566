"""Pictures from random numbers: a critic learns to tell them from real ones, a generator to please it (SAGAN).

Each step has two phases: the critic's, then the generator's, with the hinge loss (Lim & Ye 2017). How real what is
generated looks, in comparison with the validation pictures, a judge says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from regard.data.batch import ImageBatch
from regard.data.images.reading import Preprocessing, grid, png
from regard.errors import ConfigError
from regard.models.catalog import MODELS
from regard.models.sagan import Sagan, SaganConfig
from regard.training.evaluation.frechet_distance import Judge
from regard.training.evaluation.translation import Sample
from regard.training.losses import Loss, hinge_critic, hinge_generator
from regard.training.prepare.images import ImagePreparation, OnDevice
from regard.training.recipe.recipes import GanRecipe
from regard.training.run_state import Place
from regard.training.safeguards import Poll
from regard.training.tasks.image_classification import image_config

CRITIC, GENERATOR = "critic", "generator"
SHEET, COLUMNS = "samples.png", 10


class Gan:
    """Real pictures, and a generator that learns to make more of them."""

    repeats = True
    divisible = False  # its phases call parts of the model, around which the engines have no hooks

    def __init__(self, recipe: GanRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device = recipe, device
        self.carried: dict[str, Tensor] = {}
        config = image_config(recipe.model)
        assert isinstance(config, SaganConfig)
        self.config = config
        size, channels = self.config.image_size, self.config.channels
        half = (0.5,) * channels  # a generator's pictures lie between -1 and 1
        preprocessing = Preprocessing(size=(size, size), resize=size, mean=half, std=half)
        preparation = ImagePreparation(recipe.data, size, channels, recipe.seed, preprocessing)
        self.corpus = preparation.corpus(folder, poll)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        self.train = OnDevice(self.corpus.train, device)
        self.loader = self.corpus.loader(recipe.augmentation, recipe.training, recipe.seed, device)
        self.critic: Callable[..., Tensor] | None = None  # as it is compiled
        self.judge = Judge(recipe.data.judge, size, channels, device) if recipe.data.judge else None

    def build(self) -> nn.Module:
        """A generator and a critic that know the names of the classes."""
        names = self.corpus.names
        if self.config.classes != len(names):
            raise ConfigError(f"model.classes must be {len(names)}, as many as the pictures have")
        return MODELS[self.recipe.model.name].model(self.config.replace(class_names=names))

    def parameters(self, model: nn.Module) -> dict[str, list[nn.Parameter]]:
        """The two networks are updated in turns."""
        assert isinstance(model, Sagan)
        return {CRITIC: list(model.critic.parameters()), GENERATOR: list(model.generator.parameters())}

    def rate(self, group: str) -> float:
        """The critic learns faster."""
        return self.recipe.training.critic_rate if group == CRITIC else 1.0

    def batches(self, place: Place) -> Iterator[tuple[Place, ImageBatch]]:
        """Batches for ever from a place on, each with the place after it."""
        return self.loader.onward(place)

    def phases(self, model: Callable[..., Any], batch: ImageBatch) -> Iterator[tuple[str, Loss]]:
        """The critic sees real and generated pictures; then the generator makes new ones for it."""
        networks = cast(Sagan, model)  # which may be wrapped
        labels = self._labels(self.train.labels[batch.rows])
        count = torch.full((), len(labels), device=self.device)
        pixels = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        real = self.corpus.preprocessing.normalise(pixels)
        with torch.no_grad():
            made = model(networks.draw(labels), labels)
        critic = self._critic(model)
        scores = critic(torch.cat([real, made]), labels.repeat(2))  # at once: spectral norms are computed at each call
        yield CRITIC, Loss(hinge_critic(*scores.chunk(2)), count)
        made = model(networks.draw(labels), labels)
        yield GENERATOR, Loss(hinge_generator(critic(made, labels)), count)

    def _critic(self, model: Callable[..., Any]) -> Callable[..., Tensor]:
        """Compiled where the generator is: the loop compiles what it calls, and that is the generator alone."""
        if isinstance(model, Sagan):
            return model.critic
        if self.critic is None:
            self.critic = torch.compile(cast(Sagan, model).critic, dynamic=False)
        return self.critic

    def _labels(self, labels: Tensor) -> Tensor:
        return labels if self.config.conditional else torch.zeros_like(labels)

    @torch.inference_mode()
    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The Fréchet distance between the judge's features of generated and of real pictures."""
        return {"frechet": self._distance(model, OnDevice(self.corpus.valid, self.device), poll)}

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same to the test pictures; nothing where the recipe has none."""
        if not len(self.corpus.test) or self.judge is None:
            return {}
        with torch.inference_mode():
            return {"frechet": self._distance(model, OnDevice(self.corpus.test, self.device), poll)}

    def _distance(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> float:
        assert self.judge is not None
        count, batch = self.recipe.training.validate_pictures, self.recipe.training.batch

        def made() -> Iterator[UInt8[Tensor, "B C H W"]]:
            for begin in range(0, count, batch):
                poll()
                yield self._made(model, min(batch, count - begin), begin)

        return self.judge.distance((pictures.pixels(some) for some in pictures.in_order(batch)), made())

    def _made(self, model: nn.Module, count: int, seed: int) -> UInt8[Tensor, "B C H W"]:
        """Generated pictures of all classes in turn."""
        labels = self._labels(torch.arange(count, device=self.device) % len(self.corpus.names))
        latent = cast(Sagan, model).draw(labels, torch.Generator().manual_seed(seed))
        return self.corpus.preprocessing.restored(model(latent, labels))

    def samples(self) -> Sequence[Sample]:
        """Nothing to be read."""
        return []

    def save(self, folder: Path) -> None:
        """Put the preprocessing beside the weights."""
        self.corpus.preprocessing.save(folder)

    @torch.inference_mode()
    def finish(self, model: nn.Module, folder: Path) -> None:
        """A sheet of generated pictures."""
        pictures = self._made(model, COLUMNS * COLUMNS, seed=0)
        (folder / SHEET).write_bytes(png(grid(pictures, COLUMNS)))
