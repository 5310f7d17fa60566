"""The search for translations that have the terms of a glossary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from regard.data.text.glossary import Glossary
from regard.errors import UsageError
from regard.inference.decoding.constraints import Constraints
from regard.inference.decoding.search import Hypothesis
from regard.inference.decoding.settings import SearchSettings
from regard.inference.pipelines.placed_terms import Draft

if TYPE_CHECKING:
    from regard.inference.pipelines.translator import Translator

OUTLINE_BEAM = 2  # a search that follows an outline finds with two hypotheses what it finds with more


class TermSearch:
    """Decodes sentences with a translator so that the terms of a glossary are in the answers."""

    def __init__(self, translator: Translator):
        self.translator = translator

    def decode(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str],
        to: str,
        settings: SearchSettings,
        glossary: Glossary,
    ) -> list[list[Hypothesis]]:
        """The best answers to every sentence.

        All sentences are searched as without a glossary. Only those whose answers lack terms are searched again.
        """
        tokenizer, search = self.translator.tokenizer, self.translator.source_search.search
        rows, forced = tokenizer.source_ids(sentences, to), tokenizer.target.encode(prefixes)
        terms = [
            self.constraints(sentence, len(row), to, settings, glossary)
            for sentence, row in zip(sentences, rows, strict=True)
        ]
        if self.translator.alignment is None:  # nothing shows the places of terms, so the search finds them
            return search(rows, forced, settings, terms)
        answers = search(rows, forced, settings)
        drafts = [
            Draft(place, sentence, each, answer, len(beginning))
            for place, (sentence, beginning, each) in enumerate(zip(sentences, forced, terms, strict=True))
            if each is not None
            for answer in answers[place]
        ]
        drafts = [draft for draft in drafts if not draft.is_right]
        steered = self._follow(drafts, rows, to, settings) if drafts else []
        for draft, answer in zip(drafts, steered, strict=True):
            others = [
                each for each in answers[draft.sentence] if each is not draft.answer and each.tokens != answer.tokens
            ]
            answers[draft.sentence] = [*others, answer]
        changed = {draft.sentence for draft in drafts}
        return [sorted(each, key=_by_score) if place in changed else each for place, each in enumerate(answers)]

    def constraints(
        self, sentence: str, length: int, to: str, settings: SearchSettings, glossary: Glossary
    ) -> Constraints | None:
        """What the translation of a sentence of so many tokens must contain; None if it has no terms."""
        matches = glossary.find(sentence)
        if not matches:
            return None
        if settings.sample:
            raise UsageError("a glossary needs a search: leave out sampling, or the glossary")
        found, most = self.translator.terms.constraints(sentence, matches, to), settings.limit(length)
        if (needed := found.fewest_tokens) > most:
            first = matches[0].term
            raise UsageError(
                f"{first.where}: the terms of {sentence[:40]!r} take {needed} tokens with the end token, and the "
                f"translation may have {most}; raise --max-length, or shorten the term"
            )
        return found

    def _follow(
        self,
        drafts: Sequence[Draft],
        rows: Sequence[Sequence[int]],
        to: str,
        settings: SearchSettings,
    ) -> list[Hypothesis]:
        """Answers that follow drafts but have all their terms."""
        by = self.translator.aligning()
        sources, answers = [draft.source for draft in drafts], [draft.answer.tokens for draft in drafts]
        looks = self.translator.passes(sources, answers, to=to, layers=by.layer)
        outlines = [draft.outline(look, by) for draft, look in zip(drafts, looks, strict=True)]
        found = self.translator.source_search.search(
            [rows[draft.sentence] for draft in drafts],
            [draft.beginning(outline) for draft, outline in zip(drafts, outlines, strict=True)],
            settings.replace(n_best=1, beam=min(settings.beam, OUTLINE_BEAM)),
            [replace(draft.constraints, outline=each) for draft, each in zip(drafts, outlines, strict=True)],
        )
        return [best for best, *_ in found]


def _by_score(answer: Hypothesis) -> tuple[bool, float]:
    return not answer.finished, -answer.score
