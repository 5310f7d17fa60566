import re
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.documents.markup import LaterLinks, Mark, Translated, parse, translate_marked, translate_texts


def translate_one(text: str, translation: str, links: list[tuple[int, int]]) -> str:
    return translate_texts([text], lambda _: [Translated(translation, links)])[0]


@pytest.mark.parametrize(
    ("source", "translation", "links", "expected"),
    [
        ("Hello %s, welcome", "Hola, bienvenido", "0-0 1-1", "Hola %s, bienvenido"),
        ("Open file %s", "Datei öffnen", "0-1 1-0", "Datei %s öffnen"),
        ("Open file %(name)s.", "Datei öffnen.", "0-1 1-0", "Datei %(name)s öffnen."),
        ("<b>Open file %1$s</b>, now", "Datei öffnen, jetzt", "0-1 1-0 2-2", "<b>Datei %1$s öffnen</b>, jetzt"),
        ("The <i>white</i> <b>house</b>", "La casa blanca", "0-0 1-2 2-1", "La <b>casa</b> <i>blanca</i>"),
        ("%s: file not found", "Datei nicht gefunden", "0-0 1-1 2-2", "%s: Datei nicht gefunden"),
        ("File (%s) is missing", "Datei fehlt", "0-0 1-1 2-1", "Datei (%s) fehlt"),
        ("{0} is {n}MB in size", "ist MB gross", "0-0 1-1 3-2", "{0} ist {n}MB gross"),
        ("click<br/>here", "klick hier", "0-0 1-1", "klick<br/> hier"),
        ("See https://a.b/c?d=%20. Now", "Siehe. Jetzt", "0-0 1-1", "Siehe https://a.b/c?d=%20. Jetzt"),
        ("AT&amp;T in $HOME", "in", "0-0", "AT&amp;T in $HOME"),
        ("go to %s/%s now", "jetzt zu gehen", "0-2 1-1 2-0", "jetzt zu %s/%s gehen"),
        ("100%% sure", "100 sicher", "0-0 1-1", "100%% sicher"),
        ("turn <b>off</b>", "aus", "", "<b>aus</b>"),
        ("the <b>red</b> house", "la casa", "0-0 2-1", "la <b>casa</b>"),
        ("E-mail: a@b.org.", "Correo:", "0-0", "Correo: a@b.org."),
        ("It is in /usr/local/bin, see", "Está en, véase", "1-0 2-1 3-2", "Está en /usr/local/bin, véase"),
        ("♪ Take me home ♪", "Llévame a casa", "0-0 1-0 2-2", "♪ Llévame a casa ♪"),
        ("Costs $%1$s today", "Hoy cuesta", "0-1 1-0", "Hoy cuesta $%1$s"),
    ],
)
def test_marks_follow_the_alignment(source: str, translation: str, links: str, expected: str):
    pairs = [(int(i), int(j)) for i, j in (link.split("-") for link in links.split())]
    assert translate_one(source, translation, pairs) == expected


@pytest.mark.parametrize(
    "text", ["", "   ", "%s", "<b>{0}</b> %s", " \n%d\n", "...", "\ufffc", "12.50", "3 %s", "2026-11-18"]
)
def test_segments_without_words_are_copied_and_never_translated(text: str):
    def never(texts: list[str]) -> list[str]:
        raise AssertionError(texts)

    assert translate_texts([text], never) == [text]


@pytest.mark.parametrize(
    "placeholder",
    ["%s", "%d", "%5.2f", "%(name)s", "%1$s", "%@", "{}", "{0}", "{name}", "{{name}}", "${VAR}", "$VAR", "&amp;",
     "&#160;", "&#xA0;", "https://example.org/a?b=c", "<br>", "<a href='x y'>", "</p>", "%{name}",
     "{n, plural, one {# file} other {# files}}", "www.example.org", "mailto:a@b.org", "j.doe+x@mail.example.org", "%1",
     "$%1$s", "♪", "→", "©", "™", "€", "👩🏽‍🚀", "🇩🇪🇫🇷", "1️⃣", "①", "&&", "=>", "20°C", "$", "|", "%n", "%L1",
     "%PATH%", "#{x}", "/usr/bin/x", "~/a/b.txt"],
)  # fmt: skip
def test_what_counts_as_a_placeholder(placeholder: str):
    text, mark, rest = parse(f"one {placeholder} two")
    assert (text, rest) == ("one ", " two")
    assert isinstance(mark, Mark) and mark.content == placeholder


