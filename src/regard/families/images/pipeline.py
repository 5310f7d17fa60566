"""Image pipelines: classification, segmentation, and the attention of every head between places of the image."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from regard.data.images.reading import Pixels, Preprocessing, read_image
from regard.errors import CheckpointError, UsageError
from regard.families.images.swin import WindowAttention
from regard.families.images.vit import Vit
from regard.layers.vision import Grid, ImageConfig, Windowed, weights_on_map
from regard.look.neurons import LayerNeurons, record_neurons
from regard.runtime.convert import fast_model, is_on_cpu
from regard.search.pipeline import Labelled, load_for_pipeline

BATCH_IMAGES = 64
DETAIL = 512  # pixels of a side of the displayed image
MAX_PIXEL_CLASSES = 256
ImageSource = str | Path | bytes | Image.Image
Reader = TypeVar("Reader", bound="ImagePipeline")


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer between places of one image, which are counted row by row.

    `extra` tokens (the class token) come before the places. `windows` has the number of the window of each place, if
    attention stays within windows.
    """

    name: str
    weights: Float[np.ndarray, "H Q K"]
    queries: Grid
    keys: Grid
    extra: int = 0
    windows: Int[np.ndarray, Q] | None = None
    neurons: LayerNeurons | None = None


@dataclass(frozen=True)
class ImageAttention:
    """The part of an image [C H W] that the model saw, in full detail, and every recorded layer.

    `in_order`: each place attends only to those before it.
    """

    pixels: Pixels
    layers: list[LayerAttention]
    in_order: bool = False

    def rollout(self) -> Float[np.ndarray, "rows columns"] | None:
        """Attention rollout (Abnar & Zuidema 2020): how much of every place reaches the class token through all layers,
        or all places on average if there is no class token. None if the layers have different sizes, or if places
        attend only to those before them."""
        if self.in_order or not self.layers or len({layer.weights.shape[1:] for layer in self.layers}) > 1:
            return None
        first = self.layers[0]
        if first.weights.shape[1] != first.weights.shape[2]:
            return None
        joint = np.eye(first.weights.shape[1])
        for layer in self.layers:
            mixed = layer.weights.mean(axis=0) + np.eye(len(joint))  # the residual connection keeps half of every token
            joint = (mixed / mixed.sum(axis=1, keepdims=True)) @ joint
        reached = joint[0] if first.extra else joint.mean(axis=0)
        return reached[first.extra :].reshape(first.keys)


@dataclass(frozen=True)
class Segmented:
    """The class of every pixel of an image, by number and by name."""

    mask: UInt8[np.ndarray, "H W"]
    names: tuple[str, ...]

    @property
    def shares(self) -> dict[str, float]:
        """The part of the image that each class covers, largest first; classes that do not occur are left out."""
        counts = np.bincount(self.mask.ravel(), minlength=len(self.names)) / self.mask.size
        return {
            self.names[number]: float(counts[number]) for number in np.argsort(-counts, kind="stable") if counts[number]
        }


