"""Message files keep keys, order, comments, escapes and placeholders; other programs read the translated texts."""

import io
import json
import re
from pathlib import Path

import javaproperties
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from regard.documents.document_job import Report
from regard.documents.icu_messages import translate_messages
from regard.documents.markup import Translated
from regard.documents.translate import translate_document
from regard.errors import DataError


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def rewrite(folder: Path, name: str, raw: bytes | str, translate=shout, **options) -> tuple[str, Report]:
    path, out = folder / name, folder / f"out.{name}"
    path.write_bytes(raw.encode() if isinstance(raw, str) else raw)
    report = translate_document(path, out, translate, "en", "de", **options)
    return out.read_bytes().decode(), report


# Texts with placeholders and plurals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello {name}!", "HELLO {name}!"), ("{{count}} files for $t(user.name)", "{{count}} FILES FOR $t(user.name)"),
        ("{n, plural, one {# file} other {# files}}", "{n, plural, one {# FILE} other {# FILES}}"),
        (
            "You have {n, plural, =0 {no file} one{# file in {place}} other {# files}} now",
            "YOU HAVE {n, plural, =0 {NO FILE} one{# FILE IN {place}} other {# FILES}} NOW",
        ),
        (
            "{sex, select, female {her {n, plural, offset:1 one {cat} other {# cats}}} other {their pet}}",
            "{sex, select, female {HER {n, plural, offset:1 one {CAT} other {# CATS}}} other {THEIR PET}}",
        ),
        ("{n, plural, other {it''s '{'fine'}' here}}", "{n, plural, other {IT''S '{'FINE'}' HERE}}"),
        ("{n, plural, other {open", "{n, plural, other {open"),
        ("%#@cats@ and %arg dogs, %Y-%m-%d", "%#@cats@ AND %arg DOGS, %Y-%m-%d"),
        ("@:common.hello you, @.lower:(a-b) too", "@:common.hello YOU, @.lower:(a-b) TOO"),
        ("{when, date, short} at noon", "{when, date, short} AT NOON"),
    ],
)  # fmt: skip
def test_arguments_are_kept_and_branches_translated_one_by_one(text: str, expected: str):
    assert translate_messages([text], shout) == [expected]


def test_an_apostrophe_never_quotes_what_follows():
    def french(texts: list[str]) -> list[str]:
        return ["l'" for _ in texts]

    messages = ["{n, plural, other {the-{thing}}}", "{n, plural, other {the {thing}}}", "{n, plural, other {it''s}}"]
    assert translate_messages(messages, french) == [
        "{n, plural, other {l’{thing}}}", "{n, plural, other {l' {thing}}}", "{n, plural, other {l''}}",
    ]  # fmt: skip


message = st.recursive(
    st.sampled_from(["one ", "two. ", "{name} ", "%s ", "{{n}} ", "<b>so</b> ", "'{'x'}' ", "# "]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda parts: f"{{n, plural, one {{{''.join(parts)}}} other {{x {parts[0]}}}}} "
    ),
    max_leaves=6,
)


