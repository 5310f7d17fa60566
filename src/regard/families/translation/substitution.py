"""The search for answers with the terms of a glossary: terms put into free answers, and checked in one pass.

A search that follows an outline (constrained.py) mostly ends with the outline itself, with the terms in their places.
So this answer is guessed, and the model reads all its tokens at once, as in speculative decoding: a search of width 1
says each of them unless another token is more probable by more than the price of a deviation. Where one is, the model
objects, and the search goes on from there. Of several forms of a term, the one that makes the answer most probable is
taken. So is the gender of an article right before a term: what counts is how probable the term is after it, since the
article itself was chosen for the word that the term replaces.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.attention.record import record
from regard.data.batch import pad_rows
from regard.data.formats.languages import find_language
from regard.data.tokenizers.base import SPACE, Tokenizer
from regard.errors import UsageError
from regard.families.translation.glossary import Glossary
from regard.families.translation.terms import Draft, TermEncoder
from regard.look.forced_pass import AlignmentSettings
from regard.look.word_alignment import token_alignment
from regard.search.constrained import DEVIATION
from regard.search.constraints import Constraints, Form, Outline
from regard.search.pipeline import batches_by_length
from regard.search.protocols import DecoderState, ExtendingModel
from regard.search.search import Hypothesis
from regard.search.settings import SearchSettings, Vocabulary
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
            self.constraints(sentence, len(row), settings, glossary)
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
        drafts = [self._placed(draft, to, glossary) for draft in drafts if not draft.is_right]
        steered = self._follow(drafts, rows, to, settings) if drafts else []
        for draft, answer in zip(drafts, steered, strict=True):
            others = [
                each for each in answers[draft.sentence] if each is not draft.answer and each.tokens != answer.tokens
            ]
            answers[draft.sentence] = [*others, answer]
        changed = {draft.sentence for draft in drafts}
        return [sorted(each, key=_by_score) if place in changed else each for place, each in enumerate(answers)]

    def constraints(
        self, sentence: str, length: int, settings: SearchSettings, glossary: Glossary
    ) -> Constraints | None:
        """What the translation of a sentence of so many tokens must contain; None if it has no terms."""
        matches = glossary.find(sentence)
        if not matches:
            return None
        if settings.sample:
            raise UsageError("a glossary needs a search: leave out sampling, or the glossary")
        found, most = self.terms.constraints(matches), settings.limit(length)
        if (needed := found.fewest_tokens) > most:
            first = matches[0].term
            raise UsageError(
                f"{first.where}: the terms of {sentence[:40]!r} take {needed} tokens with the end token, and the "
                f"translation may have {most}; raise --max-length, or shorten the term"
            )
        return found

    def _placed(self, draft: Draft, to: str, glossary: Glossary) -> Draft:
        placed = self.terms.placed(draft.constraints, draft.source, glossary.find(draft.source), to)
        return replace(draft, constraints=placed)

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
            return self.substitution(drafts, rows, by, settings, to)
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


ARTICLES = {  # words before a noun that differ in its gender alone, by language
    "es": ("el la", "los las", "un una", "unos unas", "este esta", "estos estas", "ese esa", "nuestro nuestra"),
    "fr": ("le la", "un une", "ce cette", "mon ma", "ton ta", "son sa"),
    "it": ("il lo la", "i gli le", "un uno una", "del dello della", "nel nello nella", "al allo alla", "questo questa"),
    "pt": ("o a", "os as", "um uma", "do da", "dos das", "no na", "nos nas", "ao à", "este esta", "meu minha"),
}
CONTRACTING = {"es": "a de", "fr": "à de"}  # words that become one with a masculine article: "al", "du"
AGREEMENT = 1.0  # log-probability that another gender of an article must bring: less is chance
MOST_FORMS = 8  # combinations of forms that are read; more are left to the search
MOST_LOGITS = 2**24  # held at once
READ_TOGETHER = 32  # answers of similar length, so that little of them is padding


@dataclass(frozen=True)
class Articles:
    """The articles of a language, as tokens."""

    genders: Mapping[int, Sequence[int]] = field(default_factory=dict)  # each in every gender, itself first
    contracting: Collection[int | None] = ()  # words that leave no choice

    def before(self, tokens: Sequence[int]) -> Sequence[int]:
        """The article at the end of these tokens in every gender; nothing if there is none."""
        return () if {*tokens[-2:-1]} & {*self.contracting} else self.genders.get(tokens[-1], ())


NO_ARTICLES = Articles()


@dataclass(frozen=True)
class Steered:
    """A draft with the places of its terms, and the answer with its terms if the model does not object to it."""

    outline: Outline
    beginning: list[int]  # the tokens that are settled; the search goes on after them
    answer: Hypothesis | None = None


@dataclass(frozen=True)
class Proposal:
    """An answer with its terms: its tokens, and which of them are terms that were put in."""

    draft: int
    tokens: list[int]
    terms: tuple[tuple[int, int], ...]  # (first, last + 1)
    articles: tuple[int, ...] = ()  # the places of articles whose gender is chosen
    changed: int = 0  # how many of them have another than in the draft
    own: tuple[float, ...] = ()  # the log-probability of every token, and of the end
    best: tuple[float, ...] = ()  # that of the most probable token at the same places

    @property
    def total(self) -> float:
        return sum(self.own)

    @property
    def order(self) -> float:
        """What proposals for one draft are compared by."""
        compared = [own for place, own in enumerate(self.own) if place not in self.articles]
        return (sum(compared) - AGREEMENT * self.changed) / len(compared)

    @property
    def objection(self) -> int | None:
        """The first place after a term where the model wants another token much more."""
        places = enumerate(zip(self.best, self.own, strict=True))
        wanted = {place for place, (best, own) in places if best - own > DEVIATION and place > self.terms[0][0]}
        return min((place for place in wanted if not self._is_term(place)), default=None)

    def _is_term(self, place: int) -> bool:
        return place in self.articles or any(first <= place < last for first, last in self.terms)


class Substitution:
    """Puts terms into drafts with the model that searches, if that model reads several tokens at once."""

    def __init__(
        self,
        model: ExtendingModel,
        recorded: nn.Module,
        target: Tokenizer,
        vocabulary: Vocabulary,
        pad: int,
        device: torch.device,
    ):
        self.model, self.recorded, self.target, self.vocabulary = model, recorded, target, vocabulary
        self.pad, self.device = pad, device
        self._known_articles: dict[str, Articles] = {}

    @torch.inference_mode()
    def __call__(
        self,
        drafts: Sequence[Draft],
        rows: Sequence[Sequence[int]],
        by: AlignmentSettings,
        settings: SearchSettings,
        to: str = "",
    ) -> list[Steered]:
        """The drafts with their terms; `rows` are the tokens of their sources."""
        articles = self._articles(to)
        found = dict[int, Steered]()
        for places in batches_by_length([len(row) for row in rows]):
            some, sources = [drafts[place] for place in places], [rows[place] for place in places]
            source, mask = (part.to(self.device) for part in pad_rows(sources, self.pad))
            state = self.model.start(source, mask)
            outlines = self._outlines(some, state, by)
            proposed = self._settled(some, outlines, state, articles) if _is_plain(settings) else {}
            for number, place in enumerate(places):
                limit = settings.limit(len(rows[place]))
                found[place] = self._steered(
                    some[number], outlines[number], proposed.get(number), settings.length_penalty, limit
                )
        return [found[place] for place in range(len(drafts))]

    def _outlines(self, drafts: Sequence[Draft], state: DecoderState, by: AlignmentSettings) -> list[Outline]:
        """The places of terms, by the attention of the model while it says the drafts."""
        inputs = self._padded([[self.vocabulary.start, *draft.answer.tokens] for draft in drafts])
        with record(self.recorded, by.layer, stop=True) as looks:
            self.model.extend(inputs, state.copy())
        heads = looks[by.layer].float().cpu().numpy()
        heads = heads if by.head is None else heads[:, by.head : by.head + 1]
        outlines = []
        for draft, weights in zip(drafts, heads, strict=True):
            tokens = draft.answer.tokens
            words_of = self.target.words_of(tokens, unknown=["?"] * tokens.count(self.target.unknown))
            outlines.append(draft.outline(token_alignment(weights[:, : len(tokens) + 1], shift=by.shift), words_of))
        return outlines

    def _settled(
        self,
        drafts: Sequence[Draft],
        outlines: Sequence[Outline],
        state: DecoderState,
        articles: Articles,
    ) -> dict[int, Proposal]:
        """The best proposal for every draft that can have one."""
        each = enumerate(zip(drafts, outlines, strict=True))
        listed = [one for number, (draft, outline) in each for one in _proposals(number, draft, outline, articles)]
        return _best_of(self._read(listed, state))

    def _steered(
        self, draft: Draft, outline: Outline, proposal: Proposal | None, penalty: float, limit: int
    ) -> Steered:
        if proposal is None or len(proposal.own) > limit:
            return Steered(outline, draft.beginning(outline))
        if (objection := proposal.objection) is not None:
            return Steered(outline, proposal.tokens[:objection])
        score = proposal.total / len(proposal.own) ** penalty
        return Steered(outline, proposal.tokens, Hypothesis(proposal.tokens, score, proposal.total, finished=True))

    def _read(self, proposals: Sequence[Proposal], state: DecoderState) -> list[Proposal]:
        """Proposals with the log-probabilities of their tokens."""
        found = list[Proposal]()
        by_length = sorted(proposals, key=lambda each: len(each.tokens))
        longest = len(by_length[-1].tokens) + 1 if by_length else 1
        most = max(1, min(READ_TOGETHER, MOST_LOGITS // (longest * self.target.size)))
        for first in range(0, len(by_length), most):
            found += self._read_part(by_length[first : first + most], state.copy())
        return found

    def _read_part(self, proposals: Sequence[Proposal], state: DecoderState) -> Iterator[Proposal]:
        answers = [each.tokens for each in proposals]
        state.keep(torch.tensor([each.draft for each in proposals], device=self.device))
        log_p = self.model.extend(self._padded([[self.vocabulary.start, *each] for each in answers]), state).float()
        log_p = log_p.log_softmax(dim=-1)
        log_p.index_fill_(2, torch.tensor(self.vocabulary.forbidden, device=self.device), -math.inf)
        said = self._padded([[*each, self.vocabulary.end] for each in answers])
        own, best = log_p.gather(2, said[:, :, None])[:, :, 0].tolist(), log_p.amax(dim=2).tolist()
        for row, each in enumerate(proposals):
            size = len(each.tokens) + 1
            yield replace(each, own=tuple(own[row][:size]), best=tuple(best[row][:size]))

    def _articles(self, to: str) -> Articles:
        language = find_language(ARTICLES, to) or "" if to else ""
        if language not in self._known_articles:
            ids = {piece: token for token, piece in enumerate(self.target.vocabulary)}
            sets = [words.split() for words in ARTICLES.get(language, ())]
            written = [
                [ids[SPACE + case(word)] for word in words if SPACE + case(word) in ids]
                for words in sets
                for case in (str.lower, str.capitalize)
            ]
            genders = {
                token: [token, *(other for other in tokens if other != token)]
                for tokens in written
                for token in tokens
                if len(tokens) > 1
            }
            contracting = {ids.get(SPACE + word) for word in CONTRACTING.get(language, "").split()}
            self._known_articles[language] = Articles(genders, contracting)
        return self._known_articles[language]

    def _padded(self, rows: Sequence[Sequence[int]]) -> Int[Tensor, "R T"]:
        return pad_rows(rows, self.vocabulary.pad)[0].to(self.device)


def _proposals(number: int, draft: Draft, outline: Outline, articles: Articles = NO_ARTICLES) -> list[Proposal]:
    """A draft with the terms that it lacks in their places, in every form that fits, and each after every gender of its
    article; none where that is no answer."""
    each, said = draft.constraints.each, set(draft.said.values())
    places = zip(outline.places, each, strict=True)
    missing = sorted((place, _fitting(draft, place[0], each.forms)) for place, each in places if place not in said)
    if not draft.answer.finished or not 0 < math.prod(len(forms) for _, forms in missing) <= MOST_FORMS:
        return []
    found = []
    for chosen in product(*_choices(draft, missing, articles)):
        tokens, terms, agreeing, changed, done = list[int](), list[tuple[int, int]](), list[int](), 0, 0
        for ((first, last), _), (form, article) in zip(missing, chosen, strict=True):
            tokens += draft.answer.tokens[done:first]
            if article is not None:
                changed += tokens[-1] != article
                tokens[-1] = article
                agreeing.append(len(tokens) - 1)
            terms.append((len(tokens), len(tokens) + len(form.tokens)))
            tokens += form.tokens
            done = last
        tokens += draft.answer.tokens[done:]
        if draft.with_tokens(tokens).is_right:
            found.append(Proposal(number, tokens, tuple(terms), tuple(agreeing), changed))
    return found


def _choices(
    draft: Draft, missing: Sequence[tuple[tuple[int, int], Sequence[Form]]], articles: Articles
) -> list[list[tuple[Form, int | None]]]:
    """For every missing term its forms, each with every gender of the article right before it; None if there is none,
    or if that would be too much to read."""
    genders, done = list[Sequence[int | None]](), draft.given
    for (first, last), _ in missing:
        genders.append((first > done and articles.before(draft.answer.tokens[:first])) or (None,))
        done = last
    if math.prod(len(forms) * len(few) for (_, forms), few in zip(missing, genders, strict=True)) > MOST_FORMS:
        genders = [(None,)] * len(missing)
    return [list(product(forms, few)) for (_, forms), few in zip(missing, genders, strict=True)]


def _fitting(draft: Draft, place: int, forms: Iterable[Form]) -> list[Form]:
    """The forms that may stand at a place: capitals of a sentence's beginning only there, and joined forms only after
    a mark. At the beginning, a form with a capital is taken if there is one."""
    marks, before = draft.constraints.kinds.marks, draft.answer.tokens[:place]
    after_mark = bool(before) and before[-1] in marks
    beginning = all(token in marks for token in before)
    found = [form for form in forms if form.joined <= after_mark and form.first <= (beginning or after_mark)]
    return [form for form in found if form.first] or found if beginning else found


def _best_of(proposals: Iterable[Proposal]) -> dict[int, Proposal]:
    """The best proposal for every draft; the first of equal ones."""
    best = dict[int, Proposal]()
    for each in proposals:
        if each.draft not in best or each.order > best[each.draft].order:
            best[each.draft] = each
    return best


def _is_plain(settings: SearchSettings) -> bool:
    """Whether the search takes the log-probabilities as the model gives them."""
    s = settings
    changed = s.no_repeat_ngram or s.presence_penalty or s.frequency_penalty or s.logit_bias or s.min_length
    return not changed and s.repetition_penalty == 1
