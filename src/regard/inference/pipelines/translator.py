"""Text in, translation with its attention out: what the command line, the server and `regard.load` use."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

import numpy as np
import torch

from regard.checkpoints import load_model
from regard.data.arguments import all_texts
from regard.data.batch import collate, pad_rows
from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words
from regard.device import find_device
from regard.documents.sentences import cut_sentences
from regard.errors import CheckpointError, DataError, UsageError
from regard.inference.decoding.cuda_graphs import captured
from regard.inference.decoding.folder_settings import read_decoding
from regard.inference.decoding.search import Ensemble, Hypothesis, Search, SearchSettings, Steps, Vocabulary, search
from regard.inference.decoding.speculative import learned_positions, running_form
from regard.inference.insight.forced_pass import (
    ALIGNMENT,
    CROSS,
    AlignmentSettings,
    Pass,
    default_alignment,
    forced_passes,
    within,
)
from regard.inference.insight.word_alignment import Link

LONGEST_SOURCE = 512  # tokens; a longer text is cut into sentences, and a longer sentence is refused
LONGEST_PIECE = 20  # characters; more than a token has on average
BATCH_TOKENS, BATCH_SENTENCES, BATCH_HYPOTHESES = 4096, 64, 1024


@dataclass(frozen=True)
class Translation:
    """One translated text. Its attention is computed when it is first asked for, by one forced pass."""

    source: str
    text: str
    score: float
    finished: bool  # False: the length limit came before the end of the sentence
    tokens: list[str]
    to: str = ""
    prefix: str = ""  # what it was made to begin with
    parts: Sequence[tuple[str, list[int]]] = field(default=(), repr=False)  # sentences, and the token ids of each
    alternatives: list[Translation] = field(default_factory=list)
    translator: Translator | None = field(default=None, repr=False, compare=False)

    @property
    def truncated(self) -> bool:
        """Whether something may be missing because a limit was reached."""
        return not self.finished

    @property
    def source_words(self) -> list[str]:
        return [word for source, _ in self.parts for word in source.split()]

    @property
    def target_words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def unknown(self) -> list[UnknownWord]:
        """The words of the source that the model does not know, those among them that were copied from it."""
        return self.translator.unknown_in(self) if self.translator is not None else []

    @cached_property
    def attention(self) -> np.ndarray:
        """Word-level weights of the aligning layer: [target words, source words], rows sum to 1."""
        return _along_diagonal([each.words(self._settings()) for each in self._passes()])

    @cached_property
    def alignment(self) -> list[Link]:
        """(source word, target word) links, counted from 0."""
        links, sources, targets = [], 0, 0
        for (source, _), each in zip(self.parts, self._passes(), strict=True):
            links += [(s + sources, t + targets) for s, t in each.links(self._settings())]
            sources += len(source.split())
            targets += each.target_words
        return links

    def _passes(self) -> list[Pass]:
        assert self.translator is not None
        sources, ids = [source for source, _ in self.parts], [ids for _, ids in self.parts]
        return self.translator.passes(sources, ids, to=self.to, layers=self._settings().layer) if sources else []

    def _settings(self) -> AlignmentSettings:
        assert self.translator is not None
        return self.translator.aligning()


class Partial(NamedTuple):
    """A translation in the making; the last one has the whole translation, and says whether a limit cut it."""

    text: str
    truncated: bool = False
    whole: Translation | None = None


class Translator:
    """One trained translation model, or several that decide together, with its tokenizer and decoding defaults."""

    def __init__(
        self,
        models: Sequence[torch.nn.Module],
        tokenizer: PairTokenizer,
        *,
        settings: SearchSettings | None = None,
        alignment: AlignmentSettings | None = None,
        name: str = "",
        precision: str = "fp32",
        graphs: bool = True,
    ):
        """With `graphs`, the steps of a search on a GPU are captured and replayed: same answers, sooner."""
        self.models, self.tokenizer, self.name = [model.eval() for model in models], tokenizer, name
        self.settings = settings or SearchSettings()
        self.alignment = alignment or default_alignment(self.models[0])
        target = tokenizer.target
        self.vocabulary = Vocabulary(target.start, target.end, target.pad)
        self.device = next(self.models[0].parameters()).device
        steps = [running_form(model, precision, target.end) for model in self.models]
        together = steps[0] if len(steps) == 1 else cast(Steps, Ensemble(steps))
        self.steps = captured(together, self.device) if graphs else together
        self.positions = learned_positions(self.models[0].config)
        self.longest = self.positions or LONGEST_SOURCE

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
        place = find_device(device)
        loaded = [load_model(Path(folder), place, allow_pickle) for folder in folders]
        for folder, each in zip(folders, loaded, strict=True):
            if not hasattr(each.model, "step"):
                raise UsageError(f"{folder} is a {each.name} model, which translates nothing; expected a translator")
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
            alignment=_alignment(first),
            name=Path(folders[0]).name,
            precision=precision,
            graphs=graphs,
        )

    @overload
    def translate(self, text: str, *, to: str = ..., **changes: Any) -> Translation: ...

    @overload
    def translate(self, text: Sequence[str], *, to: str = ..., **changes: Any) -> list[Translation]: ...

    def translate(
        self, text: str | Sequence[str], *, to: str = "", prefix: str = "", **changes: Any
    ) -> Translation | list[Translation]:
        """Translate one text or several; `changes` are values of SearchSettings, such as beam=5.

        `prefix` is the beginning every translation must have, as it is written, also with words that the model does not
        know. Texts too long for the model are translated sentence by
        sentence.
        """
        settings = self.search_settings(changes)
        texts = all_texts(text)
        to = self.target_language(to)
        pieces = [self.sentences(each) for each in texts]
        sentences = [part for parts in pieces for part in parts]
        prefixes = [beginning for parts in pieces for beginning in _beginnings(parts, prefix)]
        decoded = iter(self._decode(sentences, prefixes, to, settings))
        answers = [
            self._joined(each, parts, [next(decoded) for _ in parts], to, prefix)
            for each, parts in zip(texts, pieces, strict=True)
        ]
        return answers[0] if isinstance(text, str) else answers

    def stream(
        self,
        text: str,
        *,
        to: str = "",
        prefix: str = "",
        settled: bool = False,
        watch: Callable[[Search], None] = lambda search: None,
        **changes: Any,
    ) -> Iterator[Partial]:
        """The best translation so far, after every step; under a beam it may still change its mind.

        With `settled`, only the beginning that cannot change any more: what all hypotheses share, in whole words.
        `watch` is given the search after each of its steps. The last item has the whole translation.
        """
        settings, to, done = self.search_settings(changes), self.target_language(to), ""
        parts, found = self.sentences(text), list[list[Hypothesis]]()
        shown = settings.replace(n_best=1) if settings.widens else settings
        for part, beginning in zip(parts, _beginnings(parts, prefix), strict=True):
            running = self.begin(part, to=to, settings=shown, prefix=beginning)
            while not running.done:
                running.advance()
                watch(running)
                so_far = self._settled(running.common()) if settled else running.history[0, 0].tolist()
                yield Partial(f"{done} {self._spoken(so_far, beginning)}".strip())
            found += self._decode([part], [beginning], to, settings) if settings.widens else running.results()
            done = f"{done} {self._text(part, found[-1][0].tokens, to, beginning)}".strip()
            yield Partial(done)
        if parts:
            whole = self._joined(text, parts, found, to, prefix)
            yield Partial(whole.text, whole.truncated, whole)

    def begin(self, sentence: str, *, to: str, settings: SearchSettings, prefix: str = "") -> Search:
        """A search for one sentence, to be advanced by the caller."""
        source, mask = self._padded(self.tokenizer.source_ids([sentence], to))
        with torch.inference_mode():
            return Search(self.steps, source, mask, settings, self.vocabulary, self._forced([prefix]))

    def _settled(self, ids: list[int]) -> list[int]:
        """Ids as far as their text is final: up to the last whole word, and to the first unknown one."""
        if self.tokenizer.target.unknown in ids:
            ids = ids[: ids.index(self.tokenizer.target.unknown)]
        words = self.tokenizer.target.words_of(ids)
        return [each for each, word in zip(ids, words, strict=True) if word < max(words)]

    def passes(
        self,
        sources: Sequence[str],
        answers: Sequence[Sequence[int] | str],
        *,
        to: str = "",
        layers: str | Sequence[str] = CROSS,
        scores: bool = False,
    ) -> list[Pass]:
        """The recorded attention of saying `answers` (token ids, or texts) for `sources`, with the first model.

        With `scores`, what comes before the softmax instead.
        """
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
        """How probable every token was at each place of an answer and at its end: [T + 1, V], by one forced pass."""
        target, rows = self.tokenizer.target, self.tokenizer.source_ids([source], self.target_language(to))
        batch = collate(rows, [[*ids, target.end]], pad=target.pad, start=target.start).to(self.device)
        logits = [model(batch.source, batch.source_mask, batch.inputs).float() for model in self.models]
        return torch.stack([each[0].softmax(dim=-1) for each in logits]).mean(dim=0).log()

    def align(self, sources: Sequence[str], targets: Sequence[str], *, to: str = "") -> list[list[Link]]:
        """Word links between given translations: (source word, target word), counted from 0."""
        settings = self.aligning()
        return [each.links(settings) for each in self.passes(sources, targets, to=to, layers=settings.layer)]

    def aligning(self) -> AlignmentSettings:
        if self.alignment is None:
            raise UsageError(
                f"{self.name or 'this model'} has no attention between target and source to align words by"
            )
        return self.alignment

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that become unknown tokens."""
        return unknown_words(text, self.tokenizer.source.reads)

    def unknown_in(self, answer: Translation) -> list[UnknownWord]:
        """The unknown words of a source, and those that were copied because the model has no word for them."""
        found, end = self.unknown_words(answer.source), 0
        for part, ids in answer.parts:
            begin = answer.source.index(part, end)
            end = begin + len(part)
            words = list(re.finditer(r"\S+", part))
            given = answer.prefix if end == len(part) else ""  # its words are no copies
            said = self.tokenizer.target.encode([given])[0].count(self.tokenizer.target.unknown)
            copied = [_core(words[place], begin) for place in self._copied(part, ids, answer.to)[said:]]
            found += [
                UnknownWord(answer.source[first:last], first, last)
                for first, last in copied
                if not any(first < each.end and each.start < last for each in found)
            ]
        return sorted(found, key=lambda each: each.start)

    def target_language(self, to: str = "") -> str:
        """The target language asked for; models with one target need none."""
        targets = self.tokenizer.target_languages
        to = to or (targets[0] if len(targets) == 1 else "")
        self.tokenizer.tag(to)  # refuses what the model does not know
        return to

    def sentences(self, text: str) -> list[str]:
        """The text as it is if the model can read it at once, else its sentences; nothing if it is blank."""
        if not text.strip():
            return []
        if self._fits(text):
            return [text]
        cut = (each.strip() for each in cut_sentences(text, self.tokenizer.source_language))
        sentences = [each for each in cut if each]
        for sentence in sentences:
            if not self._fits(sentence):
                raise DataError(
                    f"the sentence that begins with {sentence[:40]!r} has more than {self.longest - 2} tokens, the "
                    "most that this model reads at once; break it into shorter sentences"
                )
        return sentences

    def search_settings(self, changes: Mapping[str, Any]) -> SearchSettings:
        """How this model decodes, with some values changed."""
        settings = self.settings.replace(**changes)
        if self.positions is None:
            return settings
        room = self.positions - 1  # the start token takes one
        return settings.replace(max_length=min(settings.max_length or settings.longest or room, room))

    def _fits(self, text: str) -> bool:
        """Whether the model can read a text at once; the beginning of a very long one is enough to say no."""
        beginning = text[: LONGEST_PIECE * self.longest]
        return all(len(self.tokenizer.source.encode([each])[0]) < self.longest - 1 for each in (beginning, text))

    def _decode(
        self, sentences: Sequence[str], prefixes: Sequence[str], to: str, settings: SearchSettings
    ) -> list[list[Hypothesis]]:
        """Search in batches of similar length; the answers come back in the order of the sentences."""
        rows = self.tokenizer.source_ids(sentences, to)
        answers: list[list[Hypothesis]] = [[] for _ in rows]
        for chosen in batches_by_length([len(row) for row in rows], settings.width):
            source, mask = self._padded([rows[i] for i in chosen])
            forced = self._forced([prefixes[i] for i in chosen])
            found = search(self.steps, source, mask, settings, self.vocabulary, forced)
            for i, hypotheses in zip(chosen, found, strict=True):
                answers[i] = hypotheses
        return answers

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        source, mask = pad_rows(rows, self.tokenizer.source.pad)
        return source.to(self.device), mask.to(self.device)

    def _forced(self, prefixes: Sequence[str]) -> list[list[int]] | None:
        return self.tokenizer.target.encode(prefixes) if any(prefixes) else None

    def _joined(
        self, text: str, parts: list[str], found: list[list[Hypothesis]], to: str, prefix: str = ""
    ) -> Translation:
        """One translation from the hypotheses of a text's sentences; alternatives exist for single sentences only."""
        best = self._translation(text, parts, [hypotheses[0] for hypotheses in found], to, prefix)
        others = found[0][1:] if len(parts) == 1 else []
        best.alternatives.extend(self._translation(text, parts, [other], to, prefix) for other in others)
        return best

    def _translation(self, text: str, parts: list[str], found: list[Hypothesis], to: str, prefix: str) -> Translation:
        spoken = [
            self._text(part, hypothesis.tokens, to, beginning)
            for part, hypothesis, beginning in zip(parts, found, _beginnings(parts, prefix), strict=True)
        ]
        ids = [hypothesis.tokens for hypothesis in found]
        return Translation(
            source=text,
            text=" ".join(spoken),
            score=sum(hypothesis.score for hypothesis in found) / max(len(found), 1),
            finished=all(hypothesis.finished for hypothesis in found),
            tokens=[piece for each in ids for piece in self.tokenizer.target.pieces(each)],
            parts=list(zip(parts, ids, strict=True)),
            translator=self,
            to=to,
            prefix=prefix,
        )

    def _text(self, source: str, ids: list[int], to: str, prefix: str = "") -> str:
        """The text of an answer; an unknown token becomes the source word it looked at (Luong 2015).

        Where the source has unknown words too, it becomes one of these: that is what it most often stands for.
        """
        words, copied = source.split(), self.tokenizer.source.copied
        copies = [copied(words[place]) for place in self._copied(source, ids, to)]
        return self._spoken(ids, prefix, copies)

    def _spoken(self, ids: list[int], prefix: str, copies: Sequence[str] = ()) -> str:
        """The text of an answer, with `copies` for unknown tokens; where it was made to begin with a prefix, that is
        as it was written."""
        target = self.tokenizer.target
        text, forced = target.decode(ids, unknown=copies), target.encode([prefix])[0]
        if not prefix:
            return text
        if ids == forced[: len(ids)]:  # no more than the prefix is said, or not even all of it
            return prefix.rstrip()
        said = target.decode(forced, unknown=copies)
        rest = text.removeprefix(said) if text.startswith(said) else f" {target.decode(ids[len(forced) :])}"
        return f"{prefix.rstrip()}{rest}".rstrip()

    def _copied(self, source: str, ids: list[int], to: str) -> list[int]:
        """For each unknown token of an answer the number of the source word that it becomes."""
        unknown = self.tokenizer.target.unknown
        if unknown not in ids or self.alignment is None:
            return []
        (seen,) = self.passes([source], [ids], to=to, layers=self.alignment.layer)
        tokens = zip(self.tokenizer.source_ids([source], to)[0], seen.source_words_of, strict=True)
        unread = {word for token, word in tokens if token == self.tokenizer.source.unknown}
        heaviest = seen.heaviest_words(self.alignment, among=unread)
        return [heaviest[place] for place, token in enumerate(ids) if token == unknown]


