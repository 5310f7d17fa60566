"""Markdown as markdown-it-py reads it and YAML as PyYAML and ruamel.yaml read it: words change, nothing else does."""

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from ruamel.yaml import YAML

from regard.documents.document_job import Report
from regard.documents.markup import Translated
from regard.documents.translate import translate_document
from regard.errors import DataError


def shout(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def rewrite(folder: Path, name: str, text: str, translate=shout) -> tuple[str, Report]:
    path, out = folder / name, folder / f"out.{name}"
    path.write_bytes(text.encode())
    report = translate_document(path, out, translate, "en", "de")
    return out.read_bytes().decode(), report


# Markdown

SAMPLE = """---
title: kept
---
# A *good* title #

Setext title
------------

> quoted one
> goes **on**\x20\x20
> with `code` here

[!NOTE] is text.

* item one
  goes on
  1. inner [link text](https://a.b/c_d "title") and ![a picture](p.png)
- [ ] to do, see[^1]

```python
print("not this")
```

    indented code

| left | right \\| side |
|:-----|---:|
| one `x\\|y` | two |

<div>
block HTML
</div>

See [the docs][ref] or [ref] and <https://x.y/z>, snake_case, 2 \\* 3 &amp; {name} <b>bold</b>.

[ref]: https://example.org "kept too"
[^1]: A note here
"""
DONE = """---
title: kept
---
# A *GOOD* TITLE #

SETEXT TITLE
------------

> QUOTED ONE GOES **ON**\x20\x20
> WITH `code` HERE

[!NOTE] IS TEXT.

* ITEM ONE GOES ON
  1. INNER [LINK TEXT](https://a.b/c_d "title") AND ![A PICTURE](p.png)
- [ ] TO DO, SEE[^1]

```python
print("not this")
```

    indented code

| LEFT | RIGHT \\| SIDE |
|:-----|---:|
| ONE `x\\|y` | TWO |

<div>
block HTML
</div>

SEE [THE DOCS][ref] OR [REF][ref] AND <https://x.y/z>, SNAKE_CASE, 2 * 3 & {name} <b>BOLD</b>.

[ref]: https://example.org "kept too"
[^1]: A NOTE HERE
"""


def blocks(text: str) -> list[tuple]:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    return [(token.type, token.tag, token.content if token.type in ("fence", "code_block", "html_block") else "",
             sorted((child.type, str(child.attrs)) for child in token.children or []
                    if child.type not in ("text", "softbreak")))
            for token in parser.parse(text)]  # fmt: skip


def test_markdown_keeps_all_but_its_words(tmp_path: Path):
    assert rewrite(tmp_path, "a.md", SAMPLE, lambda texts: texts)[0] == SAMPLE
    out, _ = rewrite(tmp_path, "a.md", SAMPLE)
    assert out == DONE
    assert rewrite(tmp_path, "a.md", SAMPLE.replace("\n", "\r\n"))[0] == DONE.replace("\n", "\r\n")


BOXES = """!!! note "A title"
    further in here
    goes on

> ::: tip
> quoted **words**
> :::

text
"""


def test_boxes_of_documentation_keep_their_lines(tmp_path: Path):
    out, _ = rewrite(tmp_path, "a.md", BOXES)
    expected = BOXES.replace("further in here\n    goes on", "FURTHER IN HERE GOES ON").replace("text", "TEXT")
    assert out == expected.replace("quoted **words**", "QUOTED **WORDS**")


@pytest.mark.parametrize(
    ("source", "answer", "expected"),
    [
        ("One *two* three", "uno *dos", "uno* \\**dos*"), ("one", "1. uno", "1\\. uno"), ("one", "# uno", "\\# uno"),
        ("one", "a <b> c", "a \\<b> c"), ("one", "C:\\!x &amp; y", "C:\\\\!x \\&amp; y"),
        ("| a |\n|---|\n", "x|y", None),
    ],
)  # fmt: skip
def test_what_means_something_in_markdown_is_escaped(tmp_path: Path, source: str, answer: str, expected: str | None):
    out, _ = rewrite(tmp_path, "a.md", source, lambda texts: [answer for _ in texts])
    assert blocks(out) == blocks(source)
    if expected and "*" not in source:
        assert out == expected


inline = st.sampled_from(
    ["one ", "two. ", "*em* ", "**strong** ", "`code` ", "[link](u_v) ", "![pic](x) ", "<http://a.b> ", "&lt; ", "\\* ",
     "a_b ", "<i>x</i> ", "~~gone~~ ", "{name} ", "  \n", "\n", "[ref] "]
)  # fmt: skip


@given(
    st.sampled_from(["", "# ", "> ", "- ", "3. "]),
    st.lists(inline, min_size=1, max_size=6).map("".join),
    st.lists(st.sampled_from(["x", "*y", "z_", "[w]", "`", "<a>", "- 1.", "#"]), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=5),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_translation_leaves_the_markup_of_markdown(tmp_path: Path, start: str, source: str, answer, links):
    text = f"{start}word {source}end\n\n[ref]: somewhere\n"
    assert rewrite(tmp_path, "a.md", text, lambda texts: texts)[0] == text
    out, _ = rewrite(tmp_path, "a.md", text, lambda texts: [Translated(" ".join(answer), links) for _ in texts])
    assert blocks(out) == blocks(text)


# YAML

RAILS = """# a comment: kept
en:   # the language
  hello: Hello %{name}, "you"   # beside it
  yes: no
  count: 12
  "quoted": "One\\ttwo \\u00e9"
  single: 'it''s here'
  text: |
    line one

    line two
  folded: >-
    folded one
    goes on

    and more
  list: [one, "two, three", {a: b c}]
  long: a plain text
    on two lines
  base: &base anchored text
  other: *base
"""


def test_yaml_keeps_comments_styles_and_anchors(tmp_path: Path):
    assert rewrite(tmp_path, "a.yml", RAILS, lambda texts: texts)[0] == RAILS.replace("en:", "de:", 1)
    out, report = rewrite(tmp_path, "a.yml", RAILS)
    assert out.startswith('# a comment: kept\nde:   # the language\n  hello: HELLO %{name}, "YOU"   # beside it\n')
    for read in (yaml.safe_load, YAML(typ="safe", pure=True).load):
        (before,), (after,) = read(RAILS).values(), read(out).values()
        assert [*after] == [*before]
        assert (after["hello"], after["count"], after["other"]) == ('HELLO %{name}, "YOU"', 12, "ANCHORED TEXT")
        assert after["quoted"] == "ONE\tTWO É" and after["single"] == "IT'S HERE"
        assert (after["text"], after["folded"]) == ("LINE ONE\n\nLINE TWO\n", "FOLDED ONE GOES ON\nAND MORE")
        assert after["list"] == ["ONE", "TWO, THREE", {"a": "B C"}] and after["long"] == "A PLAIN TEXT ON TWO LINES"
    assert "yes: no\n" in out and "  text: |\n    LINE ONE\n\n    LINE TWO\n  folded: >-\n" in out
    assert report.translated == 10


texts = st.text(st.sampled_from("ab :#'\"\\é\n{}[],-&*!|>%@`?\t"), max_size=8)
values = st.recursive(
    texts | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(
    values, st.booleans(), st.sampled_from([None, "|", '"', "'", ">"]), st.sampled_from(["x: y", "- z #", "no", "w"])
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_yaml_that_pyyaml_writes_keeps_its_shape(tmp_path: Path, value, flow: bool, style, answer: str):
    text = yaml.safe_dump(value, default_flow_style=flow, default_style=style, allow_unicode=True, sort_keys=False)
    assert rewrite(tmp_path, "a.yaml", text, lambda each: each)[0] == text

    def shape(each):
        if isinstance(each, dict):
            return {key: shape(inside) for key, inside in each.items()}
        return [shape(inside) for inside in each] if isinstance(each, list) else type(each)

    out, _ = rewrite(tmp_path, "a.yaml", text, lambda each: [answer for _ in each])
    assert shape(yaml.safe_load(out)) == shape(value)


def test_names_and_formats_of_rails_are_no_text(tmp_path: Path):
    source = 'en:\n  order: [:year, :month]\n  format: "%b %d, %Y"\n  first: ":year it is"\n'
    assert rewrite(tmp_path, "a.yml", source)[0] == source.replace("en:", "de:").replace("it is", "IT IS").replace(
        '":year', '":YEAR'
    )


def test_references_of_yaml_cost_no_time_however_often_they_repeat(tmp_path: Path):
    bomb = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert rewrite(tmp_path, "a.yaml", bomb)[0] == bomb.replace("[lol]", "[LOL]")
    assert rewrite(tmp_path, "b.yaml", "a: &x [b, *x]\n")[0] == "a: &x [B, *x]\n"


def test_yaml_that_is_broken_is_refused_in_one_line(tmp_path: Path):
    for text, words in (("a: [b", "line 1: not well-formed YAML"), ("a: b\n\tc: d", "line 2"), ("a: \x07", "a.yaml")):
        with pytest.raises(DataError, match=words) as told:
            rewrite(tmp_path, "a.yaml", text)
        assert "\n" not in str(told.value)
    assert rewrite(tmp_path, "a.yaml", "")[0] == ""
    assert rewrite(tmp_path, "b.md", "")[0] == ""
