"""The models for the page: what each is and can do, and its card, recipe, metrics, layers and costs."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from regard.documents.translate import SUFFIXES
from regard.look.forced_pass import kind_of
from regard.plan.plan import Plan, byte_size, make_plan, scaled
from regard.serve.http.responses import keyed_router
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.training.metrics_log import METRICS, read_metrics

EXAMPLES = 3  # sentences to try a model with


def models_router(service: TranslationService) -> APIRouter:
    router = keyed_router("/api")

    @router.get("/models")
    def models() -> dict[str, Any]:
        listed = [_summary(service, info) for info in service.registry.infos()]
        translating = [each["id"] for each in listed if each["ability"] == "translate"]
        limits = {"characters": service.settings.characters, "bytes": service.settings.body}
        return {
            "models": listed,
            "default": next(iter(translating), None),
            "limits": limits,
            "documents": SUFFIXES,
            "training": service.settings.training,
        }

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        info = service.registry.find(name)
        return _summary(service, info) | _details(info)

    return router


def _summary(service: TranslationService, info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "family": info.family,
        "title": info.title,
        "source": info.source,
        "sources": list(info.sources),
        "targets": list(info.targets),
        "loaded": service.registry.is_loaded(info.id),
        "parameters": info.parameters,
        "bytes": info.bytes,
        "attention": bool(info.layers),
        "ability": info.ability,
        "input": info.pipeline.input,
        "text_label": info.pipeline.text_label,
        "answers": info.pipeline.answers,
        "predicts_tokens": info.predicts_tokens,
        "examples": _examples(info),
    }


def _examples(info: ModelInfo) -> list[str]:
    """Sentences to try a translator with: held-out sentences of its training, if its folder has some."""
    file = info.folder / METRICS
    return _held_out_sentences(file, file.stat().st_mtime_ns) if info.ability == "translate" and file.is_file() else []


@lru_cache(maxsize=64)
def _held_out_sentences(file: Path, changed: int) -> list[str]:
    """The shortest sentences of the last validation; `changed`, the time of the file, is part of the cache's key."""
    samples = [row for row in read_metrics(file) if row.get("kind") == "samples"]
    found = {pair["source"] for row in samples[-1:] for pair in row["pairs"]}
    return sorted(found, key=lambda each: (len(each), each))[:EXAMPLES]


def _details(info: ModelInfo) -> dict[str, Any]:
    """The config, the card, the recipe and last metrics, the layers, and what the model costs."""
    return {
        "config": info.config.model_dump(mode="json"),
        "card": _text(info.folder / "README.md") or "",
        "recipe": _text(info.folder / "recipe.toml"),
        "metrics": _metrics(info.folder / METRICS),
        "layers": [{"name": name, "kind": kind_of(name), "heads": heads} for name, heads in info.layers.items()],
        "plan": _costs(info),
    }


def _costs(info: ModelInfo) -> list[list[str]]:
    """What the model costs."""
    weights = [["Parameters", f"{info.parameters:,}"], ["Weights in memory", byte_size(4 * info.parameters)]]
    plan = _planned(info.folder, info.folder.stat().st_mtime_ns)
    length, entries = f"of {plan.source_length} tokens", sum(each.entries for each in plan.measured.matrices)
    if examples := info.config.examples:
        return [
            *weights,
            [f"To read one {examples.one}, forward", f"{scaled(plan.forward_flops)}FLOPs"],
            ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
            [f"Attention weights of one {examples.one}", f"{entries:,}"],
        ]
    verb, text = ("translate", "sentence") if info.pipeline.ability == "translate" else ("read", "text")
    return [
        *weights,
        [f"To {verb} a {text} {length}, forward", f"{scaled(plan.forward_flops)}FLOPs"],
        ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
        [f"Attention weights of such a {text}", f"{entries:,}"],
        ["Memory of a source while decoding", byte_size(plan.cache["sentence"])],
        ["Memory of each hypothesis", byte_size(plan.cache["hypothesis"])],
    ]


@lru_cache(maxsize=64)
def _planned(folder: Path, changed: int) -> Plan:
    """The plan of a model; `changed`, the time of the folder, is part of the cache's key."""
    return make_plan(str(folder), batch=1)


def _text(file: Path) -> str | None:
    """The content of a file, if it is there."""
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None


def _metrics(file: Path) -> dict[str, Any] | None:
    """The last measured row of the metrics: on the test set if there was one, else on the validation set."""
    rows = read_metrics(file)
    measured = {row["kind"]: row for row in rows if row.get("kind") in ("valid", "test")}
    return measured.get("test") or measured.get("valid")
