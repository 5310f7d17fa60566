"""Which models translate between two languages: one, or two through a pivot language."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from regard.data.formats.languages import find_language, language_name, same_language, style_of
from regard.documents.language_id import Detected, choose_language, detect
from regard.errors import UsageError
from regard.serve.models.registry import ModelInfo, ModelRegistry

Route = Sequence[tuple[ModelInfo, str]]  # one model, or two through a pivot language, each with its target language


class LanguageRoutes:
    """Finds models and languages among the translation models of a server."""

    def __init__(self, registry: ModelRegistry) -> None:
        self.registry = registry

    def find_model(self, source: str, target: str) -> tuple[ModelInfo, str]:
        """The first model for a language pair, and the model's own code of the target language."""
        infos = self.registry.translation_models()
        if not any(same_language(each.source, source) for each in infos):
            raise UsageError(f"{source} is not supported")
        if not any(each.target(target) for each in infos):
            raise UsageError(f"{target} is not supported")
        for info in infos:
            if same_language(info.source, source) and (to := info.target(target)):
                return info, to
        raise UsageError(f"{source} to {target} is not supported")

    def find_route(self, source: str, target: str) -> Route:
        """The model for a language pair or, if there is none, two models through a pivot language."""
        infos = self.registry.translation_models()
        starts = [each for each in infos if same_language(each.source, source)]
        if not any(each.target(target) for each in starts):
            for first, second in product(starts, infos):
                pivot, to = first.target(second.source), second.target(target)
                if pivot and to:
                    return [(first, pivot), (second, to)]
        return [self.find_model(source, target)]

    def reachable_targets(self, source: str) -> list[str]:
        """The languages that a language is translated into, by one model or through a pivot language."""
        infos = self.registry.translation_models()
        direct = [to for each in infos if same_language(each.source, source) for to in each.targets]
        through = [each for each in infos if find_language(direct, each.source)]
        reached = dict.fromkeys([*direct, *(to for each in through for to in each.targets)])
        return [to for to in reached if not same_language(to, source)]

    def target_language(self, info: ModelInfo, wanted: str) -> str:
        """The model's own code of the target language; `wanted` may be empty if the model has one target only."""
        plain = [code for code in info.targets if not style_of(code)]
        if not wanted and len(plain) == 1:
            return plain[0]
        if not wanted:
            raise UsageError(f"{info.id} translates into {', '.join(info.targets)}; say which")
        if (to := info.target(wanted)) is None:
            raise UsageError(f"{info.id} translates into {', '.join(info.targets)}, not into {wanted}")
        return to

    def source_languages(self, target: str) -> list[str]:
        """The languages that are translated into `target`, by one model or through a pivot language."""
        infos = self.registry.translation_models()
        found = [each.source for each in infos if each.target(target)]
        found += [each.source for each in infos if find_language(self.reachable_targets(each.source), target)]
        if not found:
            raise UsageError(f"{target} is not supported")
        return list(dict.fromkeys(found))

    def detect_language(self, text: str, target: str = "") -> list[Detected]:
        """The languages that the text may be in, best first.

        With a `target`, the first language is one that a model translates from, or the target itself. If the text is
        in any other language, this raises an error.
        """
        found = detect(text, [each.source for each in self.registry.translation_models()])
        if not target:
            return found
        best = choose_language(text, sources := self.source_languages(target), target)
        if not any(same_language(best.language, each) for each in (*sources, target)):
            raise UsageError(
                f"the text is in {_with_names([best.language])}, and the models here translate into "
                f"{_with_names([target])} only from {_with_names(sources)}; if it is in one of these, give that as "
                "the source"
            )
        return [best, *(each for each in found if each.language != best.language)]


def _with_names(codes: Sequence[str]) -> str:
    """Language codes with their English names: English (en), German (de)."""
    return ", ".join(f"{language_name(code)} ({code})" for code in codes)
