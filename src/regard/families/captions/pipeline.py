"""Images in, captions out, and where the model looked at every word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import record
from regard.attention.record import attention_names
from regard.data.images.reading import Pixels, Preprocessing
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError
from regard.families.images.pipeline import BATCH_IMAGES, DETAIL, ImageSource, open_image
from regard.look.neurons import LayerNeurons, record_neurons
from regard.search.pipeline import load_for_pipeline
from regard.search.protocols import ImageSourceModel
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings, Vocabulary, read_decoding
from regard.search.speculative import decoding_model
from regard.search.start import from_images


def caption_vocabulary(tokenizer: TextTokenizer) -> Vocabulary:
    """The special tokens of captions; the padding token begins every one."""
    assert tokenizer.end is not None
    return Vocabulary(tokenizer.pad, tokenizer.end, tokenizer.pad)


def write_captions(
    model: Any, images: Float[Tensor, "S C H W"], settings: SearchSettings, tokenizer: TextTokenizer
) -> list[list[Hypothesis]]:
    """The best captions of each image."""
    vocabulary, settings = caption_vocabulary(tokenizer), settings.without(tokenizer.only_unknown)
    start = from_images(cast(ImageSourceModel, model), images, settings, vocabulary.start)
    return search(cast(ImageSourceModel, model), start, settings, vocabulary)


CROSS = "decoder*cross"
DRAWN = "drawn"  # in the name of the weights of a hard reading, beside those that it draws from


@dataclass(frozen=True)
class Caption:
    """One caption: its text, its score, and whether it ended by itself."""

    text: str
    score: float
    finished: bool
    ids: list[int] = field(repr=False)
    alternatives: list[Caption] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "score": self.score, "finished": self.finished}


@dataclass(frozen=True)
class CaptionAttention:
    """Where a captioner looked while it wrote the tokens of a caption.

    `weights` are those of every layer with cross-attention, [heads, tokens, cells], the cells row by row. A hard
    reading has a second entry of one-hot weights, whose name ends with `drawn`. `gates` are β of every token.
    """

    pixels: Pixels
    tokens: list[str]
    grid: tuple[int, int]
    weights: Mapping[str, Float[np.ndarray, "H T L"]]
    gates: list[float] = field(default_factory=list)
    neurons: Mapping[str, LayerNeurons] = field(default_factory=dict)


class ImageCaptioner:
    """A captioner with its tokenizer, preprocessing and decoding defaults."""

    pipeline: ClassVar[str] = "image_captioner"

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        preprocessing: Preprocessing,
        *,
        settings: SearchSettings | None = None,
        name: str = "",
    ):
        self.model, self.tokenizer, self.preprocessing, self.name = model.eval(), tokenizer, preprocessing, name
        self.settings, self.device = settings or SearchSettings(), next(model.parameters()).device
        self.decoder = decoding_model(self.model, "fp32", caption_vocabulary(tokenizer).end)

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> ImageCaptioner:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle)
        config: Any = loaded.config
        return cls(
            loaded.model,
            TextTokenizer.load(loaded.folder),
            Preprocessing.load(loaded.folder, config.image_size, config.channels),
            settings=read_decoding(loaded.folder).settings,
            name=Path(folder).name,
        )

    def caption(
        self, images: ImageSource | Sequence[ImageSource], *, settings: SearchSettings | None = None, **changes: Any
    ) -> list[Caption]:
        """A caption of every image (a path, the bytes of a file, or a Pillow image). `settings` replace the model's
        own; `changes` are single values of SearchSettings, such as beam=5. With n_best, the others are its
        alternatives."""
        several = [images] if isinstance(images, ImageSource) else images
        chosen = (settings or self.settings).replace(**changes)
        return [caption for some in self._batches(several) for caption in self.describe(some, chosen)]

    def describe(self, pixels: Tensor, settings: SearchSettings) -> list[Caption]:
        """Captions of images of bytes [B C H W] at the model's size."""
        images = self.preprocessing.normalise(pixels.to(self.device))
        found = write_captions(self.decoder, images, settings, self.tokenizer)
        return [self._caption(*hypotheses) for hypotheses in found]

    def pixels(self, image: ImageSource) -> Pixels:
        """An image [C H W] at the model's size."""
        return self.preprocessing.pixels(open_image(image))

    def shown(self, image: ImageSource) -> Pixels:
        """The image as the model sees it, in as much detail as there is."""
        return self.preprocessing.in_detail(open_image(image), DETAIL)

    def attention(self, image: ImageSource, ids: Sequence[int]) -> CaptionAttention:
        """Where the model looks while it is fed a caption, given as token ids without the end token."""
        if not self.looks:
            raise UsageError(f"{self.name or 'this model'} has no attention to look at")
        with record_neurons(self.model, CROSS) as seen:
            weights, gates = self.forced(torch.from_numpy(self.pixels(image))[None], [ids])[0]
        neurons = {name: each.part(slice(len(ids))) for name, each in seen.items()}
        side = int(next(iter(weights.values())).shape[-1] ** 0.5)
        tokens = self.tokenizer.shown(list(ids))
        return CaptionAttention(self.shown(image), tokens, (side, side), weights, gates, neurons)

    @property
    def looks(self) -> bool:
        """Whether the model has attention between words and the image."""
        return bool(attention_names(self.model)) and self.model.config.attention != "none"  # type: ignore[union-attr]

    @torch.inference_mode()
    def forced(
        self, pixels: Tensor, captions: Sequence[Sequence[int]]
    ) -> list[tuple[dict[str, Float[np.ndarray, "H T L"]], list[float]]]:
        """For every image of bytes [B C H W] and its caption: the weights of every layer, and the gates."""
        images, pad = self.preprocessing.normalise(pixels.to(self.device)), self.tokenizer.pad
        longest = max(len(ids) for ids in captions)
        inputs = torch.tensor([[pad, *ids, *[pad] * (longest - len(ids))] for ids in captions], device=self.device)
        with record(self.model, CROSS) as looks:
            _, seen = self.model(images, inputs)
        layers = {name: weights.float().cpu().numpy() for name, weights in looks.items()}
        if seen is not None and self.model.config.attention == "hard":  # type: ignore[union-attr]
            (name,) = layers
            soft = seen.probabilities[:, None].float().cpu().numpy()
            layers = {name: soft, f"{name} {DRAWN}": layers[name]}
        gates = None if seen is None or seen.gates is None else seen.gates.float().cpu().tolist()
        return [
            (
                {name: weights[row, :, : len(ids)] for name, weights in layers.items()},
                gates[row][: len(ids)] if gates else [],
            )
            for row, ids in enumerate(captions)
        ]

    def _batches(self, images: Sequence[ImageSource]) -> Iterator[Tensor]:
        for begin in range(0, len(images), BATCH_IMAGES):
            yield torch.from_numpy(np.stack([self.pixels(each) for each in images[begin : begin + BATCH_IMAGES]]))

    def _caption(self, best: Hypothesis, *others: Hypothesis) -> Caption:
        text = self.tokenizer.decode(best.tokens)
        return Caption(text, best.score, best.finished, best.tokens, [self._caption(other) for other in others])
