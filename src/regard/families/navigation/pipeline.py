"""An instruction and a house in, ranked paths out; there are no images, only the geometry of the house."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import record
from regard.data.arguments import all_texts
from regard.data.batch import pad_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.navigation.data import PathSettings
from regard.families.navigation.features import FEATURES, LOCATIONS, Geometry, candidate_paths
from regard.families.navigation.houses import House, NodePath, house_of, read_houses
from regard.families.navigation.path_lstm import PathLstmConfig
from regard.families.navigation.synthetic import HOUSES, built_in_house
from regard.families.navigation.vlnbert import score_candidates
from regard.families.vision_language.model import VilbertConfig
from regard.look.forced_pass import require_attention
from regard.look.neurons import LayerNeurons, record_neurons
from regard.search.pipeline import load_for_pipeline

PATHS = 512  # scored at once


@dataclass(frozen=True)
class RankedPath:
    """A path by the ids of its viewpoints, its probability among the candidates, and its length in metres."""

    viewpoints: tuple[str, ...]
    probability: float
    length: float
    numbers: NodePath = field(repr=False)  # of the viewpoints in their house


@dataclass(frozen=True)
class Navigation:
    """The candidate paths of an instruction, best first."""

    instruction: str
    house: House = field(repr=False)
    heading: float  # at the start, in radians
    paths: list[RankedPath]
    unknown: list[UnknownWord] = field(default_factory=list)

    @property
    def best(self) -> RankedPath:
        return self.paths[0]


@dataclass(frozen=True)
class PathAttention:
    """The attention between the tokens of an instruction and the rows of a path, in every recorded layer and head.

    Row 0 is the path as a whole. `sides` names the queries and the keys of a layer: "words" or "steps".
    """

    pieces: list[str]
    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]
    sides: dict[str, tuple[str, str]]
    neurons: dict[str, LayerNeurons]


class Navigator:
    """A model that scores paths, with its tokenizer and the way its candidates are made."""

    pipeline: ClassVar = "navigator"

    def __init__(self, model: nn.Module, tokenizer: TextTokenizer, settings: PathSettings, *, name: str = "") -> None:
        self.model, self.tokenizer, self.settings, self.name = model.eval(), tokenizer, settings, name
        assert isinstance(model.config, VilbertConfig | PathLstmConfig)
        self.config: VilbertConfig | PathLstmConfig = model.config
        self.device = next(model.parameters()).device
        if (self.config.region_features, self.config.region_places) != (FEATURES, LOCATIONS):
            raise CheckpointError(
                f"{name} reads {self.config.region_features} numbers of a step, of which {self.config.region_places} "
                f"are its place; this version makes {FEATURES} and {LOCATIONS}: train the model again"
            )

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu", allow_pickle: bool = False) -> Navigator:
        """Read a model folder."""
        loaded = load_for_pipeline(cls.pipeline, folder, device, allow_pickle, cannot="ranks no paths")
        tokenizer = TextTokenizer.load(loaded.folder)
        return cls(loaded.model, tokenizer, PathSettings.load(loaded.folder), name=Path(folder).name)

    def navigate(
        self, instructions: str | Sequence[str], house: House | str, start: str, *, heading: float = 0.0
    ) -> list[Navigation]:
        """The candidate paths from a start for each instruction, best first; `heading` is in radians, clockwise from
        the y axis. A house may be given as `find_house` takes it."""
        texts, place = all_texts(instructions), find_house(house) if isinstance(house, str) else house
        if not math.isfinite(heading):
            raise UsageError(f"heading is {heading}; expected an angle in radians")
        paths = candidate_paths(place, place.number(start), self.settings.candidates)
        lengths = [place.length(path) for path in paths]
        answers = []
        for text, scores in zip(texts, self.scores(texts, place, paths, heading), strict=True):
            shares = scores.softmax(dim=-1).tolist()
            order = scores.argsort(descending=True, stable=True).tolist()
            ranked = [
                RankedPath(tuple(place.viewpoints[number] for number in paths[i]), shares[i], lengths[i], paths[i])
                for i in order
            ]
            answers.append(Navigation(text, place, heading, ranked, self.unknown_words(text)))
        return answers

    @torch.inference_mode()
    def scores(
        self, texts: Sequence[str], house: House, paths: Sequence[NodePath], heading: float
    ) -> Float[Tensor, "N C"]:
        """The scores of paths for each instruction."""
        features, places, mask = self.steps(house, paths, heading)
        ids, found = [self._ids(text) for text in texts], torch.empty(len(texts), len(paths))
        count = max(1, PATHS // len(paths))
        for begin in range(0, len(ids), count):
            words, words_mask = pad_rows(ids[begin : begin + count], self.tokenizer.pad)
            several = (each[None].expand(len(words), *each.shape) for each in (features, places, mask))
            scored = score_candidates(self.model, words.to(self.device), words_mask.to(self.device), *several)
            found[begin : begin + count] = scored.cpu()
        return found

    @torch.inference_mode()
    def attention(
        self, text: str, house: House, path: NodePath, heading: float = 0.0, *, layers: str = "*"
    ) -> PathAttention:
        """The recorded attention of reading an instruction with one path."""
        require_attention(self.model, self.name)
        ids = self._ids(text)
        words = torch.tensor([ids], device=self.device)
        steps = [each[:, : 1 + len(path)] for each in self.steps(house, [path], heading)]
        with record(self.model, layers) as looks, record_neurons(self.model, layers) as neurons:
            self.model(words, torch.ones_like(words, dtype=torch.bool), *steps)
        weights = {name: each[0].float().cpu().numpy() for name, each in looks.items()}
        return PathAttention(self.tokenizer.pieces(ids), weights, {name: _sides(name) for name in weights}, neurons)

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of an instruction that become unknown tokens."""
        return unknown_words(text, self.tokenizer.reads)

    def _ids(self, text: str) -> list[int]:
        if not text.strip():
            raise DataError("the instruction is empty; say where to go")
        (row,) = self.tokenizer.encode([text])
        if len(row.ids) > self.config.longest:
            raise DataError(
                f"the instruction that begins with {text[:40]!r} has {len(row.ids):,} tokens; this model reads at most "
                f"{self.config.longest:,}: shorten it"
            )
        return row.ids

    def steps(self, house: House, paths: Sequence[NodePath], heading: float) -> tuple[Tensor, Tensor, Tensor]:
        """Features, places and masks of paths."""
        geometry = Geometry.of([house])
        found = geometry.steps(geometry.padded(house.scan, paths), np.full(len(paths), heading))
        features, places, mask = (torch.from_numpy(rows).to(self.device) for rows in found)
        return features, places, mask


