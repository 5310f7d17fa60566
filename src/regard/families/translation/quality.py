"""Quality estimation: how good a translation probably is, from what the model itself knows.

No reference is needed. One forced pass gives the probability of every token of an answer, the entropy of every
prediction, and how much of the source the attention covered. Passes with dropout and a model of the reverse direction
add to this evidence if they are asked for (`quality_estimators.py`). Each estimator makes one number
of the evidence, and a calibration turns the best estimator into the quality that is shown: the sentence chrF, from 0 to
1, that such sentences had on held-out data.
"""

import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import Config, SavedConfig
from regard.data.batch import Batch
from regard.errors import ConfigError, DataError
from regard.look.forced_pass import AlignmentSettings, Pass

Flag = Literal["cut", "hallucinated", "repeated"]
LOW_COVERAGE = 0.3  # below this share of attended source words, an answer is cut or says something else
SHORT = 0.5  # target tokens per source token below which an answer of low coverage is cut
SHORTEST_FLAGGED = 4  # source words from which a low coverage means something
BINS = 20  # the most points of a calibration
SAMPLED = 256  # values of each tensor that the fingerprint of a model's weights is made of
Share = Annotated[float, pydantic.Field(ge=0, le=1)]


@dataclass(frozen=True)
class Evidence:
    """What a model knows of one answer: a value for each of its tokens and for its end, and the attention's coverage.

    `coverage` is None for a model without attention between target and source. What follows it is None if it was not
    asked for.
    """

    log_probabilities: Float[np.ndarray, "T"]
    entropies: Float[np.ndarray, "T"]  # in nats, divided by the logarithm of the vocabulary's size: from 0 to 1
    coverage: float | None
    passes: Float[np.ndarray, "K"] | None = None  # the mean log-probability of the answer in each pass with dropout
    agreement: float | None = None  # the mean chrF, 0 to 1, of the answer beside those that are found with dropout
    backward: float | None = None  # the `probability` of the source, given the answer, by a reverse model
    round_trip: float | None = None  # the chrF, 0 to 1, of the source beside the answer translated back


@dataclass(frozen=True)
class Assessment:
    """The estimated quality of a translation (0 to 1), the doubt of each of its words (0 to 1), and what is wrong."""

    quality: float
    doubts: list[float]
    flags: list[Flag]

    def to_json(self) -> dict[str, Any]:
        return {
            "quality": round(self.quality, 4),
            "doubts": [round(doubt, 4) for doubt in self.doubts],
            "flags": list(self.flags),
        }


# Evidence


@torch.inference_mode()
def token_evidence(models: Sequence[nn.Module], batch: Batch) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    """The log-probability of every label, and the entropy of every prediction as a share of the greatest possible one;
    several models are averaged as an ensemble averages them."""
    logits = [model(batch.source, batch.source_mask, batch.inputs).float() for model in models]
    log_p = torch.stack([each.log_softmax(dim=-1) for each in logits]).logsumexp(dim=0) - math.log(len(logits))
    entropy = torch.special.entr(log_p.exp()).sum(dim=-1) / math.log(log_p.shape[-1])
    return log_p.gather(-1, batch.labels[..., None]).squeeze(-1), entropy


def coverage(seen: Pass, settings: AlignmentSettings) -> float:
    """The share of the source words that the answer attended to: the mean of min(1, total attention of a word)."""
    if not seen.source_words:
        return 1.0
    totals, words = np.zeros(seen.source_words), np.asarray(seen.source_words_of)
    np.add.at(totals, words[words >= 0], seen.rows(settings).sum(axis=0)[words >= 0])
    return float(np.minimum(totals, 1.0).mean())


# Estimators: all of them are greater for better answers


def _probability(evidence: Evidence) -> float:
    """The geometric mean of the tokens' probabilities."""
    return float(np.exp(evidence.log_probabilities.mean()))


def _certainty(evidence: Evidence) -> float:
    """1 less the mean entropy of the predictions: whether other tokens were possible at all."""
    return float(1.0 - evidence.entropies.mean())


def _weakest(evidence: Evidence) -> float:
    """The probability of the least probable token."""
    return float(np.exp(evidence.log_probabilities.min()))


def _likelihood(evidence: Evidence) -> float:
    """The probability of the whole answer, which falls with its length, by its logarithm x as 1 / (1 - x)."""
    return float(1.0 / (1.0 - evidence.log_probabilities.sum()))


