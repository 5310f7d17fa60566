"""Tagging words and finding answers: files, scores, training, and the verbs that use the models."""

import itertools
import json

import pytest
import torch

from regard.cli.main import run
from regard.errors import DataError, UsageError
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import TaggedText, entities, facts, read_questions, read_tagged
from regard.families.language.text_reader import LONGEST_ANSWER, best_spans
from regard.families.language.token_heads import answer_scores, tag_scores
from regard.training.loop import train
from regard.training.recipe.load import load_recipe

FEW = ["model.width=16", "model.ffn_width=16", "model.depth=1", "model.dropout=0", "data.count=40", "data.held_out=10",
       "training.steps=4", "training.validate_every=4", "training.checkpoint_every=4"]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Models of a few steps, by the name of their recipe."""
    place = tmp_path_factory.mktemp("heads")
    return {name: train(load_recipe(name, FEW), place / name) for name in ("facts-tags", "facts-answers")}


def test_tags_are_read_from_columns(tmp_path):
    file = tmp_path / "words.txt"
    file.write_text("-DOCSTART- -X- O\n\nAnna NNP B-PER\nlives VBZ O\n\n\nNew\tNNP\tB-LOC\nYork\tNNP\tI-LOC\n")
    texts = [TaggedText(["Anna", "lives"], ["B-PER", "O"]), TaggedText(["New", "York"], ["B-LOC", "I-LOC"])]
    assert list(read_tagged(file)) == texts
    assert [text.tags for text in read_tagged(file, 1)] == [["NNP", "VBZ"], ["NNP", "NNP"]]
    file.write_text("Anna B-PER\nlives\n")
    with pytest.raises(DataError, match="line 2: 1 columns"):
        list(read_tagged(file))
    file.write_text("Anna B-PER\n")
    with pytest.raises(DataError, match="column 3, from 0"):
        list(read_tagged(file, 3))


@pytest.mark.parametrize(
    ("tags", "phrases"),
    [
        ("O O", set()),
        ("B-A I-A O B-B", {("A", 0, 2), ("B", 3, 4)}),
        ("B-A B-A", {("A", 0, 1), ("A", 1, 2)}),
        ("O I-A I-B I-B", {("A", 1, 2), ("B", 2, 4)}),
        ("N V N", {("N", 0, 1), ("V", 1, 2), ("N", 2, 3)}),
    ],
)
def test_phrases_are_what_tags_mark(tags, phrases):
    assert entities(tags.split()) == phrases


def test_phrases_count_only_whole():
    true, found = [["B-A", "I-A", "O", "B-B"]], [["B-A", "O", "O", "B-B"]]
    assert tag_scores(found, true) == {"accuracy": 0.75, "f1": 0.5}
    assert tag_scores(true, true) == {"accuracy": 1.0, "f1": 1.0}


def test_answers_are_scored_as_squad_does():
    found = ["The New York!", "Oslo", "", "Rome"]
    right = [["new york"], ["Oslo Norway", "Bergen"], [], []]
    scores = answer_scores(found, right)
    assert scores["exact"] == 2 / 4
    assert scores["f1"] == pytest.approx((1 + 2 * 1 / (1 + 2) + 1 + 0) / 4)


def test_questions_are_read_as_squad_writes_them(tmp_path):
    asked = {"question": "Who ?", "answers": [{"text": "Anna", "answer_start": 4}, {"text": "An", "answer_start": 4}]}
    none = {"question": "Where ?", "is_impossible": True, "answers": []}
    content = {"data": [{"paragraphs": [{"context": "It: Anna.", "qas": [asked, none]}]}]}
    file = tmp_path / "squad.json"
    file.write_text(json.dumps(content))
    first, second = read_questions(file)
    assert (first.question, first.context, first.answers, first.begin) == ("Who ?", "It: Anna.", ["Anna", "An"], 4)
    assert second.answers == []
    asked["answers"][0]["answer_start"] = 3
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="correct answer_start"):
        list(read_questions(file))
    file.write_text("[]")
    with pytest.raises(DataError, match="expected data > paragraphs"):
        list(read_questions(file))


def test_facts_have_one_answer_where_they_say_and_parts_do_not_meet():
    parts = {part: list(facts(part, 60, 1)) for part in ("train", "valid", "test")}
    texts = {part: {text.tagged.text for text in some} for part, some in parts.items()}
    assert all(texts[one].isdisjoint(texts[other]) for one, other in itertools.combinations(texts, 2))
    for text in itertools.chain(*parts.values()):
        question, (answer,) = text.question, text.question.answers
        assert question.context[question.begin :].startswith(answer) and question.context.count(answer) == 1
        phrases = {" ".join(text.tagged.words[i:j]) for _, i, j in entities(text.tagged.tags)}
        assert answer in phrases


def test_the_best_span_is_that_of_brute_force():
    """The product of both probabilities, over all spans of the second text that are not too long."""
    torch.manual_seed(0)
    text = " ".join("abcdefgh" * 6)
    spans = [(-1, 0, 0), (0, 0, 1), (-1, 0, 0)] + [(1, 2 * i, 2 * i + 1) for i in range(48)] + [(-1, 0, 0)]
    for sharpness in (0.1, 3.0):
        logits = torch.randn(len(spans), 2) * sharpness
        logits[5, 0], logits[45, 1] = 9.0, 9.0  # the best two places are too far apart
        chances = logits.softmax(0)
        every = {
            (i, j): float(chances[i, 0] * chances[j, 1])
            for i, j in itertools.product(range(3, 51), repeat=2)
            if i <= j < i + LONGEST_ANSWER
        } | {(0, 0): float(chances[0, 0] * chances[0, 1])}
        ranked = sorted(every, key=every.get, reverse=True)[:5]
        found = best_spans(logits, spans, text, 5)
        assert [(one.begin, one.end) for one in found] == [
            (spans[i][1], spans[j][2]) if i else (0, 0) for i, j in ranked
        ]
        assert [one.text for one in found] == [text[one.begin : one.end] for one in found]
        assert [one.probability for one in found] == pytest.approx([every[each] for each in ranked], rel=1e-4)


def test_a_tagger_is_trained_and_tags_every_word(folders, capsys, tmp_path):
    encoder = TextEncoder.load(folders["facts-tags"])
    assert encoder.config.label_names[0] == "O" and "B-PER" in encoder.config.label_names
    (words,) = encoder.tag("Anna Adler lives in New York .")
    assert [word.word for word in words] == ["Anna", "Adler", "lives", "in", "New", "York", "."]
    with torch.inference_mode():
        row = encoder.model(*encoder._padded(encoder.tokenizer.encode(["Anna Adler"]))).logits[0, 1].softmax(-1)
    (first, _), *_ = encoder.tag(["Anna Adler", "in"])
    assert first.tag == encoder.config.label_names[row.argmax()] and first.probability == pytest.approx(
        float(row.max())
    )
    assert run(["read", "Anna lives", "Ben", "-m", str(folders["facts-tags"])]) == 0
    (tmp_path / "out.txt").write_text(capsys.readouterr().out)
    assert [text.words for text in read_tagged(tmp_path / "out.txt")] == [["Anna", "lives"], ["Ben"]]
    with pytest.raises(UsageError, match="has the head 'tags', not 'answer'"):
        encoder.answer("Who ?", "Anna")


def test_a_reader_is_trained_and_answers_from_the_text(folders, capsys, tmp_path):
    folder, text = str(folders["facts-answers"]), "Anna Adler lives in New York ."
    assert run(["read", "Where does Anna Adler live ?", "--text", text, "-m", folder, "--json", "--top", "2"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2 and all(text[each["begin"] : each["end"]] == each["text"] for each in answers)
    (tmp_path / "text.txt").write_text(text)
    assert run(["read", "Who ?", "-i", str(tmp_path / "text.txt"), "-m", folder]) == 0
    assert capsys.readouterr().out.count("\t") == 1
    assert run(["read", "Who ?", "-m", folder]) == 2
    assert "--text TEXT or -i FILE" in capsys.readouterr().err


def test_both_are_measured_on_files(folders, capsys, tmp_path):
    texts = list(facts("test", 5, 3))
    words, squad = tmp_path / "words.txt", tmp_path / "squad.json"
    words.write_text("\n".join("".join(f"{w} {t}\n" for w, t in zip(*text.tagged, strict=True)) for text in texts))
    asked = [text.question for text in texts]
    squad.write_text(json.dumps({"data": [{"paragraphs": [
        {"context": each.context, "qas": [{"question": each.question, "answers": [
            {"text": each.answers[0], "answer_start": each.begin}]}]} for each in asked]}]}))  # fmt: skip
    assert run(["evaluate", str(words), "-m", str(folders["facts-tags"]), "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["texts"] == 5 and 0 <= scores["accuracy"] <= 1 and "f1" in scores
    assert run(["evaluate", str(squad), "-m", str(folders["facts-answers"]), "--json"]) == 0
    encoder = TextEncoder.load(folders["facts-answers"])
    found = [encoder.answer(each.question, each.context)[0].text for each in asked]
    scores = json.loads(capsys.readouterr().out)
    assert scores["exact"] == answer_scores(found, [each.answers for each in asked])["exact"]


def test_a_tag_that_training_never_saw_is_refused(tmp_path):
    (tmp_path / "train.txt").write_text("Anna B-PER\nlives O\n" * 3)
    (tmp_path / "valid.txt").write_text("Oslo B-LOC\n")
    paths = [f"data.{part}={tmp_path / part}.txt" for part in ("train", "valid")]
    with pytest.raises(DataError, match=r"'B-LOC', which never occurs in data\.train"):
        train(load_recipe("facts-tags", [*FEW, *paths, "data.test=", "tokenizer.size=40"]), tmp_path / "run")
