"""The three parts of a data set."""

from typing import Literal

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
