"""Reports of models of structures: what residues look at, over the predicted distances and the chain in space."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from regard.data.folding.examples import FoldExample, ProteinInput, find_chains
from regard.data.proteins.structures import SUFFIXES, Chain
from regard.errors import DataError, UsageError
from regard.inference.pipelines.folding import FoldRequest, Prediction, StructurePredictor
from regard.look.adapters.given import GivenInput, Inspected
from regard.look.panels import Panel, Residues
from regard.look.report import AttentionReport
from regard.training.evaluation.structures import score_chain, superposed


def inspect_structure(predictor: StructurePredictor, given: GivenInput) -> Inspected:
    """The structure of the first protein of a file, and every layer and head.

    A file of a structure is folded from its sequence, and compared with it. The text beside the file is not used.
    """
    request, true = _read(predictor, given)
    (prediction,) = predictor.predict([request])
    report = structure_report(predictor, prediction, true)
    return Inspected(report, _as_json(prediction, report.details))


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
    rounded: list[Any] = values.astype(np.float64).round(digits).tolist()
    return rounded


def _read(predictor: StructurePredictor, given: GivenInput) -> tuple[FoldRequest, Chain | None]:
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


def _of_file(predictor: StructurePredictor, file: str | Path) -> tuple[FoldRequest, Chain | None]:
    if set(Path(file).suffixes) & set(SUFFIXES):
        chain = find_chains(file)[0]
        if not chain.known[:, 1].any():
            raise DataError(f"{file}: chain {chain.name} has no CA atom to compare with")
        read = ProteinInput.of(chain.name, chain.sequence, None, chain.numbers, coupled=predictor.config.couplings)
        return FoldRequest(read, chain.told), chain
    requests = predictor.read(file)
    if len(requests) > 1:
        raise UsageError(f"{Path(file).name} has {len(requests)} sequences; give one, or an alignment as .a3m")
    return requests[0], None


def _as_json(prediction: Prediction, details: Any) -> dict[str, Any]:
    return {
        "name": prediction.name, "sequence": prediction.given.sequence, "confidence": details["confidence"],
        "told": list(prediction.told),
    }  # fmt: skip
