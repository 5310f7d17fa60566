import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.formats.languages import NAMES, NAMES_OF_MORE, language_name
from regard.documents.language_id import (
    COMMON_WORDS,
    GENERAL_LANGUAGE,
    WIDELY_WRITTEN,
    WORDLESS,
    Detected,
    choose_language,
    detect,
    foreign_language,
)

SENTENCES = {
    "en": "We are eating bread in the small house near the river.",
    "es": "Estamos comiendo pan en la casa pequeña cerca del río.",
    "pt": "Estamos comendo pão na casa pequena perto do rio.",
    "de": "Wir essen Brot in dem kleinen Haus am Fluss.",
    "fr": "Nous mangeons du pain dans la petite maison près de la rivière.",
    "ru": "Мы едим хлеб в маленьком доме у реки.",
    "zh": "我们在河边的小房子里吃面包。",
    "ja": "私たちは川のそばの小さな家でパンを食べています。",
    "ar": "نحن نأكل الخبز في البيت الصغير بجانب النهر.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_sentences(language: str):
    best = detect(SENTENCES[language])[0]
    assert best.language == language
    assert best.confidence > 50


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Hello!", "en"),
        ("hola", "es"),
        ("Bonjour", "fr"),
        ("ciao", "it"),
        ("Danke!", "de"),
        ("你好", "zh"),
        ("привет", "ru"),
    ],
)
def test_a_word_is_enough_if_it_is_common(text: str, language: str):
    assert detect(text)[0].language == language


@pytest.mark.parametrize("text", ["", "  \n", "12 + 3 = 15", "!?", "😀"])
def test_nothing_to_tell_by_is_english_without_confidence(text: str):
    assert detect(text) == [Detected("en", 0.0)]
    assert detect(text, ["es", "en"]) == [Detected("en", 0.0)]
    assert detect(text, ["es", "pt"]) == [Detected("es", 0.0)]
    assert choose_language(text, ["en"], "es") == Detected("en", 0.0)


@given(st.text(), st.lists(st.sampled_from([*NAMES, "xx", "pt-BR"]), unique=True))
def test_confidences_are_shares_best_first(text: str, codes: list[str]):
    found = detect(text, codes)
    confidences = [each.confidence for each in found]
    assert found
    assert all(0 <= confidence <= 100 for confidence in confidences)
    assert confidences == sorted(confidences, reverse=True)
    assert sum(confidences) <= 100 + 1e-6
    assert len({each.language for each in found}) == len(found)


def test_the_answer_is_in_the_codes_asked_for():
    assert detect(SENTENCES["pt"], ["en", "pt-BR"])[0].language == "pt-BR"
    assert detect("Hva heter du? Jeg heter Anna.", ["en", "nb"])[0].language == "nb"
    assert detect(SENTENCES["zh"], ["zh-Hans"])[0].language == "zh-Hans"


def test_similar_languages_are_all_listed():
    assert {each.language for each in detect("la casa")} >= {"es", "it"}


# Choosing the language of a text to translate


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_is_taken_for_its_language_whatever_is_expected(language: str):
    decided = choose_language(SENTENCES[language], ["en"], "es")
    assert decided.language == language
    assert decided.confidence == pytest.approx(detect(SENTENCES[language])[0].confidence, abs=1)


@pytest.mark.parametrize("text", ["Hola", "HOLA", "hola amigo", "Buenos días", "¿Qué?", "Me llamo Anna", "el gato"])
def test_a_few_spanish_words_are_not_english(text: str):
    assert choose_language(text, ["en"], "es").language == "es"
    assert choose_language(text, ["en", "es"], "fr").language == "es"


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "cat",
        "apple",
        "computer",
        "Anna",
        "Madrid",
        "Tokyo",
        "Zoom",
        "pizza",
        "Barack Obama",
        "JavaScript",
        "no",
        "I",
    ],
)
def test_words_and_names_that_prove_nothing_are_in_the_language_that_is_read(text: str):
    assert choose_language(text, ["en"], "es").language == "en"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Merci", "fr"),
        ("Guten Tag", "de"),
        ("你好", "zh"),
        ("こんにちは", "ja"),
        ("안녕하세요", "ko"),
        ("дом", "ru"),
        ("שלום", "he"),
        ("नमस्ते", "hi"),
        ("Xin chào", "vi"),
        ("kiitos", "fi"),
    ],
)
def test_a_clear_other_language_is_never_called_english(text: str, language: str):
    assert choose_language(text, ["en"], "es").language == language


@pytest.mark.parametrize("language", sorted(SENTENCES.keys() - {"en"}))
def test_a_sentence_is_surely_foreign(language: str):
    assert foreign_language(SENTENCES[language], ["en"]) == language
    assert foreign_language(SENTENCES[language], ["en", language]) == ""


@pytest.mark.parametrize("text", ["Tom's flaky.", "Merci", "Tom a un chien."])
def test_a_short_text_proves_nothing(text: str):
    assert choose_language(text, ["en"]).language != "en"  # a guess, and sometimes a wrong one
    assert foreign_language(text, ["en"]) == ""


@pytest.mark.parametrize(("text", "language"), [("Guten Tag", "de"), ("дом", "ru"), ("你好", "zh"), ("שלום", "he")])
def test_common_words_and_other_scripts_prove_enough(text: str, language: str):
    assert foreign_language(text, ["en", "xx"]) == language


@given(st.text(), st.sampled_from(["", "es", "pt-BR"]))
def test_something_is_always_decided(text: str, target: str):
    language, confidence = choose_language(text, ["en", "de"], target)
    assert language and 0 <= confidence <= 100


def test_threads_may_ask_at_once():
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(detect, [*SENTENCES.values()] * 8))
    assert answers == [detect(text) for text in SENTENCES.values()] * 8


def test_importing_is_cheap_and_quiet():
    code = "import sys, regard.documents.language_id as d; assert 'py3langid' not in sys.modules; d.detect('hello')"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_tables_name_real_languages():
    assert set(COMMON_WORDS) | set(GENERAL_LANGUAGE.values()) | set(WIDELY_WRITTEN.split()) <= set(NAMES)
    assert all(len(code) == 2 for code in NAMES) and all(len(code) == 3 for code in NAMES_OF_MORE)
    names = [*NAMES.values(), *NAMES_OF_MORE.values()]
    assert len(set(names)) == len(names)


def test_every_language_the_detector_knows_has_a_name():
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    labels = set(LanguageIdentifier.from_model_file(MODEL_FILE).labels) - {WORDLESS}
    assert {GENERAL_LANGUAGE.get(label, label) for label in labels} <= {*NAMES, *NAMES_OF_MORE}


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("en", "English"),
        ("ES", "Spanish"),
        ("pt-br", "Portuguese (BR)"),
        ("zh_Hans", "Chinese (Simplified)"),
        ("tlh", "tlh"),
    ],
)
def test_names(code: str, name: str):
    assert language_name(code) == name