class ImagePipeline(ABC):
    """A model that reads images, with its preprocessing."""

    pipeline: ClassVar[str]  # its key in the catalog of pipelines
    cannot: ClassVar[str]  # what models of other pipelines cannot do, for the error message

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, *, name: str = "") -> None:
        assert isinstance(model.config, ImageConfig)
        self.model, self.preprocessing, self.name = model.eval(), preprocessing, name
        self.config: ImageConfig = model.config
        self.device = next(model.parameters()).device
        self.labels = list(self.config.class_names) or [str(number) for number in range(self.config.classes)]

    @classmethod
    def load(cls: type[Reader], folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> Reader:
        """Read a model folder, ours or Hugging Face's."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot=cls.cannot)
        assert isinstance(loaded.config, ImageConfig)
        if loaded.config.channels not in (1, 3):
            raise CheckpointError(f"{folder} reads {loaded.config.channels} channels; files have 1 or 3")
        preprocessing = Preprocessing.load(loaded.folder, loaded.config.image_size, loaded.config.channels)
        return cls(loaded.model, preprocessing, name=Path(folder).name)

    @abstractmethod
    def summary(self, image: ImageSource) -> dict[str, str]:
        """The answer of the model in a few words."""

    @cached_property
    def fast(self) -> nn.Module:
        """The fast version of the model, used unless attention is recorded; made when it is first needed."""
        return fast_model(self.model) if is_on_cpu(self.model) else self.model

    def pixels(self, image: ImageSource) -> Pixels:
        """An image [C H W] at the model's size."""
        return self.preprocessing.pixels(open_image(image))

    @torch.inference_mode()
    def attention(self, image: ImageSource, *, layers: str = "*") -> ImageAttention:
        """Every head of the layers whose names match, as attention between places of the image."""
        if not attention_names(self.model):
            raise UsageError(f"{self.name or 'this model'} has no attention to look at")
        opened = open_image(image)
        read = self.read(opened)
        with (
            record(self.model, layers) as looks,
            _grids(self.model) as grids,
            record_neurons(self.model, layers) as seen,
        ):
            self.model(read)
        aspect = read.shape[2] / read.shape[3]
        found = [layer_attention(name, looks[name].cpu(), self.model, grids, aspect, seen[name]) for name in looks]
        return ImageAttention(self.shown(opened), found)

    def read(self, image: ImageSource) -> Float[Tensor, "1 C H W"]:
        """An image as the model reads it."""
        return self.preprocessing.normalise(torch.from_numpy(self.pixels(image))[None].to(self.device))

    def shown(self, image: ImageSource) -> Pixels:
        """The part of an image that the model sees, in as much detail as there is."""
        return self.preprocessing.in_detail(open_image(image), DETAIL)


class ImageClassifier(ImagePipeline):
    """An image classifier with its preprocessing."""

    pipeline = "image_classifier"
    cannot = "classifies no images"

    def summary(self, image: ImageSource) -> dict[str, str]:
        """The most probable class; of a model without a head, what it yields."""
        if not self.labels:
            return {"vector": f"{self.embed(image).shape[1]} numbers"}
        (answer,) = self.classify(image)
        return {answer.label: f"{answer.probability:.1%}"}

    def classify(self, images: ImageSource | Sequence[ImageSource]) -> list[Labelled]:
        """The classes of every image (a path, the bytes of a file, or a Pillow image), most probable first."""
        if not self.labels:
            raise UsageError(
                f"{self.name or 'this model'} has no head and knows no classes; use `embed` for its vectors"
            )
        answers: list[Labelled] = []
        for pixels in self._batches(images):
            for row in self.probabilities(pixels).tolist():
                ordered = sorted(zip(self.labels, row, strict=True), key=lambda pair: -pair[1])
                answers.append(Labelled(dict(ordered)))
        return answers

    @torch.inference_mode()
    def embed(self, images: ImageSource | Sequence[ImageSource]) -> Float[np.ndarray, "N D"]:
        """A vector of every image: the answer of a model without a head, such as DINOv2."""
        if self.labels:
            raise UsageError(f"{self.name or 'this model'} has a head, so its answer is classes; use `classify`")
        found = [self.fast(self.preprocessing.normalise(each.to(self.device))) for each in self._batches(images)]
        return torch.cat(found).float().cpu().numpy()

    def _batches(self, images: ImageSource | Sequence[ImageSource]) -> Iterator[UInt8[Tensor, "B C H W"]]:
        several = [images] if isinstance(images, ImageSource) else images
        for begin in range(0, len(several), BATCH_IMAGES):
            yield torch.from_numpy(np.stack([self.pixels(each) for each in several[begin : begin + BATCH_IMAGES]]))

    @torch.inference_mode()
    def probabilities(self, pixels: Tensor) -> Float[Tensor, "B classes"]:
        """The class probabilities of images of bytes [B C H W] at the model's size."""
        logits: Tensor = self.fast(self.preprocessing.normalise(pixels.to(self.device)))
        return logits.float().softmax(dim=-1).cpu()


class ImageSegmenter(ImagePipeline):
    """A segmentation model with its preprocessing; images are resized to its size without cropping."""

    pipeline = "image_segmenter"
    cannot = "segments no images"

    def __init__(self, model: nn.Module, preprocessing: Preprocessing, *, name: str = "") -> None:
        super().__init__(model, preprocessing.replace(resize=preprocessing.size), name=name)
        if len(self.labels) > MAX_PIXEL_CLASSES:
            raise UsageError(
                f"{name} knows {len(self.labels)} classes; a mask is made of bytes, for {MAX_PIXEL_CLASSES}"
            )

    def summary(self, image: ImageSource) -> dict[str, str]:
        """The part of the image that each class covers."""
        return {name: f"{share:.0%}" for name, share in self.segment(image)[0].shares.items()}

    @torch.inference_mode()
    def segment(self, images: ImageSource | Sequence[ImageSource]) -> list[Segmented]:
        """The class of every pixel of every image (a path, the bytes of a file, or a Pillow image), at its own size."""
        several = [images] if isinstance(images, ImageSource) else images
        found: list[Segmented] = []
        for each in several:
            image = open_image(each)
            pixels = torch.from_numpy(self.pixels(image))[None].to(self.device)
            logits: Tensor = self.fast(self.preprocessing.normalise(pixels)).float()
            mask = _best_classes(logits, (image.height, image.width)).to(torch.uint8).cpu().numpy()
            found.append(Segmented(mask, tuple(self.labels)))
        return found


def open_image(image: ImageSource) -> Image.Image:
    """The image of a file or of its bytes."""
    if isinstance(image, str | Path):
        return read_image(Path(image))
    return read_image(image) if isinstance(image, bytes) else image


def _best_classes(logits: Float[Tensor, "1 classes h w"], size: tuple[int, int]) -> Int[Tensor, "H W"]:
    """The most probable class of every pixel of a larger map. Classes are resized one by one to save memory."""
    most = torch.full(size, -math.inf, device=logits.device)
    best = torch.zeros(size, dtype=torch.long, device=logits.device)
    for number in range(logits.shape[1]):
        one = functional.interpolate(logits[:, number : number + 1], size=size, mode="bilinear")[0, 0]
        better = one > most
        best[better], most = number, torch.maximum(most, one)
    return best


@contextmanager
def _grids(model: nn.Module) -> Iterator[dict[str, Grid]]:
    """Records the sizes of the maps that pass through modules with windows, by the names of these modules."""
    grids: dict[str, Grid] = {}

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        tokens = isinstance(module, WindowAttention)

        def hook(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows, columns = args[0].shape[1:3] if tokens else args[0].shape[2:]
            grids[name] = (rows, columns)

        return module.register_forward_pre_hook(hook)

    windowed = {name for name, module in model.named_modules() if isinstance(module, Windowed)}
    handles = [watch(name, model.get_submodule(name)) for name in windowed]
    try:
        yield grids
    finally:
        for handle in handles:
            handle.remove()


def layer_attention(
    name: str,
    weights: Float[Tensor, "BN H T Tk"],
    model: nn.Module,
    grids: dict[str, Grid],
    aspect: float = 1.0,
    neurons: LayerNeurons | None = None,
) -> LayerAttention:
    """Recorded weights as attention between places of one image, whose height is `aspect` times its width."""
    windowed = next((path for path in grids if name == path or name.startswith(f"{path}.")), None)
    if windowed is None:
        queries, extra = _map_sides(weights.shape[2], aspect, _extra_tokens(model, name))
        keys, _ = _map_sides(weights.shape[3], aspect, extra)
        return LayerAttention(name, weights[0].float().numpy(), queries, keys, extra, neurons=neurons)
    grid, module = grids[windowed], model.get_submodule(windowed)
    assert isinstance(module, Windowed)
    cells = grid[0] * grid[1]
    queries_of, keys_of = module.windows(grid)
    whole = weights_on_map(weights.float(), queries_of, keys_of, cells)[0].numpy()
    windows = np.empty(cells + 1, dtype=np.int64)  # the last entry takes the padding
    windows[queries_of.numpy()] = np.arange(len(queries_of))[:, None]
    if neurons is not None:
        neurons = replace(neurons, cells=(queries_of.numpy(), keys_of.numpy()))
    return LayerAttention(name, whole, grid, grid, windows=windows[:cells], neurons=neurons)


def _extra_tokens(model: nn.Module, layer: str) -> int | None:
    """The tokens before the places of a map, if the layer belongs to a model that knows their number."""
    owners = [model.get_submodule(layer[:end]) for end, letter in enumerate(layer) if letter == "."]
    return next((owner.extra_tokens for owner in (model, *owners) if isinstance(owner, Vit)), None)


def _map_sides(tokens: int, aspect: float, extra: int | None = None) -> tuple[Grid, int]:
    """The sides of a map with this many tokens and the shape of the image, and the tokens before its places: 0 or 1."""
    for before in (0, 1) if extra is None else (extra,):
        places = tokens - before
        rows = round(math.sqrt(places * aspect))
        if rows and places % rows == 0 and round(rows / aspect) == places // rows:
            return (rows, places // rows), before
    shape = "square map" if aspect == 1 else f"map of the image's shape (height by width {aspect:.2f})"
    raise UsageError(f"{tokens} tokens are no {shape}, so they cannot be laid over the image")
