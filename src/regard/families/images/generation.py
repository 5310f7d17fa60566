"""Image generators: autoregressive models continue the upper part of an image pixel by pixel, with the same search as
texts; adversarial networks make images from random numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from regard.attention import record
from regard.checkpoints import load_model
from regard.data.images.files import PREPROCESSING
from regard.data.images.reading import Pixels, Preprocessing
from regard.device import find_device
from regard.errors import CheckpointError, UsageError, with_article
from regard.families.images.pipeline import ImageAttention, ImageSource, layer_attention, open_image
from regard.families.images.sagan import Sagan
from regard.families.language.gpt import Gpt
from regard.runtime.convert import fast_model
from regard.search.protocols import TokenSourceModel
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_prompt

ROUNDS = 30


SAMPLE = 100_000  # the most pixels that k-means uses


class Palette:
    """Numbered colours. An image is encoded as the colour numbers of its pixels, row by row."""

    def __init__(self, colours: Float[Tensor, "K C"]) -> None:
        self.colours = colours  # 0 to 255

    def __len__(self) -> int:
        return len(self.colours)

    @property
    def channels(self) -> int:
        return self.colours.shape[1]

    @classmethod
    def fit(cls, pixels: NDArray[np.uint8], count: int, seed: int) -> Palette:
        """At most `count` colours for pixels [N C], ordered from dark to light."""
        rng = np.random.default_rng(seed)
        some = pixels[rng.permutation(len(pixels))[:SAMPLE]].astype(np.float64)
        different, weights = np.unique(some, axis=0, return_counts=True)
        centres = _far_apart(different, min(count, len(different)), rng)
        for _ in range(ROUNDS):
            nearest = _distances(different, centres).argmin(axis=1)
            for number in range(len(centres)):
                if (mine := nearest == number).any():
                    centres[number] = np.average(different[mine], axis=0, weights=weights[mine])
        return cls(torch.from_numpy(centres[centres.sum(axis=1).argsort()]).float())

    def encode(self, pixels: UInt8[Tensor, "B C H W"]) -> Int[Tensor, "B T"]:
        """The number of the nearest colour of every pixel."""
        flat = pixels.flatten(2).transpose(1, 2).float()
        return torch.cdist(flat, self.colours.to(pixels.device)).argmin(dim=2)

    def decode(self, tokens: Int[Tensor, "B T"], side: int) -> UInt8[Tensor, "B C H W"]:
        """Images in the palette's colours: the inverse of `encode`."""
        pixels = self.colours.to(tokens.device)[tokens].round().to(torch.uint8)
        return pixels.transpose(1, 2).unflatten(2, (side, side))

    def save(self, folder: Path, side: int) -> None:
        """Write `preprocessor_config.json` as Hugging Face's ImageGPT does: colours from -1 to 1."""
        values = {
            "image_processor_type": "ImageGPTImageProcessor",
            "clusters": (self.colours / 127.5 - 1).tolist(),
            "do_resize": True,
            "size": {"height": side, "width": side},
            "resample": 2,
            "do_normalize": True,
            "do_color_quantize": True,
        }
        (folder / PREPROCESSING).write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> tuple[Palette, int]:
        """The palette of a folder, and the side of its images."""
        path = folder / PREPROCESSING
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            colours = (torch.tensor(values["clusters"]) + 1) * 127.5
            return cls(colours), int(values["size"]["height"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} holds no palette of colours ({error!r})") from None


def _distances(points: NDArray[np.float64], centres: NDArray[np.float64]) -> NDArray[np.float64]:
    return ((points[:, None, :] - centres[None, :, :]) ** 2).sum(axis=2)


def _far_apart(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Initial centres, each drawn in proportion to its squared distance from those before (Arthur 2007, k-means++)."""
    chosen = [points[rng.integers(len(points))]]
    while len(chosen) < count:
        far = _distances(points, np.array(chosen)).min(axis=1)
        chosen.append(points[rng.choice(len(points), p=far / far.sum())])
    return np.array(chosen)


class PixelGenerator:
    """A language model of colours with its palette: it generates images pixel by pixel, row by row."""

    pipeline: ClassVar[str] = "pixel_generator"

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

    pipeline: ClassVar[str] = "image_generator"

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
