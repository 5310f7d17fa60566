"""The search settings of a model folder: the [decoding] section of its recipe, or the files of Hugging Face."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from regard.inference.decoding.settings import SearchSettings

RECIPE, CONFIG, GENERATION = "recipe.toml", "config.json", "generation_config.json"
HONOURED = {  # Hugging Face's name -> ours
    "num_beams": "beam", "length_penalty": "length_penalty", "no_repeat_ngram_size": "no_repeat_ngram",
    "repetition_penalty": "repetition_penalty", "do_sample": "sample", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "min_p": "min_p", "max_new_tokens": "longest", "min_new_tokens": "min_length",
}  # fmt: skip
WITH_START = {"max_length": "longest", "min_length": "min_length"}  # these count the token that begins an answer
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {  # keys that would change answers, and the values that change nothing
    "num_beam_groups": (1,), "diversity_penalty": (0,), "encoder_no_repeat_ngram_size": (0,), "typical_p": (1,),
    "encoder_repetition_penalty": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "penalty_alpha": (0,),
    "guidance_scale": (1,), "force_words_ids": (), "constraints": (), "forced_bos_token_id": (), "sequence_bias": (),
    "suppress_tokens": ([],), "begin_suppress_tokens": ([],), "exponential_decay_length_penalty": (),
    "early_stopping": (False, True),
}  # fmt: skip


class Decoding(NamedTuple):
    """The settings of a search, and the tokens that end an answer, where the folder names them."""

    settings: SearchSettings
    ends: list[int]


def read_decoding(folder: Path, *, answers: bool = True, followed: Collection[str] = ()) -> Decoding:
    """The default search settings of a model folder; greedy if the folder does not say.

    `answers` is False for a model that continues its prompt, which Hugging Face's limits of length count too.
    `followed` are settings of theirs that the pipeline follows by itself.
    """
    if (folder / RECIPE).is_file():
        values = tomllib.loads((folder / RECIPE).read_text("utf-8")).get("decoding", {})
        return Decoding(SearchSettings.parse(values, where=str(folder / RECIPE)), [])
    theirs: dict[str, Any] = {}
    for name in (CONFIG, GENERATION):  # older folders have all settings in config.json
        content = json.loads((folder / name).read_text("utf-8")) if (folder / name).is_file() else {}
        if name == GENERATION or "model_type" in content:  # the config of a Regard model has no decoding settings
            theirs |= {key: value for key, value in content.items() if value is not None}
    _tell_unsupported({key: value for key, value in theirs.items() if key not in followed}, folder)
    ends = theirs.get("eos_token_id", [])
    settings = SearchSettings.parse(_ours(theirs, answers), where=str(folder / GENERATION))
    return Decoding(settings, [ends] if isinstance(ends, int) else ends)


def their_settings(settings: SearchSettings) -> dict[str, Any]:
    """Settings under Hugging Face's names: those that differ from the defaults, and the beam."""
    ours, usual = settings.model_dump(), SearchSettings().model_dump()
    found = {their: ours[our] for their, our in HONOURED.items() if our == "beam" or ours[our] != usual[our]}
    return found if settings.max_length is None else found | {"max_new_tokens": settings.max_length}


def _ours(theirs: Mapping[str, Any], answers: bool) -> dict[str, Any]:
    ours = {our: theirs[their] for their, our in HONOURED.items() if their in theirs}
    if answers:
        counted = {our: max(0, theirs[their] - 1) for their, our in WITH_START.items() if their in theirs}
        ours = {key: value for key, value in counted.items() if value} | ours
    if ours.get("temperature", 1) <= 0 or _draws_within_a_beam(theirs):
        ours |= {"sample": False, "temperature": 1.0}
    return ours


def _draws_within_a_beam(theirs: Mapping[str, Any]) -> bool:
    return bool(theirs.get("do_sample")) and theirs.get("num_beams", 1) > 1


def _tell_unsupported(theirs: Mapping[str, Any], folder: Path) -> None:
    asked = [key for key, neutral in NOT_SUPPORTED.items() if key in theirs and theirs[key] not in neutral]
    unsaid = [[theirs.get("pad_token_id")], [theirs.get("decoder_start_token_id")]]  # never generated here either
    if any(words not in unsaid for words in theirs.get("bad_words_ids") or []):
        asked.append("bad_words_ids")
    if _draws_within_a_beam(theirs):
        asked.append("do_sample with num_beams")
    if asked:
        warnings.warn(
            f"{folder} asks for {', '.join(asked)} when decoding, which Regard does not do: its answers may differ "
            "from those of transformers",
            stacklevel=2,
        )