def _coverage(evidence: Evidence) -> float:
    """The share of the source that was attended to; 1 for a model without such attention."""
    return 1.0 if evidence.coverage is None else evidence.coverage


def _dropout(evidence: Evidence) -> float | None:
    """`probability` by the mean of the log-probabilities of all passes with dropout."""
    return None if evidence.passes is None else float(np.exp(evidence.passes.mean()))


def _steadiness(evidence: Evidence) -> float | None:
    """How little the log-probabilities of these passes differ, by their standard deviation x as 1 / (1 + x)."""
    return None if evidence.passes is None else float(1.0 / (1.0 + evidence.passes.std()))


ESTIMATORS: Mapping[str, Callable[[Evidence], float | None]] = {
    "probability": _probability,
    "certainty": _certainty,
    "weakest": _weakest,
    "likelihood": _likelihood,
    "coverage": _coverage,
    "dropout": _dropout,
    "steadiness": _steadiness,
    "agreement": lambda evidence: evidence.agreement,
    "backward": lambda evidence: evidence.backward,
    "round_trip": lambda evidence: evidence.round_trip,
}
DEFAULT = "probability"


def estimates(evidence: Sequence[Evidence]) -> dict[str, list[float]]:
    """The value of every answer by each estimator for which all of them have evidence."""
    found = {name: [estimate(each) for each in evidence] for name, estimate in ESTIMATORS.items()}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: values for name, values in known.items() if len(values) == len(evidence)}


# Calibration


class Curve(Config):
    """How an estimator's value becomes a quality: by linear interpolation between points (value, quality)."""

    spearman: Annotated[float, pydantic.Field(ge=-1, le=1)]  # its correlation with the scores it was fitted to
    points: Annotated[tuple[tuple[float, Share], ...], pydantic.Field(min_length=1)]

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Curve":
        values, qualities = ([point[side] for point in self.points] for side in (0, 1))
        if values != sorted(set(values)) or qualities != sorted(qualities):
            raise ConfigError("points must be sorted: a greater value never has a lower quality")
        return self

    def quality(self, value: float) -> float:
        values, qualities = zip(*self.points, strict=True)
        return float(np.interp(value, values, qualities))


class Calibration(SavedConfig):
    """How the evidence of an answer becomes its quality: by the curve of the best estimator there is evidence for.

    Without curves the quality is the value of `probability`. This is the default, for a model that was not calibrated.
    """

    file_name: ClassVar[str] = "quality.json"

    estimators: dict[str, Curve] = pydantic.Field(default_factory=dict)
    sentences: int = 0  # that it was fitted on
    weights: str = ""  # the fingerprint of the weights that it was fitted to

    @pydantic.model_validator(mode="before")
    @classmethod
    def _leave_earlier_form(cls, values: Any) -> Any:
        """Files of the version before had one curve, `points`, and named no weights: nothing of them can be used."""
        return {} if isinstance(values, dict) and "points" in values else values

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Calibration":
        if unknown := sorted(set(self.estimators) - set(ESTIMATORS)):
            raise ConfigError(f"estimators has {unknown[0]!r}; known: {', '.join(ESTIMATORS)}")
        return self

    def picked(self, evidence: Evidence) -> str:
        """The estimator with the highest correlation among those that this evidence allows."""
        fitted = [name for name in self.estimators if ESTIMATORS[name](evidence) is not None]
        return max(fitted, key=lambda name: self.estimators[name].spearman, default=DEFAULT)

    def quality(self, evidence: Evidence) -> float:
        name = self.picked(evidence)
        value = ESTIMATORS[name](evidence)
        assert value is not None
        return self.estimators[name].quality(value) if name in self.estimators else value

    @classmethod
    def read(cls, folder: Path, model: nn.Module) -> "Calibration":
        """The calibration in the folder of this model, or the default if there is none for its weights."""
        if not (folder / cls.file_name).is_file():
            return cls()
        found = cls.load(folder)
        if found.weights == fingerprint(model):
            return found
        warnings.warn(
            f"{folder / cls.file_name} does not name these weights and is not used; "
            f"calibrate anew: regard evaluate PAIRS -m {folder} --calibrate",
            stacklevel=2,
        )
        return cls()


