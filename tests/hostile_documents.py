"""Small uploads that are much work: what a stranger may send to a server."""

import io
import zipfile
from collections.abc import Callable, Mapping

NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
PARAGRAPH = "<w:p><w:r><w:t>a</w:t></w:r></w:p>"
PARAGRAPHS = 1_500_000


def many_paragraphs(count: int = PARAGRAPHS) -> bytes:
    """A DOCX of that many paragraphs of one letter: 1.5 million are 150 KB."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{NAMESPACE}"><w:body>{PARAGRAPH * count}</w:body></w:document>',
        )
    return file.getvalue()


def nested_xml(depth: int) -> str:
    return '<?xml version="1.0"?>' + "<resources>" + "<g>" * depth + "a" + "</g>" * depth + "</resources>"


def yaml_aliases(levels: int) -> str:
    """A list of ten aliases of a list of ten aliases, and so on."""
    lines = ["a0: &a0 [we, eat]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


TEXTS: Mapping[str, Callable[[int], str]] = {  # by suffix and name: a text of about that many characters
    "links.md": lambda size: "[a](" * (size // 4),
    "brackets.md": lambda size: "[" * size,
    "stars.md": lambda size: "*a_" * (size // 3),
    "ticks.md": lambda size: "".join("`" * n + " " for n in range(int((2 * size) ** 0.5))),
    "quotes.md": lambda size: ">" * size + "a",
    "entities.md": lambda size: "&" * size,
    "autolinks.md": lambda size: "<a " * (size // 3),
    "table.md": lambda size: "|a" * 500 + "|\n" + "|-" * 500 + "|\n" + ("|a" * 500 + "|\n") * (size // 1000),
    "rows.md": lambda size: "|" * 300 + "\n" + "|-" * 300 + "\n" + "|\n" * (size // 2),
    "elements.html": lambda size: "<div>" * (size // 5),
    "closed.html": lambda size: "<div>" * (size // 11) + "a" + "</div>" * (size // 11),
    "inline.html": lambda size: "<b>" * (size // 7) + "a" + "</b>" * (size // 7),
    "crossed.html": lambda size: "<b>a<i>" * (size // 7),
    "open.html": lambda size: "<" * size,
    "attributes.html": lambda size: "<p " + "a=" * (size // 2) + ">b</p>",
    "comments.html": lambda size: "<!--" * (size // 4),
    "foreign.html": lambda size: '<p lang="de">' * (size // 13),
    "references.html": lambda size: "&#" * (size // 2),
    "braces.txt": lambda size: "{" * size,
    "percent.txt": lambda size: "%(" * (size // 2),
    "dots.txt": lambda size: "a." * (size // 2),
    "slashes.txt": lambda size: "/a" * (size // 2),
    "mail.txt": lambda size: "a@" * (size // 2),
    "mails.txt": lambda size: "a" * size + "@",
    "marks.txt": lambda size: "+-" * (size // 2),
    "stops.txt": lambda size: "A. " * (size // 3),
    "spaces.txt": lambda size: " " * size + "a",
    "word.txt": lambda size: "a" * size,
    "lines.txt": lambda size: "a\n" * (size // 2),
    "dollars.txt": lambda size: "$t(" * (size // 3),
    "at.txt": lambda size: "@:" + "a." * (size // 2),
    "nested.json": lambda size: "[" * (size // 2) + "]" * (size // 2),
    "objects.json": lambda size: '{"a":' * (size // 6) + "1" + "}" * (size // 6),
    "numbers.json": lambda size: '{"a": ' + "9" * size + "}",
    "strings.json": lambda size: '["a"' + ',"a"' * (size // 4) + "]",
    "icu.json": lambda size: '{"a": "' + "{n, plural, other {" * (size // 19) + '"}',
    "aliases.yaml": lambda size: yaml_aliases(9),
    "nested.yaml": lambda size: "[" * size,
    "indented.yaml": lambda size: "".join(" " * n + "a:\n" for n in range(int((2 * size) ** 0.5))),
    "keys.yaml": lambda size: "".join(f"a{n}: a\n" for n in range(size // 8)),
    "nested.xml": lambda size: nested_xml(size // 7),
    "strings.xml": lambda size: "<resources>" + '<string name="a">a</string>' * (size // 27) + "</resources>",
    "units.xliff": lambda size: '<xliff version="1.2"><file source-language="en"><body>'
    + "<trans-unit><source>a</source></trans-unit>" * (size // 43)
    + "</body></file></xliff>",
    "nested.xliff": lambda size: '<xliff version="1.2"><file source-language="en"><body><trans-unit><source>'
    + "<g>" * (size // 7) + "a" + "</g>" * (size // 7) + "</source></trans-unit></body></file></xliff>",
    "units.tmx": lambda size: '<tmx version="1.4"><header srclang="en"/><body>'
    + '<tu><tuv xml:lang="en"><seg>a</seg></tuv></tu>' * (size // 46) + "</body></tmx>",
    "entries.po": lambda size: 'msgid ""\nmsgstr ""\n\n'
    + "".join(f'msgid "a{n}"\nmsgstr ""\n\n' for n in range(size // 24)),
    "lines.po": lambda size: 'msgid ""\nmsgstr ""\n\nmsgid ""\n' + '"a"\n' * (size // 4) + 'msgstr ""\n',
    "quotes.csv": lambda size: 'en,es\n"' + '""' * (size // 2),
    "columns.csv": lambda size: "en,es" + ",a" * (size // 2) + "\na,b\n",
    "rows.tsv": lambda size: "en\tes\n" + "a\t\n" * (size // 3),
    "cues.srt": lambda size: "1\n00:00:00,000 --> 00:00:01,000\na\n\n" * (size // 37),
    "cue.vtt": lambda size: "WEBVTT\n\n00:00.000 --> 00:01.000\n" + "<c>a" * (size // 4),
    "cues.vtt": lambda size: "WEBVTT\n\n" + "00:00.000 --> 00:01.000\n" * (size // 24),
    "keys.properties": lambda size: "a=b\n" * (size // 4),
    "continued.properties": lambda size: "a=" + "\\\n" * (size // 2),
    "slashes.properties": lambda size: "a=" + "\\" * size,
    "quotes.strings": lambda size: '"a" = "' + '\\"' * (size // 2),
    "comments.strings": lambda size: "/*" * (size // 2),
    "keys.strings": lambda size: '"a" = "b";\n' * (size // 11),
    "keys.arb": lambda size: "{" + ",".join(f'"a{n}": "a"' for n in range(size // 12)) + "}",
    "lines.jsonl": lambda size: '{"en": "a"}\n' * (size // 12),
}  # fmt: skip
