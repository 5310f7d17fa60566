"""Fill PO catalogues with translations; only changed fields are rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import polib

from regard.data.formats import exchange
from regard.data.formats.encodings import missing_characters
from regard.data.formats.languages import same_language
from regard.documents.document_job import MEMORY_NOTE, QUALITY_NOTE, DocumentJob, batches
from regard.documents.markup import sent_texts, translate_texts
from regard.errors import DataError

FIELD = re.compile(r"(msgctxt|msgid_plural|msgid|msgstr(?:\[\d+\])?)\s*(\".*)")
OBSOLETE = re.compile(r"^#~\s*msgid\s", re.MULTILINE)
WIDTH = 79  # of lines, as gettext's tools write them


@dataclass(slots=True, eq=False)
class Entry:
    """An entry: its fields and their line numbers by name, and the number of its first line."""

    first: int
    fields: dict[str, str] = field(default_factory=dict)
    lines: dict[str, range] = field(default_factory=dict)

    def forms(self, count: int) -> Iterator[tuple[str, str]]:
        """The names of its translation fields, present or missing, each with its source text."""
        plural = self.fields.get("msgid_plural")
        if plural is None:
            yield "msgstr", self.fields["msgid"]
            return
        for form in range(count):
            yield f"msgstr[{form}]", self.fields["msgid"] if form == 0 and count > 1 else plural


class PoFile:
    """The lines of a PO file and its entries, without the obsolete ones."""

    def __init__(self, text: str) -> None:
        self.lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z", text)
        self.end = "\r\n" if "\r\n" in text else "\n"
        self.wraps = max(map(len, self.lines), default=0) <= WIDTH + 2
        self.entries = list(_entries(self.lines))
        self.header = next(
            (entry for entry in self.entries if not entry.fields["msgid"] and len(entry.fields) == 2), None
        )
        self._new: dict[int, list[str]] = {}  # replacements of a line, by its number
        self._added: dict[int, list[str]] = {}  # lines to insert before a line, by its number

    def set(self, entry: Entry, name: str, text: str) -> None:
        """Replace a field, or add it after the entry's last one."""
        if name in entry.lines:
            place = entry.lines[name]
            self._new |= {number: [] for number in place} | {place[0]: self._field_lines(name, text)}
        else:
            self._added.setdefault(max(lines[-1] for lines in entry.lines.values()) + 1, []).extend(
                self._field_lines(name, text)
            )

    def mark_fuzzy(self, entry: Entry) -> None:
        first = min(lines[0] for lines in entry.lines.values())
        comments = range(entry.first, first)
        flags = next((number for number in comments if self.lines[number].startswith("#,")), None)
        if flags is None:
            before = next((number for number in comments if self.lines[number].startswith("#|")), first)
            self._added.setdefault(before, []).append(f"#, fuzzy{self.end}")
        elif "fuzzy" not in re.split(r"[,\s]+", self.lines[flags]):
            self._new[flags] = [f"#, fuzzy,{self.lines[flags][2:]}"]

    def note(self, entry: Entry, text: str) -> None:
        """Add a translator's comment, in place of the last one of this kind."""
        for number in range(entry.first, min(lines[0] for lines in entry.lines.values())):
            if self.lines[number].startswith((f"# {QUALITY_NOTE}", f"# {MEMORY_NOTE}")):
                self._new[number] = []
        self._added.setdefault(entry.first, []).insert(0, f"# {text}{self.end}")

    def __str__(self) -> str:
        lines: list[str] = []
        for number, line in enumerate([*self.lines, ""]):
            added = self._added.get(number, [])
            if added and number == len(self.lines) and lines and not lines[-1].endswith(("\n", "\r")):
                lines[-1] += self.end
            lines += [*added, *self._new.get(number, [line])]
        return "".join(lines)

    def _field_lines(self, name: str, text: str) -> list[str]:
        rows = re.findall(r"[^\n]*\n|[^\n]+", text)
        if self.wraps:
            rows = [part for row in rows for part in _wrap(row)]
        if len(rows) > 1 or (self.wraps and rows and len(f'{name} "{polib.escape(rows[0])}"') > WIDTH):
            rows.insert(0, "")
        first, *rest = rows or [""]
        return [f'{name} "{polib.escape(first)}"{self.end}', *(f'"{polib.escape(row)}"{self.end}' for row in rest)]