def calibration_files(folder: Path) -> list[str]:
    """The file that belongs to a folder if it was calibrated."""
    return [Calibration.file_name]


def fingerprint(model: nn.Module) -> str:
    """A name for the weights of a model, made of a sample of every tensor: a training step changes it.

    Tensors of zeros do not count: a Marian folder has a bias of zeros where ours has none.
    """
    digest = hashlib.sha256()
    for tensor in model.parameters():
        values = tensor.detach().flatten()
        sample = values[:: max(1, len(values) // SAMPLED)].float().cpu().numpy()
        digest.update(sample.tobytes() if sample.any() else b"")
    return digest.hexdigest()[:16]


def fit_calibration(evidence: Sequence[Evidence], scores: Sequence[float], weights: str = "") -> Calibration:
    """A calibration to the true scores (0 to 1) of answers: a curve for each estimator for which there is evidence.

    Curves are isotonic regressions between the means of equal parts of the sentences. The estimator used is the one
    that ranks sentences most like their scores, as Spearman's correlation says.
    """
    if len(evidence) < 2:
        raise DataError(f"{len(evidence)} sentences came to calibrate by; expected at least 2, better 500")
    curves = {name: _fit_curve(values, scores) for name, values in estimates(evidence).items()}
    if max(curve.spearman for curve in curves.values()) <= 0:
        warnings.warn("no estimator ranks these sentences as their scores do; calibrate by more of them", stacklevel=2)
    return Calibration(estimators=curves, sentences=len(evidence), weights=weights)


def _fit_curve(values: Sequence[float], scores: Sequence[float]) -> Curve:
    parts = [part for part in np.array_split(np.argsort(values, kind="stable"), BINS) if len(part)]
    at = np.array([np.take(values, part).mean() for part in parts])
    means = np.array([np.take(scores, part).mean() for part in parts])
    levels = isotonic(means, np.array([float(len(part)) for part in parts]))
    points = dict(zip(at.tolist(), np.clip(levels, 0, 1).tolist(), strict=True))  # equal values: the last level
    return Curve(spearman=np.clip(spearman(values, scores), -1, 1).item(), points=tuple(points.items()))


def isotonic(values: Float[np.ndarray, "N"], weights: Float[np.ndarray, "N"]) -> Float[np.ndarray, "N"]:
    """The non-decreasing sequence with the least weighted squared error (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (one, a, here), (other, b, there) = pools.pop(), pools.pop()
            pools.append(((one * a + other * b) / (a + b), a + b, here + there))
    return np.repeat([mean for mean, _, _ in pools], [members for _, _, members in pools])


# Correlation


def pearson(one: Sequence[float], other: Sequence[float]) -> float:
    """The linear correlation; 0 if one of the two is constant."""
    a, b = (np.asarray(each, dtype=np.float64) - np.mean(each) for each in (one, other))
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale > 0 else 0.0


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """The correlation of the ranks; equal values share the mean of their ranks."""
    return pearson(_ranks(one), _ranks(other))


def _ranks(values: Sequence[float]) -> list[float]:
    _, group, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group].tolist()


# Doubts and flags


def word_doubts(log_probabilities: Sequence[float], words_of: Sequence[int], words: int) -> list[float]:
    """For each target word 1 less the probability of its least probable token; 0 for a word without tokens."""
    doubts = [0.0] * words
    for log_p, word in zip(log_probabilities, words_of, strict=False):  # the end token has no word
        if 0 <= word < words:
            doubts[word] = max(doubts[word], 1.0 - math.exp(min(log_p, 0.0)))
    return doubts


def find_flags(
    source: Sequence[int], target: Sequence[int], words: int, covered: float | None, *, finished: bool, repeated: bool
) -> list[Flag]:
    """What is wrong with an answer, from the token ids of both sides, the words of the source and the coverage.

    cut: the length limit was reached, or a short answer left most of the source unattended. hallucinated: an answer of
    usual length did. repeated: it says something over and over that the source does not.
    """
    low = covered is not None and covered < LOW_COVERAGE and words >= SHORTEST_FLAGGED
    short = len(target) < SHORT * len(source)
    flags: list[Flag] = []
    if not finished or (low and short):
        flags.append("cut")
    if low and not short:
        flags.append("hallucinated")
    if repeated:
        flags.append("repeated")
    return flags
