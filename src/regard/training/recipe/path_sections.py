"""[data] of paths through houses."""

from __future__ import annotations

from typing import Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.data.paths.candidates import CandidateConfig
from regard.errors import ConfigError

HOUSES = "builtin:houses"


class HousesSection(Config):
    """[data.houses]: how many of the built-in houses, how many routes in each, and more in those trained on."""

    count: PositiveInt = 40
    routes: PositiveInt = 30
    seen_routes: NonNegativeInt = 2


class PathsSection(Config):
    """[data]: Room-to-Room's paths and connectivity graphs, or `builtin:houses`."""

    train: str
    graphs: str = ""  # a folder or archive of connectivity files; empty: the one beside the paths
    seen: str = ""  # more paths in the houses trained on, for validation beside those in other houses
    held_out: PositiveInt = 6  # houses for validation, the same in every run
    tested: NonNegativeInt = 6  # houses for the test at the end
    longest: int = pydantic.Field(default=80, ge=8)  # tokens; longer instructions are cut, and counted
    skip_bad: bool = False  # leave out, count and name paths that jump or are in no known house
    candidates: CandidateConfig = CandidateConfig()
    houses: HousesSection = HousesSection()

    @property
    def built_in(self) -> bool:
        """Whether the houses are the built-in ones."""
        return self.train == HOUSES

    @property
    def files(self) -> list[str]:
        """The files that it names."""
        return [] if self.built_in else [path for path in (self.train, self.graphs, self.seen) if path]

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no file of paths; give one, or {HOUSES!r}")
        if self.built_in and (self.graphs or self.seen):
            raise ConfigError("the built-in houses have graphs and parts of their own; size them with [data.houses]")
        return self
