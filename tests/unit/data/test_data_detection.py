import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.detection import COMMON_WORDS, COUNTED_AS, Detected, detect
from regard.data.languages import NAMES, language_name

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
    assert detect(SENTENCES[language], among=list(SENTENCES))[0] == pytest.approx(best)


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
    assert detect(text, among=["en", "es", "fr", "it", "de", "zh", "ru"])[0].language == language


@pytest.mark.parametrize("text", ["", "  \n", "12 + 3 = 15", "!?", "😀"])
def test_nothing_to_tell_by_is_english_without_confidence(text: str):
    assert detect(text) == [Detected("en", 0.0)]
    assert detect(text, among=["es", "en"]) == [Detected("en", 0.0)]
    assert detect(text, among=["es", "pt"]) == [Detected("es", 0.0)]


@given(st.text(), st.lists(st.sampled_from([*NAMES, "xx", "pt-BR"]), unique=True) | st.none())
def test_confidences_are_shares_best_first(text: str, among: list[str] | None):
    found = detect(text, among)
    confidences = [each.confidence for each in found]
    assert found
    assert all(0 <= confidence <= 100 for confidence in confidences)
    assert confidences == sorted(confidences, reverse=True)
    assert sum(confidences) <= 100 + 1e-6
    assert {each.language for each in found} <= set(among or NAMES)


def test_the_answer_is_in_the_codes_asked_for():
    assert detect(SENTENCES["pt"], ["en", "pt-BR"])[0].language == "pt-BR"
    assert detect("Jeg spiser brød i det lille huset ved elven.", ["en", "nb"])[0].language == "nb"
    assert detect(SENTENCES["zh"], ["zh-Hans"])[0].language == "zh-Hans"


def test_a_text_in_none_of_the_languages_has_little_confidence():
    assert detect(SENTENCES["ru"], among=["en", "es"])[0].confidence < 5


def test_threads_may_ask_at_once():
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(detect, [*SENTENCES.values()] * 8))
    assert answers == [detect(text) for text in SENTENCES.values()] * 8


def test_importing_is_cheap_and_quiet():
    code = "import sys, regard.data.detection as d; assert 'py3langid' not in sys.modules; d.detect('hello')"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


def test_tables_name_real_languages():
    assert set(COMMON_WORDS) <= set(NAMES)
    assert set(COUNTED_AS.values()) <= set(NAMES)
    assert all(len(code) == 2 for code in NAMES)
    assert len(set(NAMES.values())) == len(NAMES)


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
