"""Text in, translation with its attention out: what the command line, the server and `regard.load` use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

import torch
from torch import nn

from regard.data.arguments import all_texts
from regard.data.batch import collate
from regard.data.formats.languages import same_language, style_of, styled
from regard.data.tokenizers.base import SPACE, Tokenizer
from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words
from regard.documents.sentences import split_sentences
from regard.errors import CheckpointError, DataError, UsageError
from regard.families.translation.repetition import repeats
from regard.families.translation.translation import AnswerText, Partial, SourceSearch, Translation
from regard.look.forced_pass import ALIGNMENT, CROSS, AlignmentSettings, Pass, default_alignment, forced_passes, within
from regard.look.word_alignment import Link
from regard.search.pipeline import BATCH_SENTENCES, DecodingPipeline
from regard.search.search import Hypothesis, Search
from regard.search.settings import SearchSettings, Vocabulary, read_decoding

if TYPE_CHECKING:  # glossaries and estimates of quality are imported by the first sentence that asks for them
    from regard.families.translation.glossary import Glossary
    from regard.families.translation.quality_estimators import QualityEstimator
    from regard.families.translation.substitution import TermSearch
    from regard.families.translation.terms import TermEncoder

    Terms = Glossary | Mapping[str, str | Sequence[str]]  # a glossary, or source terms with their translations
MAX_SOURCE = 512  # tokens; a longer text is cut into sentences, and a longer sentence is refused
MOST_SENTENCES = 4  # of a text that is translated as a whole, as many as recipes join (data.variants.joined)
SHORT_TEXT = 60  # characters of a text whose sentences are not counted
NO_LOOPS = (3, 2)  # tokens that may not be repeated when a loop is searched again
MAX_TOKEN_CHARACTERS = 20  # more than a token has on average


class Translator(DecodingPipeline):
    """One trained translation model, or several that decide together, with its tokenizer and decoding defaults."""

    pipeline: ClassVar[str] = "translator"

    def __init__(
        self,
        models: Sequence[nn.Module],
        tokenizer: PairTokenizer,
        *,
        settings: SearchSettings | None = None,
        alignment: AlignmentSettings | None = None,
        folder: Path | None = None,
        name: str = "",
        precision: str = "fp32",
        graphs: bool = True,
    ):
        target = tokenizer.target
        super().__init__(
            models, end=target.end, settings=settings, name=name, precision=precision, graphs=graphs
        )  # fmt: skip
        self.tokenizer, self.vocabulary = tokenizer, _vocabulary(target)
        self.alignment = alignment or default_alignment(self.models[0])
        self.longest = self.positions or MAX_SOURCE
        self.answer_text = AnswerText(tokenizer, self.alignment, self._record_pass)
        self.source_search = SourceSearch(self.decoder, self.vocabulary, tokenizer.source.pad, self.device)
        self.folder = folder  # where a fitted estimate of quality is, if there is one

    @cached_property
    def term_search(self) -> TermSearch:
        """The search for answers that have the terms of a glossary."""
        from regard.families.translation.substitution import TermSearch

        return TermSearch(self)

    @property
    def source_languages(self) -> tuple[str, ...]:
        return self.tokenizer.source_languages

    @property
    def target_languages(self) -> tuple[str, ...]:
        return self.tokenizer.target_languages

    @property
    def terms(self) -> TermEncoder:
        """Makes constraints of terms."""
        return self.term_search.terms

    @cached_property
    def quality(self) -> QualityEstimator:
        """Estimates how good answers are, as fitted to data where its folder says so."""
        from regard.families.translation.quality import Calibration
        from regard.families.translation.quality_estimators import QualityEstimator

        fitted = None if self.folder is None else Calibration.read(self.folder, self.models[0])
        return QualityEstimator(self, fitted or Calibration())

    @classmethod
    def runs(cls, model: nn.Module) -> bool:
        return hasattr(model, "step")

    @classmethod
    def expected(cls) -> str:
        return "a translator"

    @classmethod
    def load(
        cls,
        *folders: str | Path,
        device: str = "cpu",
        allow_pickle: bool = False,
        precision: str = "fp32",
        graphs: bool = True,
    ) -> Translator:
        """Read one model folder, or several with the same tokenizer to translate as an ensemble."""
        loaded = cls.read_models(folders, device, allow_pickle)
        tokenizers = [PairTokenizer.load(each.folder) for each in loaded]
        for folder, tokenizer in zip(folders, tokenizers, strict=True):
            if tokenizer != tokenizers[0]:
                raise CheckpointError(
                    f"{folder} was trained with another tokenizer than {folders[0]}; an ensemble needs the same files"
                )
        first = loaded[0].folder
        return cls(
            [each.model for each in loaded],
            tokenizers[0],
            settings=read_decoding(first).settings,
            alignment=_read_alignment(first),
            folder=first,
            name=Path(folders[0]).name,
            precision=precision,
            graphs=graphs,
        )

    @overload
    def translate(
        self,
        text: str,
        *,
        to: str = ...,
        style: str = ...,
        prefix: str = ...,
        glossary: Terms | None = ...,
        settings: SearchSettings | None = ...,
        **changes: Any,
    ) -> Translation: ...

    @overload
    def translate(
        self,
        text: Sequence[str],
        *,
        to: str = ...,
        style: str = ...,
        prefix: str = ...,
        glossary: Terms | None = ...,
        settings: SearchSettings | None = ...,
        **changes: Any,
    ) -> list[Translation]: ...

    def translate(
        self,
        text: str | Sequence[str],
        *,
        to: str = "",
        style: str = "",
        prefix: str = "",
        glossary: Terms | None = None,
        settings: SearchSettings | None = None,
        **changes: Any,
    ) -> Translation | list[Translation]:
        """Translate one text or several. `settings` replace the model's own; `changes` are single values of
        SearchSettings, such as beam=5.

        `prefix` is the beginning that every translation must have, kept as it is written, also where the model does not
        know its words. The terms of a `glossary` are translated as it says, and `style` is one that the model learnt.
        Texts of more than four sentences, and those that are too long for the model, are translated sentence by
        sentence.
        """
        settings = self.search_settings(changes, settings)
        texts = all_texts(text)
        to = self.target_language(to, style)
        pieces = [self.sentences(each) for each in texts]
        sentences = [part for parts in pieces for part in parts]
        prefixes = [beginning for parts in pieces for beginning in _prefixes(parts, prefix)]
        terms = _as_glossary(glossary)
        decoded = iter(self.decode(sentences, prefixes, to, settings, terms))
        answers = [
            self._joined(each, parts, [next(decoded) for _ in parts], to, prefix, terms)
            for each, parts in zip(texts, pieces, strict=True)
        ]
        return answers[0] if isinstance(text, str) else answers

    def stream(
        self,
        text: str,
        *,
        to: str = "",
        style: str = "",
        prefix: str = "",
        glossary: Terms | None = None,
        settled: bool = False,
        watch: Callable[[Search], None] = lambda search: None,
        settings: SearchSettings | None = None,
        **changes: Any,
    ) -> Iterator[Partial]:
        """The best translation so far, after every step; beam search may still replace it.

        With `settled`, only the beginning that cannot change any more: what all hypotheses share, in whole words.
        `watch` is called with the search after each of its steps. The last item has the whole translation.
        """
        settings, to, done = self.search_settings(changes, settings), self.target_language(to, style), ""
        parts, found, terms = self.sentences(text), list[list[Hypothesis]](), _as_glossary(glossary)
        shown = settings.replace(n_best=1) if settings.widens else settings
        for part, beginning in zip(parts, _prefixes(parts, prefix), strict=True):
            running = self.begin(part, to=to, settings=shown, prefix=beginning, glossary=terms)
            (row,) = self.tokenizer.source_ids([part], to)
            while not running.done:
                running.advance()
                watch(running)
                ids = self.answer_text.final_ids(running.common_prefix()) if settled else running.history[0, 0].tolist()
                yield Partial(f"{done} {self.answer_text.decode(ids, beginning)}".strip())
            results = running.results()
            again = settings.widens or (settings.avoid_loops and self.repeats(part, row, results[0][0].tokens))
            found += self.decode([part], [beginning], to, settings, terms) if again else results
            done = f"{done} {self.answer_text.text(part, found[-1][0].tokens, to, beginning)}".strip()
            yield Partial(done)
        if parts:
            whole = self._joined(text, parts, found, to, prefix, terms)
            yield Partial(whole.text, whole.truncated, whole)

    def decode(
        self,
        sentences: Sequence[str],
        prefixes: Sequence[str],
        to: str,
        settings: SearchSettings,
        glossary: Glossary | None = None,
    ) -> list[list[Hypothesis]]:
        """The best answers to every sentence, with the terms of a glossary if there is one."""
        if glossary is not None:
            return self.term_search.decode(sentences, prefixes, to, settings, glossary)
        rows, forced = self.tokenizer.source_ids(sentences, to), self.tokenizer.target.encode(prefixes)
        found = self.source_search.search(rows, forced, settings)
        return self._without_loops(sentences, rows, forced, found, settings)

    def _without_loops(
        self,
        sentences: Sequence[str],
        rows: Sequence[Sequence[int]],
        forced: Sequence[Sequence[int]],
        found: list[list[Hypothesis]],
        settings: SearchSettings,
    ) -> list[list[Hypothesis]]:
        """Search again where the best answer is a loop, with ever shorter repetitions forbidden."""
        for ngram in NO_LOOPS if settings.avoid_loops and not settings.no_repeat_ngram else ():
            places = [
                place
                for place, hypotheses in enumerate(found)
                if self.repeats(sentences[place], rows[place], hypotheses[0].tokens)
            ]
            some = [rows[place] for place in places], [forced[place] for place in places]
            again = self.source_search.search(*some, settings.replace(no_repeat_ngram=ngram))
            for place, hypotheses in zip(places, again, strict=True):
                found[place] = hypotheses
        return found

    def repeats(self, source: str, source_ids: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether an answer says something over and over that its source does not."""
        return repeats(source_ids, ids, source, self.tokenizer.target.decode(ids))

    def begin(
        self,
        sentence: str,
        *,
        to: str,
        settings: SearchSettings,
        prefix: str = "",
        glossary: Glossary | None = None,
    ) -> Search:
        """A search for one sentence, to be advanced by the caller."""
        (row,) = self.tokenizer.source_ids([sentence], to)
        forced = self.tokenizer.target.encode([prefix])[0]
        if glossary is not None and self.term_search.constraints(sentence, len(row), settings, glossary):
            ((answer, *_),) = self.decode([sentence], [prefix], to, settings, glossary)
            forced = [*answer.tokens, *([self.vocabulary.end] if answer.finished else [])]  # searched, and said again
        with torch.inference_mode():
            return Search(self.decoder, self.source_search.start([row], [forced], settings), settings, self.vocabulary)

    def passes(
        self,
        sources: Sequence[str],
        answers: Sequence[Sequence[int] | str],
        *,
        to: str = "",
        layers: str | Sequence[str] = CROSS,
        scores: bool = False,
    ) -> list[Pass]:
        """The recorded attention of the first model while it is forced to say `answers` (token ids, or texts) for
        `sources`; with `scores`, what comes before the softmax instead."""
        target, to = self.tokenizer.target, self.target_language(to)
        ids, words = [], []
        for answer in answers:
            if isinstance(answer, str):
                ids.append(target.encode([answer])[0])
                words.append(within(target.words_in(answer), len(answer.split())))
            else:  # an unknown token stands for one word: the one copied from the source
                ids.append(list(answer))
                words.append(target.words_of(answer, unknown=["?"] * list(answer).count(target.unknown)))
        found: list[Pass] = []
        for first in range(0, len(sources), BATCH_SENTENCES):
            rows = slice(first, first + BATCH_SENTENCES)
            found += forced_passes(
                self.models[0], self.tokenizer, sources[rows], ids[rows], words[rows],
                to=to, layers=layers, scores=scores,
            )  # fmt: skip
        return [
            replace(each, target_words=len(answer.split())) if isinstance(answer, str) else each
            for each, answer in zip(found, answers, strict=True)
        ]

    @torch.inference_mode()
    def log_probabilities(self, source: str, ids: Sequence[int], *, to: str = "") -> torch.Tensor:
        """The log-probability of every token at each place of an answer and at its end: [T + 1, V]."""
        target, rows = self.tokenizer.target, self.tokenizer.source_ids([source], self.target_language(to))
        batch = collate(rows, [[*ids, target.end]], pad=target.pad, start=target.start).to(self.device)
        logits = [model(batch.source, batch.source_mask, batch.inputs).float() for model in self.models]
        return torch.stack([each[0].softmax(dim=-1) for each in logits]).mean(dim=0).log()

    def align(self, sources: Sequence[str], targets: Sequence[str], *, to: str = "") -> list[list[Link]]:
        """Word links between given translations: (source word, target word), counted from 0."""
        settings = self.aligning()
        return [each.links(settings) for each in self.passes(sources, targets, to=to, layers=settings.layer)]

    def aligning(self) -> AlignmentSettings:
        """How attention aligns words; refuses a model without attention between target and source."""
        if self.alignment is None:
            raise UsageError(
                f"{self.name or 'this model'} has no attention between target and source to align words by"
            )
        return self.alignment

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that become unknown tokens."""
        return unknown_words(text, self.tokenizer.source.reads)

    def unknown_in(self, answer: Translation) -> list[UnknownWord]:
        """The unknown words of a source, and those that were copied because the model has no word for them; none if the
        answer is from a translation memory."""
        if answer.remembered is not None:
            return []
        found = self.unknown_words(answer.source)
        copied = dict.fromkeys(self.answer_text.copied_words(answer))  # a word may be copied twice
        new = [word for word in copied if not any(word.start < each.end and each.start < word.end for each in found)]
        return sorted([*found, *new], key=lambda each: each.start)

    def target_language(self, to: str = "", style: str = "") -> str:
        """The target language asked for, in a style that the model learnt; a model with one language needs none."""
        targets = self.tokenizer.target_languages
        plain = [code for code in targets if not style_of(code)]
        to = to or (plain[0] if len(plain) == 1 else "")
        if style and styled(to, style) not in targets:
            known = [style_of(code) for code in targets if style_of(code) and same_language(code, to)]
            told = f"it knows {', '.join(known)}" if known else "it learnt none; see data.style in docs/steering.md"
            raise UsageError(f"{self.name or 'this model'} has no style {style!r} for {to or 'its language'}: {told}")
        to = styled(to, style)
        self.tokenizer.tag(to)  # refuses languages that the model does not know
        return to

    def sentences(self, text: str) -> list[str]:
        """The text as it is if it is short and the model can read it at once, else its sentences; nothing if it is
        blank."""
        if not text.strip():
            return []
        if (fits := self._fits(text)) and len(text) <= SHORT_TEXT:
            return [text]
        cut = (each.strip() for each in split_sentences(text, self.tokenizer.source_language))
        sentences = [each for each in cut if each]
        if fits and len(sentences) <= MOST_SENTENCES:
            return [text]
        for sentence in sentences:
            if not self._fits(sentence):
                raise DataError(
                    f"the sentence that begins with {sentence[:40]!r} has more than {self.longest - 2} tokens, the "
                    "most that this model reads at once; break it into shorter sentences"
                )
        return sentences

    def search_settings(self, changes: Mapping[str, Any], settings: SearchSettings | None = None) -> SearchSettings:
        """How this model decodes, or as `settings` say, with some values changed."""
        settings = (settings or self.settings).replace(**changes)
        if self.positions is None:
            return settings
        most = self.positions - 1  # the start token takes one position
        longest = min(settings.max_length or settings.longest or most, most)
        return settings.replace(max_length=longest, min_length=min(settings.min_length, longest))

    def _fits(self, text: str) -> bool:
        """Whether the model can read a text at once; the beginning of a very long text is enough to say no."""
        beginning = text[: MAX_TOKEN_CHARACTERS * self.longest]
        return all(len(self.tokenizer.source.encode([each])[0]) < self.longest - 1 for each in (beginning, text))

    def _record_pass(self, source: str, ids: list[int], to: str, layer: str) -> Pass:
        (seen,) = self.passes([source], [ids], to=to, layers=layer)
        return seen

    def _joined(
        self,
        text: str,
        parts: list[str],
        found: list[list[Hypothesis]],
        to: str,
        prefix: str,
        glossary: Glossary | None,
    ) -> Translation:
        """One translation from the hypotheses of a text's sentences; alternatives exist for single sentences only."""
        best = self._translation(text, parts, [hypotheses[0] for hypotheses in found], to, prefix, glossary)
        others = found[0][1:] if len(parts) == 1 else []
        best.alternatives.extend(self._translation(text, parts, [other], to, prefix, glossary) for other in others)
        return best

    def _translation(
        self, text: str, parts: list[str], found: list[Hypothesis], to: str, prefix: str, glossary: Glossary | None
    ) -> Translation:
        spoken = [
            self.answer_text.text(part, hypothesis.tokens, to, beginning)
            for part, hypothesis, beginning in zip(parts, found, _prefixes(parts, prefix), strict=True)
        ]
        if glossary is not None:
            spoken = [self.terms.written(said, glossary.find(part)) for part, said in zip(parts, spoken, strict=True)]
        ids = [hypothesis.tokens for hypothesis in found]
        return Translation(
            source=text,
            text=" ".join(spoken),
            score=sum(hypothesis.score for hypothesis in found) / max(len(found), 1),
            finished=all(each.finished and said for each, said in zip(found, spoken, strict=True)),
            tokens=[piece for each in ids for piece in self.tokenizer.target.pieces(each)],
            parts=list(zip(parts, ids, strict=True)),
            translator=self,
            to=to,
            prefix=prefix,
            glossary=glossary,
        )


def _vocabulary(target: Tokenizer) -> Vocabulary:
    """What a search must know of the tokens of translations."""
    blank = {token for token, piece in enumerate(target.vocabulary) if not piece.replace(SPACE, " ").strip()}
    blank |= set() if target.capital is None else {target.capital}
    return Vocabulary(target.start, target.end, target.pad, frozenset(blank))


def _as_glossary(given: Terms | None) -> Glossary | None:
    """A glossary as callers give it: one, a mapping of terms, or none."""
    if not given:  # a glossary without terms is false
        return None
    from regard.families.translation.terms import as_glossary

    return as_glossary(given)


def _prefixes(parts: Sequence[str], prefix: str) -> list[str]:
    """The prefix of each sentence of a text: the first has the prefix of the text, the others none."""
    return [prefix if number == 0 else "" for number in range(len(parts))]


def _read_alignment(folder: Path) -> AlignmentSettings | None:
    file = folder / ALIGNMENT
    return AlignmentSettings.parse(json.loads(file.read_text("utf-8")), where=str(file)) if file.is_file() else None
