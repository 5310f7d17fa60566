"""Tasks of models that make images.

Pixel modelling (iGPT, Chen et al. 2020): an image is a sequence of colours, whose every next pixel is predicted. A
linear probe measures what the middle layer has learnt. It is a least-squares classifier with a little ridge on the mean
features of that layer, where the paper fits a logistic regression: it needs no learning rate and no epochs.

Generative adversarial training (SAGAN): a critic learns to tell generated images from real ones, a generator to mislead
it. Each step has two phases, the critic's and then the generator's, with the hinge loss (Lim & Ye 2017). Validation
measures the Fréchet distance between generated and real images in the features of a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import ImageBatch
from regard.data.images.reading import Preprocessing, grid, png
from regard.errors import ConfigError
from regard.families.catalog import MODELS
from regard.families.images.data import LabelledCorpus
from regard.families.images.generation import SAMPLE, Palette, PixelGenerator
from regard.families.images.recipe import GanRecipe, PixelsRecipe
from regard.families.images.sagan import Sagan, SaganConfig
from regard.families.images.task import FrechetJudge, LabelledTask
from regard.families.language.gpt import Gpt, GptConfig
from regard.search.settings import SearchSettings
from regard.training.image_task import DeviceImages, ImageRows
from regard.training.initial_model import planned_config
from regard.training.losses import Loss, cross_entropy, hinge_critic, hinge_generator
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values

RIDGE = 1e-2  # times the mean square of the features
AT_ONCE = 250  # images that are completed together
COMPLETIONS, SHOWN, WAYS = "completions.png", 10, 4


class PixelTask(LabelledTask, SupervisedTask[ImageBatch]):
    """Images. The model predicts every pixel from those before it."""

    recipe: PixelsRecipe

    @classmethod
    def images(cls, recipe: PixelsRecipe) -> LabelledCorpus:
        return LabelledCorpus(recipe.data, recipe.data.size, recipe.data.channels, recipe.seed)

    def __init__(self, recipe: PixelsRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        data = recipe.data
        images = self.corpus.train  # the palette is that of pixels spread over all of them
        enough = images.rows[:: max(1, len(images) * images.store.pixels[0, 0].size // (4 * SAMPLE))]
        some = images.store.pixels[enough]
        palette = Palette.fit(some.transpose(0, 2, 3, 1).reshape(-1, data.channels), data.colours, recipe.seed)
        self.palette = Palette(palette.colours.to(device))  # once, not in every step
        self.start, self.side = len(self.palette), data.size
        self.summary += f"; in {len(self.palette)} colours"
        self.judge = FrechetJudge(data.judge, data.size, data.channels, device) if data.judge else None

    def build(self) -> nn.Module:
        """A model whose last token starts an image and is never predicted."""
        vocabulary, pixels = self.start + 1, self.side**2
        config = self.recipe.model.config(source_vocab=vocabulary, target_vocab=vocabulary, pad=self.start)
        assert isinstance(config, GptConfig)
        if config.positions == "learned" and config.max_length < pixels:
            raise ConfigError(f"an image has {pixels} pixels, but the model {config.max_length} positions; raise "
                              "model.max_length or lower data.size")  # fmt: skip
        return MODELS[self.recipe.model.name].model(config.replace(unpredicted=1, tie=False))

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """The cross-entropy of pixels, the mean over each image."""
        images = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        return self._error(model, self.palette.encode((images * 255).round().to(torch.uint8)))

    def _error(self, model: Forward, tokens: Int[Tensor, "B T"]) -> Loss:
        logits = model(self._shifted(tokens), factored=self.recipe.training.factored(self.device.type))
        total = cross_entropy(logits, tokens, torch.ones_like(tokens, dtype=torch.bool)) / tokens.shape[1]
        return Loss.of(total, len(tokens))

    def _shifted(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        return functional.pad(tokens[:, :-1], (1, 0), value=self.start)

    def save(self, folder: Path) -> None:
        self.palette.save(folder, self.side)

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """Nats per pixel. If the recipe asks for them, also the accuracy of a linear probe, and the Fréchet distance
        between completed images and whole ones."""
        error = torch.zeros((), device=self.device, dtype=torch.float64)
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            error += self._error(model, self.palette.encode(images.pixels(batch))).total
        values = {"loss": error.item() / len(images)}
        if self.recipe.training.probe:
            values["accuracy"] = self._probed(model, images, poll)
        if self.judge is not None:
            values["frechet"] = self._distance(self.judge, model, images.images, poll)
        return values

    def _distance(self, judge: FrechetJudge, model: nn.Module, images: ImageRows, poll: Poll) -> float:
        """The Fréchet distance between whole images and the same ones completed."""
        generator = self._generator(model)
        some = DeviceImages(images.spread(self.recipe.training.validate_pictures), self.device)

        def completed() -> Iterator[Tensor]:
            for batch in some.in_order(AT_ONCE):
                poll()
                yield generator.complete(some.pixels(batch)).to(self.device)

        return judge.distance((some.pixels(batch) for batch in some.in_order(AT_ONCE)), completed())

    def _generator(self, model: nn.Module) -> PixelGenerator:
        assert isinstance(model, Gpt)
        return PixelGenerator(model, self.palette, self.side)

    @torch.inference_mode()
    def finish(self, model: nn.Module, folder: Path) -> None:
        """A sheet of held-out images: the half that was given, four completions, and the whole."""
        images = self.corpus.valid if len(self.corpus.valid) else self.corpus.train
        some = DeviceImages(images.spread(SHOWN), self.device)
        whole = some.pixels(next(some.in_order(SHOWN)))
        given = whole.clone()
        given[:, :, self.side // 2 :] = 0
        generator = self._generator(model)
        ways = [generator.complete(whole, settings=SearchSettings(sample=True, seed=number)) for number in range(WAYS)]
        rows = torch.stack([given.cpu(), *ways, whole.cpu()], dim=1)
        (folder / COMPLETIONS).write_bytes(png(grid(rows.flatten(0, 1), WAYS + 2)))

    def _probed(self, model: nn.Module, images: DeviceImages, poll: Poll) -> float:
        """The accuracy of a linear classifier of the middle layer's features."""
        some = DeviceImages(self.corpus.train.spread(self.recipe.training.probe), self.device)
        known, unknown = (self._features(model, each, poll) for each in (some, images))
        targets = functional.one_hot(some.labels, len(self.corpus.names)).double()
        gram = known.T @ known
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        guessed = (unknown @ torch.linalg.solve(gram, known.T @ targets)).argmax(dim=1)
        return (guessed == images.labels).double().mean().item()

    def _features(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Float[Tensor, "N D"]:
        """The mean over all pixels after the middle layer, with a 1 appended for the intercept."""
        kept: list[Tensor] = []
        assert isinstance(model, Gpt)
        middle = model.decoder[len(model.decoder) // 2]
        with middle.register_forward_hook(lambda _, __, output: kept.append(output.mean(dim=1).double())):
            for batch in images.in_order(self.recipe.training.batch):
                poll()
                model(self._shifted(self.palette.encode(images.pixels(batch))))
        return functional.pad(torch.cat(kept), (0, 1), value=1.0)


CRITIC, GENERATOR = "critic", "generator"
MADE, COLUMNS = "samples.png", 10


class GanTask(LabelledTask):
    """Real images, and a generator that learns to make more of them."""

    divisible = False  # its phases call parts of the model, which DDP and FSDP do not wrap
    recipe: GanRecipe

    @classmethod
    def images(cls, recipe: GanRecipe) -> LabelledCorpus:
        config = planned_config(recipe.model, SaganConfig)
        size, half = config.image_size, (0.5,) * config.channels  # the generator's pixels lie between -1 and 1
        given = Preprocessing(size=(size, size), resize=size, mean=half, std=half)
        return LabelledCorpus(recipe.data, size, config.channels, recipe.seed, given)

    def __init__(self, recipe: GanRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.config = planned_config(recipe.model, SaganConfig)
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
        return self.recipe.training.critic_rate if group == CRITIC else 1.0

    def phases(self, model: Forward, batch: ImageBatch) -> Iterator[tuple[str, Loss]]:
        """The critic judges real and generated images; then the generator makes new ones for it."""
        networks = cast(Sagan, model)  # may be compiled
        labels = self._labels(self.train.labels[batch.rows])
        pixels = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        real = self.corpus.preprocessing.normalise(pixels)
        with torch.no_grad():
            made = model(networks.draw(labels), labels)
        critic = self._critic(model)
        scores = critic(torch.cat([real, made]), labels.repeat(2))  # one call, since each computes the spectral norms
        yield CRITIC, Loss.of(hinge_critic(*scores.chunk(2)), len(labels))
        made = model(networks.draw(labels), labels)
        yield GENERATOR, Loss.of(hinge_generator(critic(made, labels)), len(labels))

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
        (folder / MADE).write_bytes(png(grid(images, COLUMNS)))
