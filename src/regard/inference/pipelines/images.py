"""Picture in, its classes or those of its pixels out, and where the model looked: every layer and head as attention
between places."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import record
from regard.attention.record import attention_names
from regard.checkpoints import load_model
from regard.data.images.reading import Pixels, Preprocessing, read_image
from regard.device import find_device
from regard.errors import CheckpointError, UsageError
from regard.inference.fast.convert import fast_model, is_on_cpu
from regard.inference.pipelines.text_encoder import Labelled
from regard.layers.vision import Grid, ImageConfig, on_the_map
from regard.layers.windows import WindowAttention
from regard.models.catalog import models_run_by

AT_ONCE = 64  # pictures
DETAIL = 512  # pixels of a side that is shown
MOST_CLASSES = 256  # of pixels
Picture = str | Path | bytes | Image.Image
Reader = TypeVar("Reader", bound="PictureReader")


@dataclass(frozen=True)
class MapAttention:
    """One attention layer on one picture: who looks at whom, places counted row by row.

    `extra` tokens (the class token) come before the places. `windows` numbers the window each place was in where
    attention stays within windows.
    """

    name: str
    weights: Float[np.ndarray, "H Q K"]
    queries: Grid
    keys: Grid
    extra: int = 0
    windows: Int[np.ndarray, Q] | None = None


@dataclass(frozen=True)
class PictureAttention:
    """The part of a picture [C H W] that the model saw, in finer pixels where the file has them, and every recorded
    layer; `in_order`: each place saw only those before it."""

    pixels: Pixels
    layers: list[MapAttention]
    in_order: bool = False

    def rollout(self) -> Float[np.ndarray, "rows columns"] | None:
        """How much of every place reaches the class token through all layers (Abnar & Zuidema 2020), or all places on
        average where there is none; None where the layers are of different sizes, so that they cannot be multiplied, or
        where no place sees them all."""
        if self.in_order or not self.layers or len({layer.weights.shape[1:] for layer in self.layers}) > 1:
            return None
        first = self.layers[0]
        if first.weights.shape[1] != first.weights.shape[2]:
            return None
        joint = np.eye(first.weights.shape[1])
        for layer in self.layers:
            mixed = layer.weights.mean(axis=0) + np.eye(len(joint))  # half of what a token is stays its own
            joint = (mixed / mixed.sum(axis=1, keepdims=True)) @ joint
        reached = joint[0] if first.extra else joint.mean(axis=0)
        return reached[first.extra :].reshape(first.keys)


@dataclass(frozen=True)
class Segmented:
    """The class of every pixel of a picture, by number and by name."""

    mask: UInt8[np.ndarray, "H W"]
    names: tuple[str, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The part of the picture that each class covers, largest first, without those that are not there."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.names)) / self.mask.size
        return {
            self.names[number]: float(counts[number]) for number in np.argsort(-counts, kind="stable") if counts[number]
        }


class PictureReader(ABC):
    """A model that looks at pictures, with its preprocessing."""

    pipeline: ClassVar[str]  # its key in the catalog of pipelines
    cannot: ClassVar[str]  # what models of other pipelines do not do

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, *, name: str = "") -> None:
        assert isinstance(model.config, ImageConfig)
        self.model, self.preprocessing, self.name = model.eval(), preprocessing, name
        self.config: ImageConfig = model.config
        self.device = next(model.parameters()).device
        self.labels = list(self.config.class_names) or [str(number) for number in range(self.config.classes)]

    @classmethod
    def load(cls: type[Reader], folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> Reader:
        """Read a model folder, ours or Hugging Face's."""
        loaded = load_model(Path(folder), find_device(device), allow_pickle)
        if loaded.name not in (expected := models_run_by(cls.pipeline)):
            raise UsageError(f"{folder} is a {loaded.name} model, which {cls.cannot}; expected {' or '.join(expected)}")
        assert isinstance(loaded.config, ImageConfig)
        if loaded.config.channels not in (1, 3):
            raise CheckpointError(f"{folder} reads {loaded.config.channels} channels; files have 1 or 3")
        preprocessing = Preprocessing.load(loaded.folder, loaded.config.image_size, loaded.config.channels)
        return cls(loaded.model, preprocessing, name=Path(folder).name)

    @abstractmethod
    def said(self, picture: Picture) -> dict[str, str]:
        """What the model takes a picture for, in a few words."""

    @cached_property
    def form(self) -> nn.Module:
        """What the model is run by where nobody watches; made when it is first needed, since it takes memory."""
        return fast_model(self.model) if is_on_cpu(self.model) else self.model

    def pixels(self, picture: Picture) -> Pixels:
        """A picture [C H W] at the model's size."""
        return self.preprocessing.pixels(opened(picture))

    @torch.inference_mode()
    def attention(self, picture: Picture, *, layers: str = "*") -> PictureAttention:
        """Every head of the layers whose names match, as attention between places of the picture."""
        if not attention_names(self.model):
            raise UsageError(f"{self.name or 'this model'} has no attention to look at")
        image = opened(picture)
        pixels = torch.from_numpy(self.pixels(image))[None].to(self.device)
        with record(self.model, layers) as looks, _grids(self.model) as grids:
            self.model(self.preprocessing.normalise(pixels))
        found = [on_the_picture(name, looks[name].cpu(), self.model, grids) for name in looks]
        return PictureAttention(self.shown(image), found)

    def shown(self, picture: Picture) -> Pixels:
        """The part of a picture that the model sees, in as much detail as there is."""
        return self.preprocessing.in_detail(opened(picture), DETAIL)


