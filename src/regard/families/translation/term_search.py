"""The search for translations that have the terms of a glossary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from regard.errors import UsageError
from regard.families.translation.glossary import Glossary
from regard.families.translation.substitution import Steered, Substitution
from regard.families.translation.terms import Draft, TermEncoder
from regard.search.constraints import Constraints
from regard.search.protocols import ExtendingModel
from regard.search.search import Hypothesis
from regard.search.settings import SearchSettings
from regard.search.speculative import SpeculativeModel

if TYPE_CHECKING:
    from regard.families.translation.translator import Translator


OUTLINE_BEAM = 2  # a search that follows an outline finds with two hypotheses what it finds with more


class TermSearch:
    """Decodes sentences with a translator so that the terms of a glossary are in the answers."""

    def __init__(self, translator: Translator):
        self.translator, self.terms = translator, TermEncoder(translator.tokenizer)

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
        found, most = self.terms.constraints(sentence, matches, to), settings.limit(length)
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
        steered = self._steered(drafts, [rows[draft.sentence] for draft in drafts], to, settings)
        open_ones = [number for number, each in enumerate(steered) if each.answer is None]
        searched = self.translator.source_search.search(
            [rows[drafts[number].sentence] for number in open_ones],
            [steered[number].beginning for number in open_ones],
            settings.replace(n_best=1, beam=min(settings.beam, OUTLINE_BEAM)),
            [replace(drafts[number].constraints, outline=steered[number].outline) for number in open_ones],
        )
        found = dict(zip(open_ones, searched, strict=True))
        return [each.answer or found[number][0] for number, each in enumerate(steered)]

    def _steered(
        self, drafts: Sequence[Draft], rows: Sequence[Sequence[int]], to: str, settings: SearchSettings
    ) -> list[Steered]:
        """Drafts with the places of their terms, and with their terms if the model can check that at once."""
        by, translator = self.translator.aligning(), self.translator
        if self.substitution is not None:
            return self.substitution(drafts, rows, by, settings)
        sources, answers = [draft.source for draft in drafts], [draft.answer.tokens for draft in drafts]
        looks = translator.passes(sources, answers, to=to, layers=by.layer)
        outlines = [
            draft.outline(look.rows(by), look.target_words_of) for draft, look in zip(drafts, looks, strict=True)
        ]
        return [Steered(outline, draft.beginning(outline)) for draft, outline in zip(drafts, outlines, strict=True)]

    @cached_property
    def substitution(self) -> Substitution | None:
        """What puts terms into free answers; None if the model reads one token at a time."""
        model, tokenizer = self.translator.decoder, self.translator.tokenizer
        model = model.model if isinstance(model, SpeculativeModel) else model
        if not isinstance(model, ExtendingModel):
            return None
        return Substitution(
            model,
            self.translator.models[0],
            tokenizer.target,
            self.translator.vocabulary,
            tokenizer.source.pad,
            self.translator.device,
        )


def _by_score(answer: Hypothesis) -> tuple[bool, float]:
    return not answer.finished, -answer.score
