"""regard embed and regard read: one output line per input line, as text and as JSON."""

import io
import json

import numpy as np
import pytest

from regard.cli.main import run
from regard.families.language.encoder import TextEncoder


class Typed:
    """Standard input with given bytes."""

    def __init__(self, content):
        self.buffer = io.BytesIO(content)
        self.buffer.name = "<stdin>"

    def isatty(self):
        return False


@pytest.fixture
def piped(monkeypatch, capsys):
    """Run a command on lines of standard input; returns its lines of output."""

    def pipe(content, *arguments, expect=0):
        monkeypatch.setattr("sys.stdin", Typed(content.encode()))
        assert run(list(arguments)) == expect
        out = capsys.readouterr()
        pipe.err = out.err
        return out.out.split("\n")[:-1]

    return pipe


def test_embed_prints_one_line_of_numbers_for_each_line(make_encoder, piped):
    folder = str(make_encoder("none"))
    lines = piped("we are eating bread\n\nshe reads\n", "embed", "-m", folder)
    expected = TextEncoder.load(folder).embed(["we are eating bread", "", "she reads"])
    np.testing.assert_allclose([[float(n) for n in line.split(" ")] for line in lines], expected.numpy(), atol=1e-6)


def test_embed_as_json_and_as_a_matrix(make_encoder, piped, tmp_path):
    folder = str(make_encoder("none"))
    (line,) = piped("", "embed", "she reads", "-m", folder, "--json", "--raw", "--pooling", "cls")
    vector = TextEncoder.load(folder).embed(["she reads"], pooling="cls", normalise=False)[0]
    assert json.loads(line)["text"] == "she reads"
    np.testing.assert_allclose(json.loads(line)["embedding"], vector.numpy(), atol=1e-6)
    assert piped("we\nshe\n", "embed", "-m", folder, "-o", str(tmp_path / "out.npy")) == []
    np.testing.assert_allclose(
        np.load(tmp_path / "out.npy"), TextEncoder.load(folder).embed(["we", "she"]).numpy(), atol=1e-6
    )


def test_a_refused_line_is_empty_and_told(make_encoder, piped):
    folder = str(make_encoder("none"))
    content = "we are\n" + "we " * 40 + "\nshe\n"
    lines = piped(content, "embed", "-m", folder, expect=1)
    assert [bool(line) for line in lines] == [True, False, True]
    assert piped.err.startswith("regard: line 2 is refused: the text that begins with 'we we")
    assert all(piped(content, "embed", "-m", folder, "--truncate"))
    assert piped(content, "embed", "-m", folder, "--json", expect=1)[1] == "null"


def test_fill_puts_the_best_words_in_place(make_encoder, piped):
    folder = str(make_encoder("masked"))
    encoder = TextEncoder.load(folder)
    lines = piped("we are [MASK] bread\n[MASK] is [MASK]\nno word\n", "read", "-m", folder, expect=1)
    assert lines == [encoder.fill_all("we are [MASK] bread"), encoder.fill_all("[MASK] is [MASK]"), ""]
    assert "line 3 is refused: 'no word' hides no word" in piped.err


def test_fill_shows_several_guesses(make_encoder, piped):
    folder = str(make_encoder("masked"))
    guesses = TextEncoder.load(folder).fill("we are [MASK] bread", top=3)
    lines = piped("", "read", "we are [MASK] bread", "-m", folder, "--top", "3")
    assert lines == [f"{guess.probability:.4f}\t{guess.token}\t{guess.text}" for guess in guesses]
    (line,) = piped("", "read", "[MASK] is [MASK]", "-m", folder, "--top", "3", "--json")
    assert [len(each) for each in json.loads(line)["masks"]] == [3, 3]
    assert {*json.loads(line)["masks"][0][0]} == {"token", "probability", "text"}


def test_classify_labels_texts_and_pairs(make_encoder, piped):
    folder = str(make_encoder("classify", labels=2, label_names=("no", "yes")))
    encoder = TextEncoder.load(folder)
    found = encoder.classify(["we are", "she reads"])
    lines = piped("we are\nshe reads\n", "read", "-m", folder)
    assert lines == [f"{each.label}\t{each.probability:.4f}" for each in found]
    (line, refused) = piped("we are\tshe reads\nwe are\n", "read", "-m", folder, "--pairs", "--json", expect=1)
    (pair,) = encoder.classify(["we are"], ["she reads"])
    assert json.loads(line)["labels"] == pytest.approx(pair.labels)
    assert refused == "null" and "line 2 is refused: 'we are' has 0 TABs" in piped.err


def test_classify_prints_the_value_of_a_model_that_rates(make_encoder, piped):
    folder = str(make_encoder("classify", labels=1))
    (rated,) = TextEncoder.load(folder).classify(["we are"])
    assert piped("we are\n", "read", "-m", folder) == [f"{rated.value:.4f}"]
    assert json.loads(piped("we are\n", "read", "-m", folder, "--json")[0])["value"] == pytest.approx(rated.value)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["embed", "we"], 2, "Missing option '-m'"),
        (["embed", "we", "-m", "nowhere"], 1, "nowhere is not a folder"),
        (["embed", "we", "-m", "FOLDER", "--pooling", "median"], 2, "pooling is 'median'"),
        (["embed", "we", "-m", "FOLDER", "-o", "out.csv"], 2, "something.npy"),
        (["classify", "we", "-m", "FOLDER"], 2, "is a BERT, which does not label texts or label images; try embed"),
        (["read", "we", "-m", "FOLDER"], 2, "or fill in hidden words; try embed"),
        (["translate", "we", "-m", "FOLDER"], 2, "is a BERT, which does not translate; try embed"),
    ],
)
def test_a_mistake_is_one_line(arguments, code, says, make_encoder, capsys):
    folder = str(make_encoder("none"))
    assert run([folder if each == "FOLDER" else each for each in arguments]) == code
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1


@pytest.mark.parametrize("head", ["none", "masked", "classify"])
def test_texts_that_are_mostly_unknown_are_told(make_encoder, piped, head):
    folder, verb = str(make_encoder(head)), "embed" if head == "none" else "read"
    hidden = " [MASK]" if head == "masked" else ""
    piped("", verb, f"Привет мир{hidden}", "-m", folder)
    assert piped.err.endswith(f"of the text: *Привет* *мир*{hidden}\n")
    piped(f"we are{hidden}\nПривет мир{hidden}\nмир\tмир{hidden}\n", verb, "-m", folder)
    (told,) = piped.err.splitlines()
    assert "2 of 3 lines have words that this model does not know: Привет, мир" in told
    assert "mostly unknown: 2 (the first is 2" in told or head == "masked"
    piped(f"we are{hidden}\n", verb, "-m", folder)
    assert piped.err == ""
