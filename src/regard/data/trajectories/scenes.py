"""Which files a model is trained, validated and tested on: ETH/UCY with one scene left out, or files by name."""

from __future__ import annotations

from pathlib import Path

from regard.data.parts import Part
from regard.errors import DataError

SCENES: dict[str, tuple[str, ...]] = {  # of ETH/UCY, and the files of each
    "eth": ("biwi_eth",),
    "hotel": ("biwi_hotel",),
    "univ": ("students001", "students003"),
    "zara1": ("crowds_zara01",),
    "zara2": ("crowds_zara02",),
}
FOLDERS: dict[Part, tuple[str, str]] = {"train": ("train", "_train"), "valid": ("val", "_val"), "test": ("all", "")}


def is_collection(folder: str | Path) -> bool:
    """Whether a folder has the parts of ETH/UCY: all/, train/ and val/."""
    return all((Path(folder) / name).is_dir() for name, _ in FOLDERS.values())


def whole_file(name: str) -> str:
    """The name of the file that a file for training is a part of, or its own; both without an ending."""
    return name.removesuffix(FOLDERS["train"][1])


def collection_files(folder: str | Path, left_out: str, part: Part) -> list[str]:
    """The files of a part: whole files of the scene that is left out to test on, and parts of all others."""
    if left_out not in SCENES:
        raise DataError(f"ETH/UCY has no scene {left_out!r}; the scenes are {', '.join(SCENES)}")
    if not is_collection(folder):
        raise DataError(f"{folder} has not the folders all, train and val; expected ETH/UCY as its README describes it")
    place, suffix = FOLDERS[part]
    found = sorted((Path(folder) / place).glob(f"*{suffix}.txt"))
    own = [file for file in found if (file.stem.removesuffix(suffix) in SCENES[left_out]) == (part == "test")]
    if not own:
        raise DataError(f"{folder}/{place} has no file of scene {left_out!r}; expected {SCENES[left_out][0]}.txt")
    return [str(file) for file in own]
