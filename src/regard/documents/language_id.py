"""Language identification: py3langid's naive Bayes over byte n-grams, plus common words for short texts."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from threading import Lock
from typing import Any, NamedTuple

from regard.data.formats.languages import find_language

MAX_CHARACTERS = 10_000  # of a text are read
SHORT_TEXT = 8  # words up to which common words count; n-grams suffice for longer texts
WORD_ODDS = 100.0  # factor for a language per common word of it
WIDE_ODDS = 8.0  # prior factor of widely written languages
SOURCE_ODDS = 2.0  # prior factor of a language that can be translated over the target language
# An unexpected language is chosen if it is CLEAR_ODDS times likelier than the best expected one. It must also reach
# PROBABLE_ABOVE per cent, unless the expected ones are below IMPOSSIBLE_BELOW per cent, as in another script.
CLEAR_ODDS, PROBABLE_ABOVE, IMPOSSIBLE_BELOW = 5.0, 25.0, 0.1
MIN_CONFIDENCE, MAX_LANGUAGES = 1.0, 10  # least confidence in per cent, and most languages, of an answer
FALLBACK = "en"
WORDLESS = "zxx"  # the label of text without linguistic content
WORD = re.compile(r"[^\s\d.,;:!?¡¿…\"'’()«»„“”]+")
WIDELY_WRITTEN = (
    "ar bg bn cs da de el en es fa fi fr he hi hr hu id it ja ko lt ms nb nl no pl pt ro ru sk sl sr sv ta th tr uk"
    " ur vi zh"
)
# n-grams of one or two words carry almost no information
COMMON_WORDS = {
    "af": "hallo dankie asseblief ja nee en die is nie het ek jy ons hulle wat hoe waar baie goed van met",
    "ar": "مرحبا مرحباً شكرا شكراً نعم لا السلام عليكم صباح الخير من في على هو هي أنا أنت نحن ما كيف أين هذا بيت ماء خبز",
    "bg": "здравей здравейте да не благодаря моля добър ден и е това аз ти ние какво как къде съм къща вода хляб",
    "ca": "gràcies bon dia si us plau sí i és el la els les un una jo tu amb què com on molt bé però això",
    "cs": "ahoj ano ne dobrý den děkuji děkuju prosím je to a v na se že co jak kde dům voda chléb jsem jsi jsou mám"
    " jmenuji rád s pro ale velmi dobře kniha pes kočka svět",
    "da": "hej ja nej tak godmorgen og er det jeg du ikke en at hvad hvor hus vand brød hedder vi de har med af på til"
    " meget godt bog hund kat verden farvel",
    "de": "hallo ja nein danke bitte guten gute morgen tag abend nacht und ist das der die den dem ein eine einen ich"
    " du er sie es wir ihr nicht was wie wo wer haus bin bist sind habe hat heiße mein meine mit für auf von zu sehr"
    " gut aber auch tschüss welt wasser brot buch hund katze liebe",
    "en": "hello hi hey yes no ok okay thanks thank you please sorry good morning evening night goodbye bye welcome the"
    " a an and or but is are am was were be it its this that these those i me my we us our he him his she her they"
    " them their not what how where when why who which world house water bread to of in on at for with from by do"
    " does did have has had can will would there here very much many name one two three day man woman child book"
    " dog cat car city street friend food time love like want go see eat read die hat war new old big small red"
    " blue green",
    "eo": "saluton jes ne dankon bonvolu kaj estas la mi vi ni ili kio kiel kie tre bona mondo domo akvo pano",
    "es": "hola sí no gracias favor buenos buenas días tardes noches adiós perdón y o es son está están el la los las"
    " un una unos yo tú él ella nosotros ellos me te se mi tu su qué que cómo como dónde cuándo quién por para con"
    " de del en muy bien mal pero también llamo soy eres tengo tiene hay mundo casa agua pan amigo amiga gato perro"
    " libro hombre mujer niño niña ciudad quiero estoy",
    "fa": "سلام ممنون متشکرم بله نه لطفا صبح بخیر و است این من تو ما شما چه چطور کجا خانه آب نان کتاب را",
    "fi": "hei moi terve kyllä ei kiitos hyvää huomenta päivää ja on se minä sinä hän me te mitä missä kuka talo vesi"
    " leipä nimeni olen olet minun sinun että mutta myös hyvin kirja koira kissa maailma",
    "fr": "bonjour bonsoir salut oui non merci plaît pardon au revoir et ou est sont le la les l un une des je j tu il"
    " elle nous vous ils elles me te se mon ma mes ton que qui quoi comment où quand pourquoi monde maison eau pain"
    " ne pas dans sur avec pour de du très bien mais aussi suis es ai as appelle chat chien livre homme femme enfant"
    " ville aime veux c'est",
    "gl": "ola grazas bos días si non e é o a os as un unha eu ti nós que como onde moi ben pero tamén",
    "hi": "नमस्ते हाँ नहीं धन्यवाद कृपया है हैं और मैं आप हम क्या कैसे कहाँ मेरा नाम घर पानी रोटी किताब का की के में",
    "hr": "bok zdravo da ne hvala molim dobar dan i je to u na se što kako gdje sam si smo imam zovem moj vrlo dobro"
    " kuća voda kruh knjiga pas svijet",
    "hu": "szia igen nem köszönöm kérem jó reggelt napot estét és van a az egy mi hogy hol ház víz kenyér én te ő ez"
    " vagyok vagy nevem de is nagyon könyv kutya macska világ szeretlek",
    "id": "halo ya tidak terima kasih selamat pagi siang malam dan adalah ini itu yang di ke dari saya kamu kami kita"
    " mereka apa bagaimana mana nama rumah air roti buku kucing anjing dunia sangat baik",
    "it": "ciao sì no grazie prego buongiorno buonasera arrivederci scusi per favore e è sono il lo la i gli le un uno"
    " una io tu lui lei noi voi loro mi ti si che chi come dove quando perché mondo casa acqua pane di del della in"
    " con molto bene ma anche mio mia chiamo ho hai ha gatto cane libro uomo donna amico amo",
    "la": "salve ave et est sunt in non ego tu nos quid ubi cum ad de sed amo aqua terra homo",
    "nl": "hallo hoi ja nee bedankt dank dankjewel alstublieft goedemorgen goedenavond en is het de een ik jij je hij"
    " zij wij we niet wat hoe waar wie huis ben bent zijn heb heeft heet mijn met voor op van te zeer goed maar ook"
    " doei wereld water brood boek hond kat hou",
    "no": "hei ja nei takk god morgen og er det jeg du ikke en et hva hvor hus vann brød heter vi de har med av på til"
    " veldig bra bok hund katt verden",
    "pl": "cześć tak nie dziękuję proszę dzień dobry i jest to w na się że co jak gdzie świat dom woda chleb jestem"
    " mam nazywam mój moja z dla ale bardzo dobrze książka pies kot kto do widzenia kocham",
    "pt": "olá oi sim não obrigado obrigada favor bom boa dia tarde noite adeus e ou é são está o a os as um uma eu"
    " você tu ele ela nós eles me meu minha que como onde quando quem por para com de do da em no na muito bem mas"
    " também mundo água pão casa gato cachorro livro homem mulher menino cidade chamo sou tenho quero amigo",
    "ro": "salut bună da nu mulțumesc ziua și este sunt un o eu tu el ea noi ce cum unde lume casă apă pâine mă numesc"
    " cu pentru în pe foarte bine dar carte câine pisică",
    "ru": "привет здравствуйте да нет спасибо пожалуйста и это я ты он она мы вы они не что как где кто мир дом вода"
    " хлеб меня зовут у в на с очень хорошо но книга кошка собака доброе утро добрый день люблю",
    "sk": "ahoj áno nie dobrý deň ďakujem prosím je to a v na sa že čo ako kde som si sú mám volám dom voda chlieb",
    "sl": "živjo ja ne hvala prosim dober dan in je to v na se da kaj kako kje sem si smo imam hiša voda kruh",
    "sv": "hej ja nej tack god morgon och är det jag du inte en ett vad hur var hus vatten bröd heter vi de har med av"
    " på till mycket bra bok hund katt världen hejdå",
    "sw": "habari jambo ndiyo hapana asante tafadhali na ni wewe mimi sisi nini wapi nyumba maji mkate jina langu sana",
    "tl": "kumusta oo hindi salamat po magandang umaga ang ng mga sa ay ako ikaw kami ano saan bahay tubig tinapay",
    "tr": "merhaba selam evet hayır teşekkürler teşekkür ederim günaydın ve bu bir ben sen o biz siz değil ne nasıl"
    " nerede kim dünya ev su ekmek adım için ile çok iyi ama kitap kedi köpek var yok seni seviyorum",
    "uk": "привіт так ні дякую будь ласка і це я ти він вона ми ви не що як де хто світ дім вода хліб мене звати дуже"
    " добре книга добрий день",
    "vi": "xin chào vâng không cảm ơn và là của tôi bạn chúng ta anh em gì nào đâu tên nhà nước bánh mì sách rất tốt"
    " có",
}
# Varieties that are reported as a more general language
GENERAL_LANGUAGE = {
    "yue": "zh", "wuu": "zh", "ary": "ar", "arz": "ar", "fuv": "ff", "grc": "el", "gug": "gn", "hbo": "he", "kik": "ki",
    "no": "nb", "sdh": "ku", "uzs": "uz",
}  # fmt: skip


class Detected(NamedTuple):
    """A language and its confidence from 0 to 100."""

    language: str
    confidence: float


def detect(text: str, codes: Sequence[str] = ()) -> list[Detected]:
    """The languages that a text may be in, best first; never empty.

    If `codes` has a code for a language, such as pt-BR, that code is used. Confidences sum to 100 over all languages;
    the answer has at most ten, without those below 1. A text without letters is English (or the first code) with 0.
    """
    found = [Detected(*each) for each in sorted(_probabilities(text, codes).items(), key=lambda each: -each[1])]
    if not found:
        return [Detected(FALLBACK if not codes or FALLBACK in codes else codes[0], 0.0)]
    return found[:1] + [each for each in found[1:MAX_LANGUAGES] if each.confidence >= MIN_CONFIDENCE]


def choose_language(text: str, sources: Sequence[str], target: str = "") -> Detected:
    """The language of a text that is to be translated from one of `sources` into `target`.

    It is one of these unless another language is clearly likelier: a single word or name is weak evidence.
    """
    expected = dict.fromkeys([*sources, *([target] if target else [])])
    probabilities = _probabilities(text, list(expected))
    if not probabilities:
        return Detected(sources[0], 0.0)
    odds = {code: probabilities.get(code, 0.0) * (SOURCE_ODDS if code in sources else 1.0) for code in expected}
    best, other = max(odds, key=odds.__getitem__), max(probabilities, key=probabilities.__getitem__)
    surprising = other not in odds and probabilities[other] > CLEAR_ODDS * odds[best]
    clear = surprising and (probabilities[other] >= PROBABLE_ABOVE or odds[best] < IMPOSSIBLE_BELOW)
    decided = other if clear else best
    return Detected(decided, probabilities.get(decided, 0.0))


def _probabilities(text: str, codes: Sequence[str]) -> Mapping[str, float]:
    """The probability of each language in per cent; empty if the text has no letters."""
    text = text[:MAX_CHARACTERS]
    if not any(map(str.isalpha, text)):
        return {}
    words, wide = WORD.findall(text.lower()), WIDELY_WRITTEN.split()
    odds: dict[str, float] = defaultdict(float)
    for label, probability in _model().rank(text):
        if label == WORDLESS:
            continue
        common = sum(word in _common(label) for word in words) if len(words) <= SHORT_TEXT else 0
        prior = WIDE_ODDS if label in wide else 1.0
        odds[_code(label, tuple(codes))] += prior * probability * WORD_ODDS**common
    total = math.fsum(odds.values())
    return {code: 100 * value / total for code, value in odds.items()}


@lru_cache(maxsize=4096)
def _code(label: str, codes: tuple[str, ...]) -> str:
    """The code for a label: the matching one of `codes`, else the general language."""
    general = GENERAL_LANGUAGE.get(label, label)
    return next(filter(None, (find_language(codes, name) for name in (label, general))), general)


@cache
def _common(language: str) -> frozenset[str]:
    return frozenset(COMMON_WORDS.get(language, "").split())


_loading = Lock()


def _model() -> Any:
    with _loading:  # loading takes half a second, once; using the model needs no lock
        return _loaded()


@cache
def _loaded() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
