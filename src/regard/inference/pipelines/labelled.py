"""The labels of an input with their probabilities: what models that classify texts, images or both answer."""

from dataclasses import dataclass, field

from regard.data.tokenizers.unknown_words import UnknownWord


@dataclass(frozen=True)
class Labelled:
    """The labels of a text with their probabilities, best first; for a model that rates texts, the value instead."""

    labels: dict[str, float]
    value: float | None = None
    unknown: list[UnknownWord] = field(default_factory=list)  # words of the text that the model does not know

    @property
    def label(self) -> str:
        return next(iter(self.labels), "")

    @property
    def probability(self) -> float | None:
        return next(iter(self.labels.values()), None)
