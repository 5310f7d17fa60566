"""What a server remembers: translation memories from files, its own answers, and the corrections of persons."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from regard.documents.kept_answers import MOST_MATCHES, KeptAnswers
from regard.documents.memory import MemoryMatch, TranslationMemory
from regard.documents.sentences import split_text
from regard.errors import DataError
from regard.families.translation.glossary import NO_TERMS, Glossary
from regard.families.translation.memory import said_again
from regard.families.translation.translation import Translation
from regard.serve.models.batching import AS_THE_MODEL, AskedSettings
from regard.serve.models.registry import ModelInfo, ModelRegistry
from regard.serve.settings import ServeSettings


class ServerMemory:
    """Finds earlier translations, and keeps new ones if the server is told to remember."""

    def __init__(self, registry: ModelRegistry, settings: ServeSettings) -> None:
        self.registry, self.files = registry, settings.memories
        self._memories: dict[tuple[str, str], TranslationMemory] = {}
        self.kept = KeptAnswers(Path(settings.remember)) if settings.remember else None

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()

    def find(self, source: str, target: str, text: str) -> list[MemoryMatch]:
        """Similar segments of the server's translation memories in two languages, best first."""
        key, files = (source, target), self.files
        if files and key not in self._memories:
            try:
                self._memories[key] = TranslationMemory.read(files, source, target)
            except DataError as error:  # such as a memory of other languages: the translation goes on without it
                warnings.warn(f"no translation memory for {source} to {target}: {error}", stacklevel=2)
                self._memories[key] = TranslationMemory([])
        found = self._memories[key].find(text) if files else []
        if self.kept is not None:
            found += [each for each in self.kept.find(key, text) if each not in found]
        return sorted(found, key=lambda each: -each.similarity)[:MOST_MATCHES]

    def correct(self, source: str, target: str, text: str, said: str) -> None:
        """Remember what a person wrote as the translation of a text, and of each of its sentences if they correspond.

        The languages are the model's own codes, if a model has both.
        """
        if self.kept is None:
            return
        infos = [each.reading(source) for each in self.registry.translation_models() if each.reads(source)]
        own = ((info.source, to) for info in infos if (to := info.target(target)))
        source, target = languages = next(own, (source, target))
        parts = split_text(text, source).sentences, split_text(said, target).sentences
        pairs = list(zip(*parts, strict=True)) if len(parts[0]) == len(parts[1]) else []
        self.kept.keep(languages, [(text, said), *pairs], corrected=True)

    def applied(
        self,
        info: ModelInfo,
        to: str,
        answers: Sequence[Translation],
        asked: AskedSettings = AS_THE_MODEL,
        glossary: Glossary = NO_TERMS,
    ) -> list[Translation]:
        """Answers with what persons wrote instead of some of them; the others are remembered, if the server does so."""
        if self.kept is None or glossary.terms or asked.sample:
            return list(answers)
        languages = info.source, to
        written = [self.kept.correction(languages, each.source) for each in answers]
        own = [each for each, said in zip(answers, written, strict=True) if said is None and each.finished]
        self.kept.keep(languages, [(each.source, each.text) for each in own], model=info.id)
        return [
            each if said is None or each.translator is None else said_again(each.translator, each.source, said, to)
            for each, said in zip(answers, written, strict=True)
        ]