class ImageClassifier(PictureReader):
    """A classifier of pictures with its preprocessing."""

    pipeline = "image_classifier"
    cannot = "classifies no pictures"

    def said(self, picture: Picture) -> dict[str, str]:
        """The most probable class."""
        (answer,) = self.classify(picture)
        return {answer.label: f"{answer.probability:.1%}"}

    def classify(self, pictures: Picture | Sequence[Picture]) -> list[Labelled]:
        """The classes of every picture (a path, the bytes of a file, or a Pillow image), most probable first."""
        several = [pictures] if isinstance(pictures, Picture) else pictures
        answers: list[Labelled] = []
        for begin in range(0, len(several), AT_ONCE):
            pixels = np.stack([self.pixels(each) for each in several[begin : begin + AT_ONCE]])
            for row in self.probabilities(torch.from_numpy(pixels)).tolist():
                ordered = sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1])
                answers.append(Labelled(dict(ordered)))
        return answers

    @torch.inference_mode()
    def probabilities(self, pixels: Tensor) -> Float[Tensor, "B classes"]:
        """Of pictures [B C H W] of bytes at the model's size."""
        logits: Tensor = self.form(self.preprocessing.normalise(pixels.to(self.device)))
        return logits.float().softmax(dim=-1).cpu()


class ImageSegmenter(PictureReader):
    """A model that names every pixel, with its preprocessing; pictures are squeezed to its size, not cut."""

    pipeline = "image_segmenter"
    cannot = "names no pixels"

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, *, name: str = "") -> None:
        super().__init__(model, preprocessing.replace(resize=preprocessing.size), name=name)
        if len(self.labels) > MOST_CLASSES:
            raise UsageError(f"{name} knows {len(self.labels)} classes; a mask is made of bytes, for {MOST_CLASSES}")

    def said(self, picture: Picture) -> dict[str, str]:
        """The part of the picture that each class covers."""
        return {name: f"{share:.0%}" for name, share in self.segment(picture)[0].shares.items()}

    @torch.inference_mode()
    def segment(self, pictures: Picture | Sequence[Picture]) -> list[Segmented]:
        """The class of every pixel of every picture (a path, the bytes of a file, or a Pillow image), at its size."""
        several = [pictures] if isinstance(pictures, Picture) else pictures
        found: list[Segmented] = []
        for picture in several:
            image = opened(picture)
            pixels = torch.from_numpy(self.pixels(image))[None].to(self.device)
            logits: Tensor = self.form(self.preprocessing.normalise(pixels)).float()
            mask = _best(logits, (image.height, image.width)).to(torch.uint8).cpu().numpy()
            found.append(Segmented(mask, tuple(self.labels)))
        return found


def opened(picture: Picture) -> Image.Image:
    """The picture of a file or of its bytes."""
    if isinstance(picture, str | Path):
        return read_image(Path(picture))
    return read_image(picture) if isinstance(picture, bytes) else picture


def _best(logits: Float[Tensor, "1 classes h w"], size: tuple[int, int]) -> Int[Tensor, "H W"]:
    """The class with the largest logit at every pixel of a larger map; one class is enlarged at a time, for memory."""
    most = torch.full(size, -math.inf, device=logits.device)
    best = torch.zeros(size, dtype=torch.long, device=logits.device)
    for number in range(logits.shape[1]):
        one = functional.interpolate(logits[:, number : number + 1], size=size, mode="bilinear")[0, 0]
        better = one > most
        best[better], most = number, torch.maximum(most, one)
    return best


@contextmanager
def _grids(model: nn.Module) -> Iterator[dict[str, Grid]]:
    """The sizes of the maps that passed through modules which cut them into windows, by their names."""
    grids: dict[str, Grid] = {}

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        tokens = isinstance(module, WindowAttention)

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows, columns = args[0].shape[1:3] if tokens else args[0].shape[2:]
            grids[name] = (rows, columns)

        return module.register_forward_pre_hook(hook)

    handles = [watch(name, module) for name, module in model.named_modules() if hasattr(module, "windows")]
    try:
        yield grids
    finally:
        for handle in handles:
            handle.remove()


def on_the_picture(
    name: str, weights: Float[Tensor, "BN H T Tk"], model: nn.Module, grids: dict[str, Grid]
) -> MapAttention:
    """Recorded weights as attention between places of one picture."""
    cutter = next((path for path in grids if name == path or name.startswith(f"{path}.")), None)
    if cutter is None:
        queries, extra = _square(weights.shape[2])
        keys, _ = _square(weights.shape[3], extra)
        return MapAttention(name, weights[0].float().numpy(), queries, keys, extra)
    grid = grids[cutter]
    cells = grid[0] * grid[1]
    who, whom = model.get_submodule(cutter).windows(grid)  # type: ignore[operator]
    whole = on_the_map(weights.float(), who, whom, cells)[0].numpy()
    windows = np.empty(cells + 1, dtype=np.int64)  # the last takes the padding
    windows[who.numpy()] = np.arange(len(who))[:, None]
    return MapAttention(name, whole, grid, grid, windows=windows[:cells])


def _square(tokens: int, extra: int | None = None) -> tuple[Grid, int]:
    """The sides of a square map of so many tokens, and how many tokens come before its places: none or one."""
    for before in (0, 1) if extra is None else (extra,):
        side = math.isqrt(tokens - before)
        if side**2 == tokens - before and side:
            return (side, side), before
    raise UsageError(f"{tokens} tokens are no square map, so that they cannot be laid over the picture")
