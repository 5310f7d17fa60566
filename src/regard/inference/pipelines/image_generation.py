"""Image generators: autoregressive models continue the upper part of an image pixel by pixel, with the same search as
texts; adversarial networks make images from random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.nn import functional

from regard.attention import record
from regard.checkpoints import load_model
from regard.data.images.palette import Palette
from regard.data.images.reading import Pixels, Preprocessing
from regard.device import find_device
from regard.errors import CheckpointError, UsageError, with_article
from regard.inference.decoding.protocols import TokenSourceModel
from regard.inference.decoding.search import search
from regard.inference.decoding.settings import SearchSettings, Vocabulary
from regard.inference.decoding.start import from_prompt
from regard.inference.fast.convert import fast_model
from regard.inference.pipelines.images import ImageAttention, ImageSource, layer_attention, open_image
from regard.models.gpt import Gpt
from regard.models.sagan import Sagan


class PixelGenerator:
    """A language model of colours with its palette: it generates images pixel by pixel, row by row."""

    def __init__(self, model: Gpt, palette: Palette, side: int, *, name: str = "") -> None:
        self.model, self.palette, self.side, self.name = model.eval(), palette, side, name
        self.start, self.device = len(palette), next(model.parameters()).device
        zeros, ones = (0.0,) * palette.channels, (1.0,) * palette.channels
        self.preprocessing = Preprocessing(size=(side, side), resize=side, mean=zeros, std=ones)
        self.decoder = cast(TokenSourceModel, fast_model(self.model))
        if model.config.vocab != self.start + 1:
            raise CheckpointError(
                f"{name or 'this model'} knows {model.config.vocab} tokens; {self.start} colours need one more"
            )

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> PixelGenerator:
        """Read a model folder, ours or Hugging Face's."""
        loaded = load_model(Path(folder), find_device(device), allow_pickle)
        if not isinstance(loaded.model, Gpt):
            raise UsageError(f"{folder} is {with_article(loaded.name)} model, which generates no pixels")
        palette, side = Palette.load(loaded.folder)
        return cls(loaded.model, palette, side, name=Path(folder).name)

    @torch.inference_mode()
    def paint(
        self,
        image: str | Path | None = None,
        *,
        keep: float = 0.5,
        count: int = 1,
        settings: SearchSettings | None = None,
    ) -> UInt8[Tensor, "N C H W"]:
        """`count` images that share the upper part (`keep` of the rows) of a given one, or start from nothing."""
        chosen = (settings or SearchSettings(sample=True)).replace(n_best=count)
        return self._continued(self._known(Path(image) if image is not None else None)[None], keep, chosen)

    @torch.inference_mode()
    def complete(
        self, images: UInt8[Tensor, "N C H W"], *, keep: float = 0.5, settings: SearchSettings | None = None
    ) -> UInt8[Tensor, "N C H W"]:
        """N images with their lower parts generated anew; `keep` of their rows stay as they are."""
        known = self.palette.encode(images.to(self.device))
        return self._continued(known, keep, (settings or SearchSettings(sample=True)).replace(n_best=1))

    def _continued(self, known: Int[Tensor, "S T"], keep: float, settings: SearchSettings) -> UInt8[Tensor, "N C H W"]:
        """All completions of the first image, then those of the next."""
        if not 0 <= keep <= 1:
            raise UsageError(f"the part to keep is {keep}; it must lie between 0 and 1")
        known = known[:, : int(keep * self.side) * self.side]
        missing = self.side**2 - known.shape[1]
        if not missing:
            return self.palette.decode(known.repeat_interleave(settings.n_best, 0), self.side)
        source = functional.pad(known, (1, 0), value=self.start)
        settings = settings.replace(max_length=missing)
        start = from_prompt(self.decoder, source, torch.ones_like(source, dtype=torch.bool), settings)
        found = search(self.decoder, start, settings, Vocabulary(self.start, self.start, self.start))
        generated = [[*above, *each.tokens] for above, answers in zip(known.tolist(), found, strict=True)
                   for each in answers]  # fmt: skip
        return self.palette.decode(torch.tensor(generated), self.side)

    @torch.inference_mode()
    def attention(self, image: str | Path, *, layers: str = "*") -> ImageAttention:
        """The attention of every pixel of an image to the pixels before it; the share of the start token is left
        out."""
        pixels = self._known(Path(image))
        with record(self.model, layers) as looks:
            self.model(functional.pad(pixels[None, :-1], (1, 0), value=self.start))
        seen = {name: functional.pad(looks[name][..., 1:].cpu(), (0, 1)) for name in looks}  # key 0 is the start token
        found = [layer_attention(name, weights, self.model, {}) for name, weights in seen.items()]
        return ImageAttention(self.palette.decode(pixels[None], self.side)[0].cpu().numpy(), found, in_order=True)

    def pixels(self, image: ImageSource) -> Pixels:
        """An image [C H W] at the model's size."""
        return self.preprocessing.pixels(open_image(image))

    def _known(self, image: Path | None) -> Tensor:
        if image is None:
            return torch.empty(0, dtype=torch.long, device=self.device)
        return self.palette.encode(torch.from_numpy(self.pixels(image))[None].to(self.device))[0]


class ClassImageGenerator:
    """A generative adversarial network that makes images of given classes."""

    def __init__(self, model: Sagan, *, name: str = "") -> None:
        self.model, self.name, self.config = model.eval(), name, model.config
        self.device = next(model.parameters()).device
        self.labels = list(self.config.class_names) or [str(number) for number in range(self.config.classes)]
        half = (0.5,) * self.config.channels
        self.preprocessing = Preprocessing(size=(self.config.image_size,) * 2, mean=half, std=half)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> ClassImageGenerator:
        """Read a model folder."""
        loaded = load_model(Path(folder), find_device(device), allow_pickle)
        if not isinstance(loaded.model, Sagan):
            raise UsageError(f"{folder} is {with_article(loaded.name)} model, which generates no images of classes")
        return cls(loaded.model, name=Path(folder).name)

    @torch.inference_mode()
    def make(self, labels: Sequence[str], *, seed: int = 0) -> UInt8[Tensor, "N C H W"]:
        """One image for each label; the same seed makes the same images."""
        numbers = torch.tensor([self._number(label) for label in labels], device=self.device)
        latent = self.model.draw(numbers, torch.Generator().manual_seed(seed))
        return self.preprocessing.restored(self.model(latent, numbers)).cpu()

    def attention(self, label: str, *, seed: int = 0) -> ImageAttention:
        """The image of a label, and the attention between its places in the generator."""
        if self.model.generator.look is None:
            raise UsageError(f"{self.name or 'this model'} has no attention to look at")
        with record(self.model, "generator.*") as looks:
            (pixels,) = self.make([label], seed=seed)
        return ImageAttention(
            pixels.numpy(), [layer_attention(name, looks[name].cpu(), self.model, {}) for name in looks]
        )

    def _number(self, label: str) -> int:
        if label not in self.labels:
            raise UsageError(f"{self.name or 'this model'} has no class {label!r}; it has {', '.join(self.labels)}")
        return self.labels.index(label) if self.config.conditional else 0
