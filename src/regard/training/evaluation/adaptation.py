"""What an adaptation gained and lost: a model before and after it, on the new domain and on the old one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from regard.training.recipe.metrics import BLEU, CHRF

SHOWN = {BLEU.name: "BLEU", CHRF.name: "chrF"}


class Compared(NamedTuple):
    """The metrics of one domain before and after."""

    before: dict[str, float]
    after: dict[str, float]


def flat(domains: Mapping[str, Compared]) -> dict[str, float]:
    """One value for each metric, domain and time: `bleu_new_before`, `bleu_new_after`, …"""
    return {
        f"{metric}_{domain}_{time}": values[metric]
        for domain, compared in domains.items()
        for metric in SHOWN
        for time, values in compared._asdict().items()
    }


def table(domains: Mapping[str, Compared]) -> str:
    """The same for people, as a table in Markdown."""
    rows = [
        f"| {domain} domain, {shown} | {before[metric]:.1f} | {after[metric]:.1f} |"
        for domain, (before, after) in domains.items()
        for metric, shown in SHOWN.items()
    ]
    return "\n".join(["| | before | after |", "|---|---|---|", *rows])
