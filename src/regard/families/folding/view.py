"""A protein as PNG and SVG: distances in two triangles, what residues look at, and the chain drawn in depth."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from regard.errors import DataError, UsageError
from regard.families.folding.data import FoldExample, ProteinInput
from regard.families.folding.metrics import score_chain, superposed
from regard.families.folding.pipeline import Prediction, StructurePredictor
from regard.families.folding.structures import SUFFIXES, Chain, find_chains
from regard.look.figures import INK, MUTED, RAMP
from regard.look.image_figures import facts
from regard.look.inspection import GivenInput, Inspected
from regard.look.panels import Panel, Point, Residues
from regard.look.report import AttentionReport


def inspect_structure(predictor: StructurePredictor, given: GivenInput) -> Inspected:
    """The structure of the first protein of a file, and every layer and head.

    A file of a structure is folded from its sequence, and compared with it. The text beside the file is not used.
    """
    protein, true = _read(predictor, given)
    (prediction,) = predictor.predict([protein])
    report = structure_report(predictor, prediction, true)
    answer = {"name": prediction.name, "sequence": protein.sequence, "confidence": report.details["confidence"]}
    return Inspected(report, {**answer, "told": list(prediction.told)})


def structure_report(
    predictor: StructurePredictor, prediction: Prediction, true: Chain | None = None
) -> AttentionReport:
    """The report of a prediction: distances, the chain in space, and the attention between its residues."""
    axis, seen = Residues(prediction.given.sequence), predictor.attention(prediction.given)
    panels = [
        Panel(name, "self", weights, axis, axis, seen.neurons.get(name)) for name, weights in seen.weights.items()
    ]
    meta = {
        "residues": str(len(axis)), "rows": str(len(prediction.given.rows)),
        "confidence": f"{prediction.mean_confidence:.0f} of 100",
    }  # fmt: skip
    details: dict[str, Any] = {
        "distances": _rounded(prediction.distances, 1), "places": _rounded(prediction.places, 2),
        "confidence": _rounded(prediction.confidence, 1), "truth": None,
    }  # fmt: skip
    if true is not None:
        scores = score_chain(FoldExample(prediction.given, true), prediction.places, prediction.contacts, 0.0)
        meta |= {"lDDT": f"{scores.lddt:.2f}", "RMSD": f"{scores.rmsd:.1f} Å"}
        details["truth"] = _truth(true, prediction)
    return AttentionReport(prediction.name, predictor.name, panels, meta=meta, shown_as=Residues.view, details=details)


def _truth(chain: Chain, prediction: Prediction) -> dict[str, Any]:
    """The true distances, and the true places laid over the predicted ones; null where they are not known."""
    points, known = chain.contact_points()
    distances = np.linalg.norm(points[:, None] - points[None], axis=-1)
    places = superposed(chain.atoms[:, 1].astype(np.float64), prediction.places, chain.known[:, 1])
    return {
        "distances": _with_gaps(distances, known[:, None] & known[None], 1),
        "places": _with_gaps(places, np.repeat(chain.known[:, 1:2], 3, axis=1), 2),
    }


def _with_gaps(values: Float[np.ndarray, "A B"], known: Bool[np.ndarray, "A B"], digits: int) -> list[Any]:
    rows = values.astype(np.float64).round(digits).tolist()
    return [
        [value if there else None for value, there in zip(row, line, strict=True)]
        for row, line in zip(rows, known.tolist(), strict=True)
    ]


def _rounded(values: np.ndarray, digits: int) -> list[Any]:
    return values.astype(np.float64).round(digits).tolist()


def _read(predictor: StructurePredictor, given: GivenInput) -> tuple[ProteinInput, Chain | None]:
    """What to fold, and the true structure if the file has one."""
    if isinstance(given.file, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / (Path(given.title).name or "protein.fasta")
            path.write_bytes(given.file)
            try:
                return _of_file(predictor, path)
            except DataError as error:  # the file has the name that it came with, and the folder is nobody's concern
                raise DataError(str(error).replace(f"{folder}/", "")) from None
    return _of_file(predictor, given.file)


def _of_file(predictor: StructurePredictor, file: str | Path) -> tuple[ProteinInput, Chain | None]:
    if set(Path(file).suffixes) & set(SUFFIXES):
        chain = find_chains(file)[0]
        if not chain.known[:, 1].any():
            raise DataError(f"{file}: chain {chain.name} has no CA atom to compare with")
        coupled = predictor.config.couplings
        return ProteinInput.of(chain.name, chain.sequence, None, chain.numbers, coupled=coupled, told=chain.told), chain
    proteins = predictor.read(file)
    if len(proteins) > 1:
        raise UsageError(f"{Path(file).name} has {len(proteins)} sequences; give one, or an alignment as .a3m")
    return proteins[0], None


NEAR = LinearSegmentedColormap.from_list("near", ["#0b2b52", "#2f74b5", "#9cc6e6", "#f6fafd"])
SURE = LinearSegmentedColormap.from_list("sure", ["#e2622a", "#f3c74f", "#5aa9e0", "#1c4fa0"])  # confidence 0 to 100
FARTHEST = 22.0  # Å: all beyond have one colour
TRUE = "#9a9a9a"


def draw_structure(report: AttentionReport, points: Sequence[Point] = ()) -> Figure:
    """The map of distances, the attention of the last layer, and the chain seen from its broad side."""
    details = report.details
    panel = report.panels[-1] if report.panels else None
    figure = Figure(figsize=(15 if panel else 10.5, 5.6), layout="constrained")
    axes = figure.subplots(1, 3 if panel else 2)
    _draw_distances(axes[0], details)
    if panel is not None:
        _draw_attention(axes[1], panel)
    _draw_chain(axes[-1], details)
    figure.suptitle(f"{report.title[:110]}\n{facts(report)}", fontsize=9, color=INK, parse_math=False)
    return figure


def _draw_distances(axes: Axes, details: Any) -> None:
    """Predicted distances above the diagonal; below it the true ones, if they are known."""
    predicted, truth = np.array(details["distances"]), details["truth"]
    shown = predicted.copy()
    if truth is not None:
        true, lower = np.array(truth["distances"], dtype=float), np.tril_indices(len(shown), -1)
        shown[lower] = true[lower]
    drawn = axes.imshow(shown, cmap=NEAR, norm=Normalize(2, FARTHEST), interpolation="nearest")
    bar = axes.figure.colorbar(drawn, ax=axes, shrink=0.7, pad=0.01)
    bar.set_label("Å", fontsize=8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7)
    _label(axes, "distances of CB: predicted above" + ("" if truth is None else ", true below"))


def _draw_attention(axes: Axes, panel: Panel) -> None:
    weights = panel.weights.mean(axis=0)
    axes.imshow(
        weights, cmap=RAMP, norm=Normalize(0, float(np.quantile(weights, 0.995)) or 1.0), interpolation="nearest"
    )
    _label(axes, f"what residues look at: {panel.name}, mean of its heads")


def _label(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=8, color=MUTED, loc="left")
    axes.tick_params(labelsize=7, length=2)
    for side in (axes.xaxis, axes.yaxis):  # residues are counted from 1
        side.set_major_locator(MaxNLocator(integer=True))
        side.set_major_formatter(lambda value, place: f"{value + 1:.0f}")
    axes.spines[:].set_visible(False)


def _draw_chain(axes: Axes, details: Any) -> None:
    """CA atoms joined by lines, coloured by confidence; what is nearer is drawn later and thicker."""
    places = np.array(details["places"])
    turn, centre = broad_side(places), places.mean(axis=0)
    if details["truth"] is not None:
        true = np.array(details["truth"]["places"], dtype=float)
        seen = (true - centre) @ turn
        axes.plot(seen[:, 0], seen[:, 1], color=TRUE, lw=1.2, zorder=1)
    seen = (places - centre) @ turn
    parts = np.stack([seen[:-1, :2], seen[1:, :2]], axis=1)
    depth = (seen[:-1, 2] + seen[1:, 2]) / 2
    order, near = np.argsort(depth), (depth - depth.min()) / max(float(np.ptp(depth)), 1e-9)
    sure = np.array(details["confidence"])
    colours = SURE((sure[:-1] + sure[1:]) / 200)
    axes.add_collection(
        LineCollection(list(parts[order]), colors=colours[order], linewidths=2 + 3 * near[order], capstyle="round")
    )
    for number, name in ((0, "N"), (-1, "C")):
        axes.annotate(name, seen[number, :2], fontsize=9, color=INK)
    axes.autoscale()
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(
        "CA atoms, orange: unsure, blue: sure" + ("" if details["truth"] is None else "; grey: the true chain"),
        fontsize=8, color=MUTED, loc="left",
    )  # fmt: skip


def broad_side(places: Float[np.ndarray, "T 3"]) -> Float[np.ndarray, "3 3"]:
    """The axes of a view that shows points as broad as they are: the directions of most, second and least spread."""
    _, _, axes = np.linalg.svd(places - places.mean(axis=0), full_matrices=True)
    turn = axes.T.copy()
    turn[:, 2] *= np.sign(np.linalg.det(turn)) or 1.0  # a rotation, not a mirror
    return turn
