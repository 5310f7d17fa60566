"""The text of a translation: tokens decoded, a given prefix kept as written, unknown words copied from the source."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.inference.insight.forced_pass import AlignmentSettings, Pass
from regard.inference.pipelines.translation import Translation

# (source, token ids of its translation, target language, layer) -> the recorded attention
RecordPass = Callable[[str, list[int], str, str], Pass]


class AnswerText:
    """Makes texts of the token ids that a search found.

    An unknown token becomes the source word that it attends to most (Luong 2015). Where the source has unknown words
    too, it becomes one of these, because that is what an unknown token most often stands for.
    """

    def __init__(self, tokenizer: PairTokenizer, alignment: AlignmentSettings | None, record_pass: RecordPass):
        self.tokenizer, self.alignment, self.record_pass = tokenizer, alignment, record_pass

    def text(self, source: str, ids: list[int], to: str, prefix: str = "") -> str:
        """The text of a finished answer, with unknown words copied from the source."""
        words, copied = source.split(), self.tokenizer.source.copied
        copies = [copied(words[place]) for place in self._copied_places(source, ids, to)]
        return self.decode(ids, prefix, copies)

    def decode(self, ids: list[int], prefix: str, copies: Sequence[str] = ()) -> str:
        """The text of token ids, with `copies` in place of unknown tokens; a forced `prefix` is kept as written."""
        target = self.tokenizer.target
        text, forced = target.decode(ids, unknown=copies), target.encode([prefix])[0]
        if not prefix:
            return text
        if ids == forced[: len(ids)]:  # no more than the prefix is decoded, perhaps not even all of it
            return prefix.rstrip()
        said = target.decode(forced, unknown=copies)
        rest = text.removeprefix(said) if text.startswith(said) else f" {target.decode(ids[len(forced) :])}"
        return f"{prefix.rstrip()}{rest}".rstrip()

    def final_ids(self, ids: list[int]) -> list[int]:
        """The ids whose text is final while a search runs: up to the last whole word, and to the first unknown one."""
        if self.tokenizer.target.unknown in ids:
            ids = ids[: ids.index(self.tokenizer.target.unknown)]
        words = self.tokenizer.target.words_of(ids)
        return [each for each, word in zip(ids, words, strict=True) if word < max(words)]

    def copied_words(self, answer: Translation) -> list[UnknownWord]:
        """The words of the source that were copied into a translation."""
        found, end = list[UnknownWord](), 0
        for part, ids in answer.parts:
            begin = answer.source.index(part, end)
            end = begin + len(part)
            words = list(re.finditer(r"\S+", part))
            given = answer.prefix if end == len(part) else ""  # unknown words of the prefix are not copies
            said = self.tokenizer.target.encode([given])[0].count(self.tokenizer.target.unknown)
            for place in self._copied_places(part, ids, answer.to)[said:]:
                first, last = _without_punctuation(words[place], begin)
                found.append(UnknownWord(answer.source[first:last], first, last))
        return found

    def _copied_places(self, source: str, ids: list[int], to: str) -> list[int]:
        """For each unknown token of an answer the number of the source word that replaces it."""
        unknown = self.tokenizer.target.unknown
        if unknown not in ids or self.alignment is None:
            return []
        seen = self.record_pass(source, ids, to, self.alignment.layer)
        tokens = zip(self.tokenizer.source_ids([source], to)[0], seen.source_words_of, strict=True)
        unread = {word for token, word in tokens if token == self.tokenizer.source.unknown}
        heaviest = seen.heaviest_words(self.alignment, among=unread)
        return [heaviest[place] for place, token in enumerate(ids) if token == unknown]


def _without_punctuation(word: re.Match[str], offset: int) -> tuple[int, int]:
    """Where a word begins and ends without the punctuation around it."""
    core = re.search(r"\w(.*\w)?", word[0]) or re.search(r".+", word[0])
    assert core is not None
    return offset + word.start() + core.start(), offset + word.start() + core.end()