def _sides(name: str) -> tuple[str, str]:
    """Whose places are the queries and the keys of a layer, by its name."""
    own = "words" if "words" in name.split(".") else "steps"
    other = {"words": "steps", "steps": "words"}[own]
    return (own, other) if name.endswith("cross") else (own, own)


def find_house(reference: str | Path | bytes) -> House:
    """A house by the file of its graph or its bytes, by ARCHIVE#SCAN or FOLDER#SCAN, or by builtin:houses#NUMBER."""
    if isinstance(reference, bytes):
        try:
            return House.from_json("house", json.loads(reference), "the graph")
        except ValueError as error:
            raise DataError(f"the graph is not JSON ({error}); expected a connectivity file") from None
    path, _, scan = str(reference).partition("#")
    if path == HOUSES:
        return _built_in(scan or "0")
    houses = read_houses(path, {scan} if scan else None)
    if not scan and len(houses) > 1:
        raise DataError(f"{path} holds {len(houses)} houses; name one: {path}#{next(iter(houses))}")
    return house_of(houses, scan) if scan else next(iter(houses.values()))


def _built_in(scan: str) -> House:
    """A built-in house by number, or by its name house-SEED-NUMBER."""
    *_, seed, number = ["1", *scan.removeprefix("house-").split("-")]
    if not (seed.isdecimal() and number.isdecimal()):
        raise UsageError(f"{HOUSES}#{scan} is not a built-in house; write a number, or house-SEED-NUMBER")
    return built_in_house(int(seed), int(number))
