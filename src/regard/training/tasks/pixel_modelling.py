"""A picture as a text of colours: every next pixel, row by row (Chen et al. 2020, iGPT), and what its middle knows.

The probe is a linear least-squares classifier with a little ridge on the mean features of the middle layer, where the
paper fits a logistic regression: it needs no learning rate and no epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import ImageBatch
from regard.data.images.palette import SAMPLE, Palette
from regard.data.images.reading import grid, png
from regard.errors import ConfigError, DataError
from regard.inference.decoding.settings import SearchSettings
from regard.inference.pipelines.image_generation import PixelGenerator
from regard.models.catalog import MODELS
from regard.models.gpt import Gpt, GptConfig
from regard.training.evaluation.frechet_distance import Judge
from regard.training.losses import Loss, cross_entropy
from regard.training.prepare.images import ImagePreparation, OnDevice, Pictures
from regard.training.recipe.recipes import PixelsRecipe
from regard.training.safeguards import Poll
from regard.training.tasks.supervised import SupervisedTask

RIDGE = 1e-2  # times the mean square of the features
AT_ONCE = 250  # pictures that are painted together
SHEET, SHOWN, WAYS = "completions.png", 10, 4


class Pixels(SupervisedTask[ImageBatch]):
    """Pictures whose every pixel is predicted from those before it."""

    def __init__(self, recipe: PixelsRecipe, folder: Path, device: torch.device, poll: Poll) -> None:
        self.recipe, self.device = recipe, device
        data = recipe.data
        self.corpus = ImagePreparation(data, data.size, data.channels, recipe.seed).corpus(folder, poll)
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError("there is no picture for validation; set some aside with data.split, or give data.valid")
        self.train, self.valid = OnDevice(self.corpus.train, device), OnDevice(self.corpus.valid, device)
        found = Palette.fit(_some_pixels(self.corpus.train), data.colours, recipe.seed)
        self.palette = Palette(found.colours.to(device))  # once, not in every step
        self.start, self.side = len(self.palette), data.size
        self.summary = f"{self.corpus.summary}; from {data.train}; in {len(self.palette)} colours"
        self.loader = self.corpus.loader(recipe.augmentation, recipe.training, recipe.seed, device)
        self.judge = Judge(data.judge, data.size, data.channels, device) if data.judge else None

    def build(self) -> nn.Module:
        """A model whose last token starts a picture and is never predicted."""
        vocabulary, pixels = self.start + 1, self.side**2
        config = self.recipe.model.config(source_vocab=vocabulary, target_vocab=vocabulary, pad=self.start)
        assert isinstance(config, GptConfig)
        if config.positions == "learned" and config.max_length < pixels:
            raise ConfigError(f"a picture has {pixels} pixels, but the model {config.max_length} positions; raise "
                              "model.max_length or lower data.size")  # fmt: skip
        return MODELS[self.recipe.model.name].model(config.replace(unpredicted=1, tie=False))

    def loss(self, model: Callable[..., Any], batch: ImageBatch) -> Loss:
        """The cross-entropy of a pixel, the mean of each picture."""
        images = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws).images
        return self._error(model, self.palette.encode((images * 255).round().to(torch.uint8)))

    def _error(self, model: Callable[..., Any], tokens: Int[Tensor, "B T"]) -> Loss:
        logits = model(self._shifted(tokens), factored=self.recipe.training.factored(self.device.type))
        total = cross_entropy(logits, tokens, torch.ones_like(tokens, dtype=torch.bool)) / tokens.shape[1]
        return Loss(total, torch.full((), len(tokens), device=self.device))

    def _shifted(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        return functional.pad(tokens[:, :-1], (1, 0), value=self.start)

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """Nats per pixel; where the recipe asks for them, the accuracy of a linear probe, and how far pictures whose
        lower halves were painted anew are from whole ones."""
        return self._measured(model, self.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same on the test pictures; nothing where the recipe has none."""
        part = self.corpus.test
        return self._measured(model, OnDevice(part, self.device), poll) if len(part) else {}

    def save(self, folder: Path) -> None:
        """Put the palette beside the weights."""
        self.palette.save(folder, self.side)

    @torch.inference_mode()
    def _measured(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> dict[str, float]:
        error = torch.zeros((), device=self.device, dtype=torch.float64)
        for batch in pictures.in_order(self.recipe.training.batch):
            poll()
            error += self._error(model, self.palette.encode(pictures.pixels(batch))).total
        values = {"loss": error.item() / len(pictures.pictures)}
        if self.recipe.training.probe:
            values["accuracy"] = self._probed(model, pictures, poll)
        if self.judge is not None:
            values["frechet"] = self._distance(self.judge, model, pictures.pictures, poll)
        return values

    def _distance(self, judge: Judge, model: nn.Module, pictures: Pictures, poll: Poll) -> float:
        """Between whole pictures and the same ones completed."""
        painter = self._painter(model)
        some = OnDevice(pictures.spread(self.recipe.training.validate_pictures), self.device)

        def completed() -> Iterator[Tensor]:
            for batch in some.in_order(AT_ONCE):
                poll()
                yield painter.complete(some.pixels(batch)).to(self.device)

        return judge.distance((some.pixels(batch) for batch in some.in_order(AT_ONCE)), completed())

    def _painter(self, model: nn.Module) -> PixelGenerator:
        assert isinstance(model, Gpt)
        return PixelGenerator(model, self.palette, self.side)

    @torch.inference_mode()
    def finish(self, model: nn.Module, folder: Path) -> None:
        """A sheet of pictures that were set aside: the half that was given, four ways to go on, and the whole."""
        pictures = self.corpus.valid if len(self.corpus.valid) else self.corpus.train
        some = OnDevice(pictures.spread(SHOWN), self.device)
        whole = some.pixels(next(some.in_order(SHOWN)))
        given = whole.clone()
        given[:, :, self.side // 2 :] = 0
        painter = self._painter(model)
        ways = [painter.complete(whole, settings=SearchSettings(sample=True, seed=number)) for number in range(WAYS)]
        rows = torch.stack([given.cpu(), *ways, whole.cpu()], dim=1)
        (folder / SHEET).write_bytes(png(grid(rows.flatten(0, 1), WAYS + 2)))

    def _probed(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> float:
        """How many pictures a linear classifier of the middle layer's features tells right."""
        some = OnDevice(self.corpus.train.spread(self.recipe.training.probe), self.device)
        known, unknown = (self._features(model, each, poll) for each in (some, pictures))
        targets = functional.one_hot(some.labels, len(self.corpus.names)).double()
        gram = known.T @ known
        gram.diagonal().add_(RIDGE * gram.diagonal().mean())
        guessed = (unknown @ torch.linalg.solve(gram, known.T @ targets)).argmax(dim=1)
        return (guessed == pictures.labels).double().mean().item()

    def _features(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> Float[Tensor, "N D"]:
        """The mean over all pixels after the middle layer, and a one."""
        kept: list[Tensor] = []
        assert isinstance(model, Gpt)
        middle = model.decoder[len(model.decoder) // 2]
        hook = middle.register_forward_hook(lambda _, __, output: kept.append(output.mean(dim=1).double()))
        try:
            for batch in pictures.in_order(self.recipe.training.batch):
                poll()
                model(self._shifted(self.palette.encode(pictures.pixels(batch))))
        finally:
            hook.remove()
        return functional.pad(torch.cat(kept), (0, 1), value=1.0)


def _some_pixels(pictures: Pictures) -> np.ndarray:
    """Pixels [N C] of pictures spread over the set."""
    enough = pictures.rows[:: max(1, len(pictures) * pictures.store.pixels[0, 0].size // (4 * SAMPLE))]
    pixels = pictures.store.pixels[enough]
    return pixels.transpose(0, 2, 3, 1).reshape(-1, pixels.shape[1])
