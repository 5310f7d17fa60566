"""What a request asks of a search."""

from __future__ import annotations

from regard.config import Config
from regard.search.settings import SearchSettings


class AskedSettings(Config):
    """The values of a model's search settings that a request replaces; None leaves the model's own.

    Requests with equal values may share a batch, so all values can be hashed.
    """

    beam: int | None = None
    n_best: int | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def applied_to(self, settings: SearchSettings) -> SearchSettings:
        """The settings with these values, which are checked there."""
        return settings.replace(**self.model_dump(exclude_none=True))


AS_THE_MODEL = AskedSettings()
