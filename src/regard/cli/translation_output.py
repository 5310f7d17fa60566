"""What `regard translate` prints of a translation: the text with columns, or JSON; matches of a memory on stderr."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.documents.memory import MemoryMatch
    from regard.inference.pipelines.translation import Translation


def output_line(
    answer: Translation | None, matches: list[MemoryMatch], *, align: bool, quality: bool, as_json: bool
) -> str:
    """What is printed for one text: the translation, several translations with their scores, or JSON."""
    if answer is None:
        return "null" if as_json else ""
    if as_json:
        others = [_as_json(each, align, quality) for each in answer.alternatives]
        unknown = [each.to_json() for each in answer.unknown]
        values = _as_json(answer, align, quality) | {"unknown": unknown, "alternatives": others}
        values |= {"memory": [each.to_json(answer.source) for each in matches]} if matches else {}
        values |= {"terms": [each.to_json() for each in answer.terms]} if answer.glossary.terms else {}
        return json.dumps(values, ensure_ascii=False)
    if not answer.alternatives:
        return _with_columns(answer, align, quality)
    return "\n".join(
        f"{each.score:.4f}\t{_with_columns(each, align, quality)}" for each in (answer, *answer.alternatives)
    )


def _with_columns(answer: Translation, align: bool, quality: bool) -> str:
    """A translation, and after TABs what was asked for: its alignment, its quality with what is wrong."""
    from regard.inference.insight.word_alignment import to_pharaoh

    columns = [answer.text]
    columns += [to_pharaoh(answer.alignment)] if align else []
    columns += [" ".join([f"{answer.quality:.4f}", *answer.flags])] if quality else []
    return "\t".join(columns)


def _as_json(answer: Translation, align: bool, quality: bool) -> dict[str, Any]:
    from regard.inference.pipelines.pivot import PivotTranslation

    values: dict[str, Any] = {
        "source": answer.source,
        "text": answer.text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
    }
    if isinstance(answer, PivotTranslation):
        way = answer.hops[0]
        values["pivot"] = {"language": way.to, "text": way.text, "score": way.score}
    values |= {"alignment": answer.alignment} if align else {}
    return values | answer.assessment.to_json() if quality else values


def show_matches(text: str, matches: list[MemoryMatch]) -> None:
    """The matches of a memory on stderr: what the text lacks in [-…-], what it has more in {+…+}."""
    marks = {"same": "{}", "gone": "[-{}-]", "new": "{{+{}+}}"}
    for each in matches:
        shown = " ".join(marks[change.kind].format(change.text) for change in each.changes(text))
        print(f"memory {100 * each.similarity:.0f} %: {shown} → {each.target}", file=sys.stderr)