@pytest.mark.parametrize(
    "text",
    ["50% of it costs 5", "x<6 and 7>x", "100% sure", "R&D a{", "Tom & Jerry", "Madrid - Rome", "a well-known b#c"],
)
def test_what_does_not(text: str):
    assert parse(text) == [text]


words = st.text(string.ascii_lowercase, min_size=1, max_size=4)
spaces = st.sampled_from(["", " "])


@st.composite
def marked_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A random text with numbered placeholders and properly nested tags, and the marks in it."""
    marks: list[str] = []

    def number(form: str) -> str:
        marks.append(form.format(len(marks)))
        return marks[-1]

    def content(depth: int) -> str:
        parts = []
        for kind in draw(st.lists(st.sampled_from(["word", "word", "comma", "single", "pair"]), max_size=5)):
            if kind == "word":
                parts.append(draw(words))
            elif kind == "comma":
                parts.append(",")
            elif kind == "single":
                parts.append(number("<x{}/>"))
            elif depth < 3:
                opening = number("<g{}>")
                closing = opening.replace("<", "</")
                marks.append(closing)
                parts.append(opening + content(depth + 1) + closing)
            parts.append(draw(spaces))
        return "".join(parts)

    return content(0), marks


def assert_nested(marks: list[str]) -> None:
    stack: list[str] = []
    for mark in marks:
        if mark.startswith("</"):
            assert stack.pop() == mark.replace("</", "<")
        elif not mark.endswith("/>"):
            stack.append(mark)
    assert not stack


@given(
    marked_texts(),
    st.lists(words.flatmap(lambda word: st.sampled_from([word, word + ",", "(" + word])), max_size=8),
    st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), max_size=20),
)
@example(("<x0/>, a", ["<x0/>"]), [], [])
@example(("<g0>a</g0> <g1>b</g1>", ["<g0>", "</g0>", "<g1>", "</g1>"]), ["x", "y"], [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_every_mark_once_nested_and_no_word_lost(marked, target: list[str], links: list[tuple[int, int]]):
    source, marks = marked
    out = translate_texts([source], lambda texts: [Translated(" ".join(target), links) for _ in texts])[0]
    found = re.findall(r"<[^<>]+>", out)
    assert sorted(found) == sorted(marks)
    assert_nested(found)
    plain = re.sub(r"<[^<>]+>", "", source)
    if any(map(str.isalnum, plain)):
        left = re.sub(r"<[^<>]+>", "", out)
        # "<x/>, not found": the comma comes before the sentence, so it is copied with its placeholder
        leader = re.match(r"\s*(?:<x\d+/>\s*)+(,+)\s", source)
        assert "".join(left.split()) == (leader[1] if leader else "") + "".join(target)
        assert [word.strip(",(") for word in re.split(r"[\s,(]+", left) if word] == [
            word.strip(",(") for word in target
        ]
    else:
        assert out == source


@given(st.text(st.sampled_from("ab %s{}<>/&;$\n\\x.1('\ufffc"), max_size=30))
def test_strange_strings_come_back_whole(text: str):
    pieces = parse(text)
    assert "".join(piece if isinstance(piece, str) else piece.content for piece in pieces) == text
    out = translate_texts([text], lambda texts: texts)[0]
    assert sorted("".join(out.split())) == sorted("".join(text.split()))
    assert out.count("\n") == text.count("\n")


def test_overlapping_halves_are_placed_one_by_one():
    marks = [
        Mark(name, role, key)
        for name, role, key in (("1", "open", 1), ("2", "open", 2), ("/1", "close", 1), ("/2", "close", 2))
    ]
    pieces = [marks[0], "a ", marks[1], "b ", marks[2], "c", marks[3]]
    out = translate_marked([pieces], lambda texts: [Translated("x y z", [(0, 0), (1, 1), (2, 2)])])[0]
    assert sorted(piece.content for piece in out if isinstance(piece, Mark)) == ["/1", "/2", "1", "2"]
    assert "".join(piece for piece in out if isinstance(piece, str)).split() == ["x", "y", "z"]


@st.composite
def mixed_pieces(draw: st.DrawFn) -> list:
    """Words, nested firm pairs, and ends of other pairs that open and close anywhere, even across each other."""
    pieces: list = []
    open_firm: list[int] = []
    for number, kind in enumerate(
        draw(st.lists(st.sampled_from(["word", "open", "close", "soft", "/soft"]), max_size=16))
    ):
        if kind == "word":
            pieces.append(draw(words) + draw(spaces))
        elif kind == "open":
            open_firm.append(number)
            pieces.append(Mark(f"<{number}>", "open", number, firm=True))
        elif kind == "close" and open_firm:
            key = open_firm.pop()
            pieces.append(Mark(f"</{key}>", "close", key, firm=True))
        elif kind.endswith("soft"):
            pieces.append(Mark(f"{number}", "open" if kind == "soft" else "close", draw(st.sampled_from("ab"))))
    return pieces + [Mark(f"</{key}>", "close", key, firm=True) for key in reversed(open_firm)]


@given(
    mixed_pieces(),
    st.lists(words, max_size=6),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=15),
)
def test_elements_stay_nested_whatever_overlaps_them(pieces: list, target: list[str], links: list[tuple[int, int]]):
    out = translate_marked([pieces], lambda texts: [Translated(" ".join(target), links) for _ in texts])[0]
    marks = [piece for piece in out if isinstance(piece, Mark)]
    assert sorted(marks, key=id) == sorted((piece for piece in pieces if isinstance(piece, Mark)), key=id)
    assert_nested([mark.content for mark in marks if mark.firm])
    if any(isinstance(piece, str) for piece in pieces):
        assert "".join(piece for piece in out if isinstance(piece, str)).split() == target


KEPT = st.sampled_from([
    "%s", "%1$s", "%(n)s", "%d", "%5.2f", "%1", "{0}", "{name}", "{{x}}", "${var}", "$VAR", "$%2$s", "a.b@c.org", "♪",
    "→", "©", "™", "€", "👍🏽", "👩\u200d🚀", "🇪🇸", "https://a.org/x?y=1", "www.a.org",
    "&nbsp;", "20°C", "=>", "•", "№", "%%", "\\n",
])  # fmt: skip


@st.composite
def strings_with_marks(draw: st.DrawFn) -> tuple[str, list[str]]:
    """Words with placeholders and symbols between them, beside them, in brackets and in quotes."""
    kept: list[str] = []
    parts: list[str] = []
    for _ in range(draw(st.integers(1, 7))):
        if draw(st.booleans()):
            kept.append(draw(KEPT))
            parts.append(draw(st.sampled_from(["{}", "({})", '"{}"', "{},", "{}.", "{}:"])).replace("{}", kept[-1], 1))
        else:
            parts.append(draw(words) + draw(st.sampled_from(["", ",", "!"])))
    return " ".join(parts), kept


@st.composite
def careless_translators(draw: st.DrawFn):
    """A translator that drops, repeats, reorders and invents words, with links that may be wrong."""
    numbers = draw(st.lists(st.integers(0, 8), max_size=8))
    invented = draw(st.lists(words, max_size=2))
    links = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))

    def translate(texts: list[str]) -> list[Translated]:
        known = [text.split() for text in texts]
        return [Translated(" ".join([*(w[n] for n in numbers if n < len(w)), *invented]), links) for w in known]

    return translate


@given(strings_with_marks(), careless_translators())
def test_every_placeholder_and_symbol_is_there_once_whatever_the_model_says(marked, translate):
    source, kept = marked
    out = translate_texts([source], translate)[0]
    left = out
    for mark in sorted(kept, key=len, reverse=True):  # longer ones first: "$%2$s" contains others
        assert mark in left
        left = left.replace(mark, " ", 1)
    assert not any(mark in left for mark in kept)


@pytest.mark.parametrize(
    ("source", "translation", "links", "expected"),
    [
        ("&File", "Archivo", "0-0", "&Archivo"),
        ("&Open", "Abrir", "0-0", "&Abrir"),
        ("E&xit", "Salir", "0-0", "&Salir"),
        ("E&xit", "Exit", "0-0", "E&xit"),
        ("Can&cel", "Cancelar", "0-0", "&Cancelar"),
        ("Save &As...", "Guardar como...", "0-0 1-1", "Gu&ardar como..."),
        ("Format &file", "Formatear fichero", "0-0 1-1", "Formatear &fichero"),
        ("_Open", "Abrir", "0-0", "_Abrir"),
        ("C_ut", "Cortar", "0-0", "_Cortar"),
        ("~Help", "Ayuda", "0-0", "~Ayuda"),
        ("&File", "文件", "0-0", "文件(&F)"),
        ("&File", "Файл", "0-0", "&Файл"),
        ("&Print %s", "Imprimir", "0-0", "Im&primir %s"),
        ("<b>&Print</b> all", "Alles drucken", "0-1 1-0", "Alles <b>&drucken</b>"),
        ("&Yes / &No", "Sí No", "0-0 1-1", "&Sí / &No"),
        ("&File", "", "", "(&F)"),
        ("&1 item", "1 cosa", "0-0 1-1", "&1 cosa"),
    ],
)
def test_mnemonics_go_to_a_letter_of_the_translation(source: str, translation: str, links: str, expected: str):
    pairs = [(int(i), int(j)) for i, j in (link.split("-") for link in links.split())]
    sent: list[str] = []
    out = translate_texts([source], lambda texts: sent.extend(texts) or [Translated(translation, pairs)])[0]
    assert out == expected
    assert not re.search("[&_~]", sent[0])


@pytest.mark.parametrize(
    "text",
    ["AT&T pays", "R&D", "Q&A here", "file_name", "set file_name here", "__init__ is here", "a & b", "&amp; so",
     "one two three four five six seven _eight"],
)  # fmt: skip
def test_what_is_no_mnemonic_goes_to_the_translator(text: str):
    sent: list[str] = []
    assert translate_texts([text], lambda texts: sent.extend(texts) or texts) == [text]
    assert sent == [text.replace("&amp; ", "")]


@given(
    st.lists(words.map(str.capitalize), min_size=1, max_size=4),
    st.integers(0, 3),
    st.sampled_from("&_~"),
    careless_translators(),
)
def test_a_mnemonic_is_there_once_and_before_a_letter(label: list[str], place: int, sign: str, translate):
    label[place % len(label)] = sign + label[place % len(label)]
    source = " ".join(label)
    out = translate_texts([source], translate)[0]
    assert out.count(sign) == 1
    assert out[out.index(sign) + 1].isalnum()
    assert translate_texts([source], lambda texts: texts) == [source]


def test_links_are_computed_at_once_and_only_where_marks_need_them():
    asked: list[list[str]] = []

    def align(texts: list[str]) -> list[list[tuple[int, int]]]:
        asked.append(texts)
        return [[(0, 1), (1, 0)] for _ in texts]

    def reverse(texts: list[str]) -> list[Translated]:
        return [Translated(" ".join(text.split()[::-1]), LaterLinks(text, align)) for text in texts]

    out = translate_texts(["a b", "<i>a</i> b", "E&xit now", "c <b>d</b>"], reverse)
    assert out == ["b a", "b <i>a</i>", "now E&xit", "<b>d</b> c"]
    assert asked == [["a b", "Exit now", "c d"]]