def joined(answers: Sequence[Translation]) -> Translation:
    """The translations of sentences that follow one another, as one."""
    return replace(
        answers[0],
        source=" ".join(each.source for each in answers),
        text=" ".join(each.text for each in answers),
        score=sum(each.score for each in answers) / len(answers),
        finished=all(each.finished for each in answers),
        tokens=[token for each in answers for token in each.tokens],
        parts=[part for each in answers for part in each.parts],
        alternatives=[],
    )


def _core(word: re.Match[str], offset: int) -> tuple[int, int]:
    """Where a word stands without the punctuation around it."""
    core = re.search(r"\w(.*\w)?", word[0]) or re.search(r".+", word[0])
    assert core is not None
    return offset + word.start() + core.start(), offset + word.start() + core.end()


def _beginnings(parts: Sequence[str], prefix: str) -> list[str]:
    """What the translation of each sentence of a text must begin with: that of the first with the prefix."""
    return [prefix if number == 0 else "" for number in range(len(parts))]


def batches_by_length(lengths: Sequence[int], width: int = 1) -> Iterator[list[int]]:
    """Sentence numbers by similar length, few enough at a time to fit with `width` hypotheses each."""
    most = max(1, min(BATCH_SENTENCES, BATCH_HYPOTHESES // width))
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        if batch and (len(batch) == most or (len(batch) + 1) * lengths[i] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _along_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Sentences translated one after another: each looks at itself alone."""
    whole = np.zeros((sum(len(b) for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole


def _alignment(folder: Path) -> AlignmentSettings | None:
    file = folder / ALIGNMENT
    return AlignmentSettings.parse(json.loads(file.read_text("utf-8")), where=str(file)) if file.is_file() else None
