"""Every result reports the unknown words of a text, or a warning does if the result cannot."""

import json

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers

import regard
from regard.checkpoints import save_model
from regard.data.tokenizers.unknown_words import UnknownTextWarning, UnknownWord
from regard.families.language.encoder import TextEncoder
from regard.families.language.language_models import LanguageModel
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.language.word_vectors import WordVectors
from regard.families.translation.translator import Translator
from regard.look.forced_pass import AlignmentSettings
from regard.search.search import Hypothesis

FOREIGN = "Привет мир"
WORDS = [UnknownWord("Привет", 0, 6), UnknownWord("мир", 7, 10)]


@pytest.fixture(scope="module")
def translator(translator_folder) -> Translator:
    return Translator.load(translator_folder)


def test_translations_name_unknown_words_of_every_sentence(translator):
    text = f"we are eating bread. {FOREIGN}, she reads Ω."
    words = translator.translate(text, to="es", max_length=5).unknown
    assert {"Привет", "мир", "Ω"} <= {each.word for each in words}
    assert all(text[each.start : each.end] == each.word for each in words)
    assert translator.translate("we are eating bread", to="es", max_length=5).unknown == []


def test_a_word_that_was_copied_is_unknown_too(translator, monkeypatch):
    unknown = translator.tokenizer.target.unknown
    said = [Hypothesis([unknown], -1.0, -2.0, finished=True)]
    monkeypatch.setattr(translator, "decode", lambda sentences, *_: [said for _ in sentences])
    monkeypatch.setattr(translator, "alignment", AlignmentSettings(layer="decoder.0.cross", head=0, shift=0))
    answer = translator.translate("we are eating bread", to="es")
    (word,) = answer.unknown
    assert word.word == answer.text == answer.source[word.start : word.end] != ""


def test_vectors_and_guesses_warn_and_labels_say_it(make_encoder):
    encoder = TextEncoder.load(make_encoder("masked"))
    with pytest.warns(UnknownTextWarning, match="the text .*100% of it .*Привет, мир"):
        encoder.embed(FOREIGN)
    with pytest.warns(UnknownTextWarning):
        encoder.fill(f"{FOREIGN} [MASK]")
    encoder.embed(["we are eating bread", "the house мир"])
    encoder.fill("we are [MASK]")
    assert encoder.unknown_words("[MASK] мир") == [UnknownWord("мир", 7, 10)]
    labelling = TextEncoder.load(make_encoder("classify", labels=2))
    known, foreign, pair = *labelling.classify(["we are", FOREIGN]), *labelling.classify("we", "мир")
    assert (known.unknown, foreign.unknown) == ([], WORDS)
    assert [each.word for each in pair.unknown] == ["мир"]


def test_word_vectors_warn():
    vectors = WordVectors(["we", "are"], torch.eye(2), lowercase=True)
    with pytest.warns(UnknownTextWarning):
        vectors.embed("WE Привет")
    vectors.embed("WE are")


@pytest.fixture(scope="module")
def writer(tmp_path_factory) -> LanguageModel:
    """A language model with a vocabulary of a few words."""

    def files(folder) -> None:
        words = ["<unk>", "</s>", "we", "are", "eating"]
        library = tokenizers.Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        library.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"unk_token": "<unk>", "eos_token": "</s>"}))

    folder = tmp_path_factory.mktemp("writer") / "lstm"
    torch.manual_seed(1)
    save_model(folder, "lstm", Lstm(LstmConfig(vocab=5, embedding=4, width=4)), files)
    found = regard.load(folder)
    assert isinstance(found, LanguageModel)
    return found


def test_completions_and_perplexities_say_it(writer):
    assert writer.generate(FOREIGN, max_tokens=1, temperature=0.0).unknown == WORDS
    assert writer.generate("we are", max_tokens=1, temperature=0.0).unknown == []
    assert writer.perplexity("we are eating").unknown == 0
    assert writer.perplexity(f"we are {FOREIGN}").unknown == 2