def _wrap(row: str) -> list[str]:
    """A row split after spaces into lines of at most `WIDTH`; all spaces are kept."""
    body, end = (row[:-1], "\n") if row.endswith("\n") else (row, "")
    if len(polib.escape(row)) + 2 <= WIDTH:
        return [row]
    parts: list[str] = [""]
    for word in re.findall(r"\S*\s+|\S+", body):
        if parts[-1] and len(polib.escape(parts[-1] + word)) + 2 > WIDTH:
            parts.append("")
        parts[-1] += word
    return [*parts[:-1], parts[-1] + end]


def _entries(lines: Sequence[str]) -> Iterator[Entry]:
    entry: Entry | None = None
    name = ""
    for number, line in enumerate(lines):
        line = line.strip()
        found = FIELD.match(line)
        starts = line.startswith("#") or (found and found[1] in ("msgctxt", "msgid"))
        if entry and starts and any(each.startswith("msgstr") for each in entry.fields):
            yield entry
            entry = None
        if line.startswith("#~"):  # obsolete, with the comments before it
            entry = None
        elif entry is None and starts:
            entry = Entry(number)
        if entry and found:
            name = found[1]
            entry.fields[name], entry.lines[name] = _unquoted(found[2]), range(number, number + 1)
        elif entry and line.startswith('"') and name in entry.fields:
            entry.fields[name] += _unquoted(line)
            entry.lines[name] = range(entry.lines[name][0], number + 1)
    if entry and "msgid" in entry.fields:
        yield entry


def _unquoted(value: str) -> str:
    return polib.unescape(value.strip()[1:-1])


# Translation


def translate_po(job: DocumentJob) -> None:
    text = job.text()
    exchange.parse_po(text, job.encoding, job.path)  # raises an error if it is not well-formed
    po_file = PoFile(text)
    metadata = po_file.header.fields["msgstr"] if po_file.header else ""
    entries = [entry for entry in po_file.entries if entry is not po_file.header]
    language = re.search(r"^Language:[ \t]*(.*)$", metadata, re.MULTILINE)
    stated = language[1].strip() if language else ""
    foreign = stated and not same_language(stated, job.target)
    if foreign and not job.overwrite and any(_is_translated(entry) for entry in entries):
        raise DataError(
            f"{job.path}: translates into {stated!r}, not {job.target!r}; ask for its translations to be replaced "
            "(--overwrite) to have all of it anew"
        )
    found = re.search(r"nplurals\s*=\s*(\d)", metadata)
    done = []
    for batch in batches(_forms_to_translate(entries, int(found[1]) if found else 2, job)):
        translations = translate_texts([wanted for *_, wanted in batch], job.translate)
        done += [(entry, name, each) for (entry, name, _), each in zip(batch, translations, strict=True)]
    for entry, name, translation in done:
        po_file.set(entry, name, translation)
    for entry in dict.fromkeys(entry for entry, *_ in done):
        sources = [source for name, source in entry.fields.items() if name in ("msgid", "msgid_plural")]
        doubt = job.doubt(text for source in sources for text in sent_texts(source))
        if job.review or doubt:
            po_file.mark_fuzzy(entry)
        if doubt:
            po_file.note(entry, doubt)
    job.report.skipped.update({"obsolete": count} if (count := len(OBSOLETE.findall(text))) else {})
    job.report.translated += len(done)
    _write(job, po_file, metadata, job.target if foreign or not stated else stated)


def _forms_to_translate(entries: Iterable[Entry], plurals: int, job: DocumentJob) -> Iterator[tuple[Entry, str, str]]:
    for entry in entries:
        count = max(plurals, sum(name.startswith("msgstr[") for name in entry.fields))
        for name, text in entry.forms(count):
            if not text.strip():
                job.report.skipped["without a source text"] += 1
            elif job.overwrite or not entry.fields.get(name):
                yield entry, name, text
            else:
                job.report.kept["already translated"] += 1


def _is_translated(entry: Entry) -> bool:
    return any(text for name, text in entry.fields.items() if name.startswith("msgstr"))


def _write(job: DocumentJob, po_file: PoFile, metadata: str, language: str) -> None:
    header, changed = re.subn(r"^Language:.*$", lambda _: f"Language: {language}", metadata, flags=re.MULTILINE)
    if not changed:
        header += f"{'' if not header or header.endswith(chr(10)) else chr(10)}Language: {language}\n"
    # In both cases the output is UTF-8, and must declare it.
    if "charset=CHARSET" in header or missing_characters([str(po_file)], job.encoding):
        header = re.sub(r"charset=[\w.:-]+", "charset=UTF-8", header)
    if po_file.header and header != metadata:
        po_file.set(po_file.header, "msgstr", header)
    job.write(str(po_file))
