"""Preparing scenes with walking agents: reading tracks, cutting windows, and storing them as arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from regard.checkpoints import write_folder
from regard.data.parts import PARTS, Part
from regard.data.synthetic.walkers import built_in_walkers
from regard.data.trajectories.scenes import collection_files
from regard.data.trajectories.settings import SceneSettings
from regard.data.trajectories.tracks import Tracks, read_tracks
from regard.data.trajectories.windows import WindowProtocol, WindowStore, store_tracks
from regard.errors import DataError
from regard.training.recipe.trajectory_sections import ScenesOfTracksSection
from regard.training.safeguards import Poll

SKIPPED = "skipped.json"


@dataclass(frozen=True)
class SceneCorpus:
    """The windows that a model is trained, validated and tested on."""

    stores: Mapping[Part, WindowStore]
    settings: SceneSettings
    skipped: list[str]

    @property
    def summary(self) -> str:
        told = ", ".join(
            f"{len(self.stores[part]):,} with {len(self.stores[part].keys):,} tracks to {name}"
            for part, name in _NAMED
            if len(self.stores[part])
        )
        left = f"; {self.settings.leave_out} left out" if self.settings.leave_out else ""
        bad = f"; {len(self.skipped):,} rows left out, the first: {self.skipped[0]}" if self.skipped else ""
        return f"windows: {told}{left}{bad}"


_NAMED: tuple[tuple[Part, str], ...] = (("train", "train on"), ("valid", "validate on"), ("test", "test on"))


@dataclass(frozen=True)
class ScenePreparation:
    """How the files of a recipe become a corpus of windows."""

    data: ScenesOfTracksSection
    past: int
    future: int
    seed: int

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> SceneCorpus:
        """The corpus that was written into `folder`."""
        stores = {part: WindowStore.load(folder, part) for part in PARTS}
        skipped = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return SceneCorpus(stores, SceneSettings.load(folder), skipped)

    def _write(self, folder: Path, poll: Poll) -> None:
        data = self.data
        skipped: list[str] | None = [] if data.skip_bad else None
        trained: tuple[str, ...] = ()
        for part in PARTS:
            tracks = self._tracks(part, skipped)
            agents = data.agents if part == "train" else "complete"
            fewest, stride = (data.fewest, data.stride) if part == "train" else (min(2, data.fewest), 1)
            store = store_tracks(tracks, WindowProtocol(self.past, self.future, stride, fewest, agents), poll)
            if part == "train":
                trained = tuple(Path(each.name).stem for each in tracks)
                if not len(store):
                    raise DataError(
                        f"data.train has no window of {self.past} + {self.future} steps with {fewest} agents or more; "
                        "lower data.fewest, or the steps of the model"
                    )
            store.save(folder, part)
        SceneSettings(leave_out=data.leave_out, trained=trained, every=data.every).save(folder)
        (folder / SKIPPED).write_text(json.dumps(skipped or [], ensure_ascii=False), encoding="utf-8")

    def _tracks(self, part: Part, skipped: list[str] | None) -> list[Tracks]:
        data = self.data
        if data.built_in:
            return [built_in_walkers(self.seed, number) for number in data.walkers.of(part)]
        files = collection_files(data.paths("train")[0], data.leave_out, part) if data.leave_out else data.paths(part)
        for file in files:
            if Path(file).is_dir():
                raise DataError(f"{file} is a folder; name a scene to leave out with data.leave_out, or give files")
        return [read_tracks(file, every=data.every, bad=skipped) for file in files]
