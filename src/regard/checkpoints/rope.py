"""Rotary positions in a Hugging Face config.json: every spelling that transformers reads, with the precedence that
transformers applies if spellings disagree."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")
LIMITS = {"llama3": ("low_freq_factor", "high_freq_factor"), "yarn": ("beta_slow", "beta_fast")}  # our slow and fast


def read_rope(theirs: Mapping[str, Any], max_length: int, file: Path) -> dict[str, Any]:
    """Our `rotary_base` and `rotary_scaling`.

    The older name `rope_scaling` overrides `rope_parameters`, `rope_type` overrides the older `type`, and a value
    inside the section overrides one beside it. Only for the original length it is the other way round.
    """
    section = theirs.get("rope_scaling") or theirs.get("rope_parameters") or {}
    if not isinstance(section, dict) or any(isinstance(value, dict) for value in section.values()):
        raise CheckpointError(f"{file} has rope parameters {section!r}; expected one object of numbers for all layers")
    beside = {key: theirs[key] for key in ("rope_theta", "partial_rotary_factor") if key in theirs}
    rope = _Parameters({**beside, **section}, file)
    kind = section.get("rope_type", section.get("type", "default"))
    if kind not in KINDS:
        raise CheckpointError(f"{file} has rope_type {kind!r}; known are {', '.join(KINDS)}")
    if rope.number("partial_rotary_factor", 1.0) != 1:
        raise CheckpointError(f"{file} has a partial_rotary_factor other than 1, but a Llama rotates whole heads")
    original = theirs.get("original_max_position_embeddings") or section.get("original_max_position_embeddings")
    scaling = None if kind == "default" else _scaling(kind, rope, original or max_length, max_length)
    return {"rotary_base": rope.number("rope_theta", 10000.0), "rotary_scaling": scaling}


def write_rope(ours: Mapping[str, Any]) -> dict[str, Any]:
    """Their config values, under keys that older versions of transformers read too."""
    theta, scaling = {"rope_theta": ours["rotary_base"]}, ours["rotary_scaling"]
    if scaling is None:
        return theta
    kind = scaling["kind"]
    section = {"rope_type": kind, "factor": scaling["factor"]}
    if kind in LIMITS:
        slow, fast = LIMITS[kind]
        original = scaling["original_length"] or ours["max_length"]
        section |= {"original_max_position_embeddings": original, slow: scaling["slow"], fast: scaling["fast"]}
    if kind == "yarn":
        section["truncate"] = scaling["whole"]
        if scaling["attention_factor"] is not None:
            section["attention_factor"] = scaling["attention_factor"]
    return {**theta, "rope_scaling": section}


@dataclass(frozen=True)
class _Parameters:
    values: Mapping[str, Any]
    file: Path

    def number(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CheckpointError(f"{self.file} has {value!r} for {key} of its rope parameters; expected a number")
        return value

    def number_or(self, key: str, default: float) -> float:
        """The value, or the default if the value is missing, null or 0."""
        return self.number(key) if self.values.get(key) else default


def _scaling(kind: str, rope: _Parameters, original: int, max_length: int) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": kind}
    if kind == "yarn" and "factor" in rope.values and rope.values["factor"] is None:
        values["factor"] = max_length / original
    else:
        values["factor"] = rope.number("factor")
    if kind in LIMITS:
        values["original_length"] = original
    if kind == "llama3":
        values |= {ours: rope.number(key) for ours, key in zip(("slow", "fast"), LIMITS[kind], strict=True)}
    if kind == "yarn":
        slow, fast = LIMITS[kind]
        values |= {"slow": rope.number_or(slow, 1.0), "fast": rope.number_or(fast, 32.0)}
        values["whole"] = bool(rope.values.get("truncate", True))
        values["attention_factor"] = _attention_factor(rope, values["factor"])
    return values


def _attention_factor(rope: _Parameters, factor: float) -> float | None:
    if rope.values.get("attention_factor") is not None:
        return rope.number("attention_factor")
    if not (rope.values.get("mscale") and rope.values.get("mscale_all_dim")):
        return None
    growth = 0.1 * math.log(max(factor, 1.0))
    return (1 + rope.number("mscale") * growth) / (1 + rope.number("mscale_all_dim") * growth)