@given(
    st.lists(message, min_size=1, max_size=4).map("".join),
    st.lists(st.sampled_from(["x", "y,", "z."]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_whatever_the_translation_is_every_placeholder_comes_back_once(text: str, answer, links):
    (done,) = translate_messages([text], lambda texts: [Translated(" ".join(answer), links) for _ in texts])
    for mark in ("{name}", "%s", "{{n}}", "<b>", "</b>", "'{'", "'}'", "{n, plural, one {", "} other {"):
        assert done.count(mark) == text.count(mark), mark
    assert (done.count("{"), done.count("}")) == (text.count("{"), text.count("}"))


# JSON, ARB, Xcode


def test_json_keeps_every_byte_but_the_texts(tmp_path: Path):
    text = (
        '{\r\n\t"menu" : {"open file":"Open a file", "n":1.50, "on": true,\r\n "list": ["one {name}", null, "..."]},'
        '\r\n\t"b":"say \\"so\\""  }\r\n'
    )
    out, report = rewrite(tmp_path, "a.json", text)
    assert out == text.replace("Open a file", "OPEN A FILE").replace("one {", "ONE {").replace("say", "SAY").replace(
        '\\"so', '\\"SO'
    )
    assert report.translated == 3
    assert rewrite(tmp_path, "a.json", text, lambda texts: texts)[0] == text
    for written, escaped in (('{"a": "caf\\u00e9"}', '{"a": "CAF\\u00c9"}'), ('{"a": "café"}', '{"a": "CAFÉ"}')):
        assert rewrite(tmp_path, "a.json", written)[0] == escaped


def test_json_below_a_language_and_with_descriptions(tmp_path: Path):
    assert rewrite(tmp_path, "a.json", '{"en": {"a": "b"}}')[0] == '{"de": {"a": "B"}}'
    assert rewrite(tmp_path, "a.json", '{"en": "b"}')[0] == '{"en": "B"}'
    chrome = {"a": {"message": "Hi $USER$", "description": "x", "placeholders": {"user": {"content": "y"}}}}
    out = json.loads(rewrite(tmp_path, "a.json", json.dumps(chrome))[0])
    assert out == {"a": {**chrome["a"], "message": "HI $USER$"}}
    extracted = [{"id": "app.hi", "defaultMessage": "Hi", "description": "x"}]
    assert json.loads(rewrite(tmp_path, "a.json", json.dumps(extracted))[0]) == [
        {**extracted[0], "defaultMessage": "HI"}
    ]


values = st.recursive(
    st.text(st.sampled_from('ab "\\é\n{}%s'), max_size=8) | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(values, st.sampled_from([None, 2, "\t"]), st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_json_keeps_its_shape(tmp_path: Path, value, indent, escaped: bool):
    text = json.dumps(value, indent=indent, ensure_ascii=escaped)
    assert rewrite(tmp_path, "a.json", text, lambda texts: texts)[0] == text

    def shape(each):
        if isinstance(each, dict):
            return {key: shape(inside) for key, inside in each.items()}
        return [shape(inside) for inside in each] if isinstance(each, list) else type(each)

    assert shape(json.loads(rewrite(tmp_path, "a.json", text)[0])) == shape(value)


def test_arb_keeps_its_metadata_and_says_its_language(tmp_path: Path):
    arb = {
        "@@locale": "en", "hello": "Hello {user}", "@hello": {"description": "a hail", "placeholders": {"user": {}}},
        "items": "{n, plural, one{an item} other{{n} items}}",
    }  # fmt: skip
    out, report = rewrite(tmp_path, "a.arb", json.dumps(arb, indent=2))
    assert out == json.dumps(
        arb | {"@@locale": "de", "hello": "HELLO {user}", "items": "{n, plural, one{AN ITEM} other{{n} ITEMS}}"},
        indent=2,
    )
    assert report.translated == 2


CATALOGUE = """{
  "sourceLanguage" : "en",
  "strings" : {
    "" : {

    },
    "Done %@" : {

    },
    "cats" : {
      "localizations" : {
        "en" : {
          "variations" : {
            "plural" : {
              "one" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld cat"
                }
              },
              "other" : {
                "stringUnit" : {
                  "state" : "translated",
                  "value" : "%lld cats"
                }
              }
            }
          }
        }
      }
    },
    "kept" : {
      "shouldTranslate" : false
    },
    "old" : {
      "localizations" : {
        "de" : {
          "stringUnit" : {
            "state" : "translated",
            "value" : "alt"
          }
        }
      }
    }
  },
  "version" : "1.0"
}
"""


def test_string_catalogues_get_a_language_in_xcodes_layout(tmp_path: Path):
    out, report = rewrite(tmp_path, "a.xcstrings", CATALOGUE)
    before, after = json.loads(CATALOGUE), json.loads(out)
    strings = after["strings"]
    assert strings["Done %@"]["localizations"] == {"de": {"stringUnit": {"state": "translated", "value": "DONE %@"}}}
    plural = strings["cats"]["localizations"]["de"]["variations"]["plural"]
    assert {key: form["stringUnit"]["value"] for key, form in plural.items()} == {
        "one": "%lld CAT",
        "other": "%lld CATS",
    }
    assert (strings["kept"], strings["old"]) == (before["strings"]["kept"], before["strings"]["old"])
    assert str(report) == ("1 kept (1 already translated), 3 new, 1 skipped (1 marked shouldTranslate false)")
    assert out.startswith(CATALOGUE[: CATALOGUE.index('"Done')])
    assert '"state" : "needs_review"' in rewrite(tmp_path, "a.xcstrings", CATALOGUE, review=True)[0]
    done, _ = rewrite(tmp_path, "b.xcstrings", out)
    assert done == out


def test_doubtful_strings_of_a_catalogue_are_to_be_reviewed(tmp_path: Path):
    def judge(texts: list[str]) -> list[str | Translated]:
        return [Translated(text.upper(), quality=0.2 if "cats" in text else 0.9) for text in texts]

    strings = json.loads(rewrite(tmp_path, "a.xcstrings", CATALOGUE, judge, review_below=0.5)[0])["strings"]
    assert strings["Done %@"]["localizations"]["de"]["stringUnit"]["state"] == "translated"
    plural = strings["cats"]["localizations"]["de"]["variations"]["plural"]
    assert {key: form["stringUnit"]["state"] for key, form in plural.items()} == {
        "one": "translated",
        "other": "needs_review",
    }


# Lines of keys and values


def test_a_unit_of_a_catalogue_that_is_new_is_not_yet_translated(tmp_path: Path):
    def catalogue(state: str) -> str:
        german = {"stringUnit": {"state": state, "value": "Hallo"}}
        return json.dumps({"sourceLanguage": "en", "strings": {"Hello": {"localizations": {"de": german}}}})

    for state, expected in (("new", "HELLO"), ("translated", "Hallo"), ("needs_review", "Hallo")):
        out = json.loads(rewrite(tmp_path, "a.xcstrings", catalogue(state))[0])
        assert out["strings"]["Hello"]["localizations"]["de"]["stringUnit"]["value"] == expected


def test_properties_as_java_reads_them(tmp_path: Path):
    text = (
        "# a comment = kept \\\n! and this\n\nopen=Open the file\n"
        "  long key\\ here : One line, \\\n      and the next\n"
        "caf\\u00e9 It is caf\\u00e9\nempty=\nquoted=It''s {0}\npath=a\\tb\\n\\\\c\n"
    )
    out, report = rewrite(tmp_path, "a.properties", text)
    assert out.isascii() and report.translated == 5
    before, after = javaproperties.loads(text), javaproperties.loads(out)
    assert after == {key: value.upper() for key, value in before.items()}
    assert out.startswith("# a comment = kept \\\n! and this\n\nopen=OPEN")
    assert rewrite(tmp_path, "a.properties", text, lambda texts: texts)[0] == text
    broken = "long\\\r\n  key \\\r\n = the \\\r\n text\\\r\n\r\n"
    assert rewrite(tmp_path, "a.properties", broken)[0] == broken.replace("the \\\r\n text", "THE TEXT")
    with pytest.raises(DataError, match=r"line 2: Invalid .*users; expected four hexadecimal digits"):
        rewrite(tmp_path, "a.properties", "a=b\npath=C:\\users\n")
    path, new = tmp_path / "b.properties", tmp_path / "c.properties"
    path.write_bytes("a=é".encode("latin-1"))
    translate_document(path, new, lambda texts: ["ł é"], "en", "de", encoding="latin-1")
    assert new.read_bytes() == b"a=\\u0142 \xe9"


@given(st.dictionaries(st.text("ab =:#!\\é\n\t", min_size=1, max_size=5), st.text("aé ='\\:#!\n\t😀", max_size=8)))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_properties_are_read_and_written(tmp_path: Path, entries):
    file = io.StringIO()
    javaproperties.dump(entries, file, timestamp=False)
    out, _ = rewrite(tmp_path, "a.properties", file.getvalue(), lambda texts: ["x😀\\:=y" for _ in texts])
    after = javaproperties.loads(out)
    assert list(after) == list(entries)
    for key, value in entries.items():
        assert ("x😀\\:=y" in after[key]) if any(map(str.isalpha, value)) else after[key] == value


def test_strings_of_apple(tmp_path: Path):
    text = '/* a "comment" = "x"; */\n'
    text += '"key one" = "Say \\"hi\\" to %@\\n";\n// no\nbare.key = "Caf\\U00e9";\n"n" = "%1$d";\n'
    expected = text.replace("Say", "SAY").replace("hi", "HI").replace("to", "TO").replace("Caf\\U00e9", "CAFÉ")
    for codec in ("utf-8", "utf-16"):
        (tmp_path / "a.strings").write_bytes(text.encode(codec))
        report = translate_document(tmp_path / "a.strings", tmp_path / "b.strings", shout, "en", "de")
        assert (tmp_path / "b.strings").read_bytes().decode(codec) == expected
        assert report.translated == 2
    with pytest.raises(DataError, match=r'a\.strings, line 2: not well-formed; expected "key" = "value";'):
        rewrite(tmp_path, "a.strings", '"a" = "b";\n"c" = "d"\n')


# Android


ANDROID = """<?xml version="1.0" encoding="utf-8"?>
<resources xmlns:xliff="urn:oasis:names:tc:xliff:document:1.2" >
    <!-- kept -->
    <string name="app" translatable="false">Regard</string>
    <string name='hi'>Don\\'t say <b>so</b> to <xliff:g id="who" example="B">%1$s</xliff:g> &amp; more\\nplease</string>
    <string name="link">@string/app</string>
    <color name="c">red</color>
    <plurals name="cats"><item quantity="one">%d cat</item><item quantity="other">%d cats</item></plurals>
    <string-array name="days">
        <item>Monday</item><item>"It\u2019s  fine"</item></string-array>
</resources>
"""


def test_android_resources(tmp_path: Path):
    out, report = rewrite(tmp_path, "strings.xml", ANDROID)
    expected = ANDROID
    for old, new in (
        ("Don\\'t say", "DON\\'T SAY"), (">so<", ">SO<"), (" to <", " TO <"), ("more\\nplease", "MORE\\nPLEASE"),
        ("%d cat<", "%d CAT<"), ("%d cats<", "%d CATS<"), ("Monday", "MONDAY"),
        ('"It\u2019s  fine"', '"IT\u2019S FINE"'),
    ):  # fmt: skip
        expected = expected.replace(old, new)
    assert out == expected
    assert str(report) == '5 new, 1 skipped (1 marked translatable="false")'
    assert [each.tag for each in etree.fromstring(out.encode()).iter()] == [
        each.tag for each in etree.fromstring(ANDROID.encode()).iter()
    ]
    quoting, _ = rewrite(
        tmp_path, "a.xml", "<resources><string name='a'>x</string></resources>", lambda _: ["?l'\"é\\"]
    )
    assert quoting == "<resources><string name='a'>\\?l\\'\\\"é\\\\</string></resources>"
    with pytest.raises(
        DataError, match=r"only Android's string resources can be translated, whose root is <resources>"
    ):
        rewrite(tmp_path, "b.xml", "<a>b</a>")


# What is refused


@pytest.mark.parametrize(
    ("name", "raw", "expected"),
    [
        ("a.json", b"", "line 1: not well-formed JSON"), ("a.json", b'{"a": "b",}', "line 1: not well-formed JSON"),
        ("a.json", b"[" * 100_000, "nested too deeply"), ("a.json", b"\x89PNG\xff\0", r"a\.json"),
        ("a.json", b'{"en": {"a": "b"}, "de": {"a": "c"}}', "has messages of en and of de"),
        ("a.yaml", b"en: {a: b}\nde: {a: c}", "translate a file that has en alone"),
        ("a.arb", b"[]", "not an ARB file"), ("a.xcstrings", b"{}", "not a string catalogue"),
        ("a.xcstrings", b'{"sourceLanguage": "fr", "strings": {}}', "its source language is 'fr', not 'en'"),
        ("a.xml", b"<resources><string>", "not well-formed XML"), ("a.xml", b"", "not well-formed XML"),
    ],
)  # fmt: skip
def test_what_is_no_message_file_is_refused_in_one_line(tmp_path: Path, name: str, raw: bytes, expected: str):
    with pytest.raises(DataError, match=expected) as told:
        rewrite(tmp_path, name, raw)
    assert not re.search("[\r\n]", str(told.value))
    assert [path.name for path in tmp_path.iterdir()] == [name]
