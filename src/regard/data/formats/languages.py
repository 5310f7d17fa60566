"""Compare language codes in any spelling (`en`, `EN`, `en-US`, `en_us`), and name them in English."""

from __future__ import annotations

from collections.abc import Iterable

NAMES = {  # by ISO 639-1 code
    "aa": "Afar", "ab": "Abkhazian", "af": "Afrikaans", "ak": "Akan", "am": "Amharic", "an": "Aragonese",
    "ar": "Arabic", "as": "Assamese", "ay": "Aymara", "az": "Azerbaijani", "ba": "Bashkir", "be": "Belarusian",
    "bg": "Bulgarian", "bi": "Bislama", "bm": "Bambara", "bn": "Bengali", "bo": "Tibetan", "br": "Breton",
    "bs": "Bosnian", "ca": "Catalan", "ce": "Chechen", "co": "Corsican", "cs": "Czech", "cv": "Chuvash",
    "cy": "Welsh", "da": "Danish", "de": "German", "dv": "Divehi", "dz": "Dzongkha", "ee": "Ewe", "el": "Greek",
    "en": "English", "eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian",
    "ff": "Fulah", "fi": "Finnish", "fj": "Fijian", "fo": "Faroese", "fr": "French", "fy": "Western Frisian",
    "ga": "Irish", "gd": "Scottish Gaelic", "gl": "Galician", "gn": "Guarani", "gu": "Gujarati", "gv": "Manx",
    "ha": "Hausa", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "ht": "Haitian Creole", "hu": "Hungarian",
    "hy": "Armenian", "ia": "Interlingua", "id": "Indonesian", "ig": "Igbo", "io": "Ido", "is": "Icelandic",
    "it": "Italian", "iu": "Inuktitut", "ja": "Japanese", "jv": "Javanese", "ka": "Georgian", "kg": "Kongo",
    "ki": "Kikuyu", "kk": "Kazakh", "kl": "Greenlandic", "km": "Khmer", "kn": "Kannada", "ko": "Korean",
    "ks": "Kashmiri", "ku": "Kurdish", "kw": "Cornish", "ky": "Kyrgyz", "la": "Latin", "lb": "Luxembourgish",
    "lg": "Ganda", "li": "Limburgish", "ln": "Lingala", "lo": "Lao", "lt": "Lithuanian", "lv": "Latvian",
    "mg": "Malagasy", "mh": "Marshallese", "mi": "Maori", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian",
    "mr": "Marathi", "ms": "Malay", "mt": "Maltese", "my": "Burmese", "nb": "Norwegian Bokmål", "ne": "Nepali",
    "nl": "Dutch", "nn": "Norwegian Nynorsk", "no": "Norwegian", "ny": "Chichewa", "oc": "Occitan", "om": "Oromo",
    "or": "Odia", "os": "Ossetian", "pa": "Punjabi", "pl": "Polish", "ps": "Pashto", "pt": "Portuguese",
    "qu": "Quechua", "rm": "Romansh", "rn": "Rundi", "ro": "Romanian", "ru": "Russian", "rw": "Kinyarwanda",
    "sa": "Sanskrit", "sc": "Sardinian", "sd": "Sindhi", "se": "Northern Sami", "sg": "Sango", "si": "Sinhala",
    "sk": "Slovak", "sl": "Slovenian", "sm": "Samoan", "sn": "Shona", "so": "Somali", "sq": "Albanian",
    "sr": "Serbian", "ss": "Swati", "st": "Sotho", "su": "Sundanese", "sv": "Swedish", "sw": "Swahili", "ta": "Tamil",
    "te": "Telugu", "tg": "Tajik", "th": "Thai", "ti": "Tigrinya", "tk": "Turkmen", "tl": "Tagalog", "tn": "Tswana",
    "to": "Tongan", "tr": "Turkish", "ts": "Tsonga", "tt": "Tatar", "tw": "Twi", "ty": "Tahitian", "ug": "Uyghur",
    "uk": "Ukrainian", "ur": "Urdu", "uz": "Uzbek", "ve": "Venda", "vi": "Vietnamese", "vo": "Volapük",
    "wa": "Walloon", "wo": "Wolof", "xh": "Xhosa", "yi": "Yiddish", "yo": "Yoruba", "zh": "Chinese", "zu": "Zulu",
}  # fmt: skip
NAMES_OF_MORE = {  # by ISO 639-3 code; detectable languages without an ISO 639-1 code
    "ace": "Acehnese", "bcl": "Central Bikol", "crh": "Crimean Tatar", "ext": "Extremaduran",
    "gcf": "Guadeloupean Creole", "gcr": "Guianese Creole", "gom": "Konkani", "guw": "Gun", "kab": "Kabyle",
    "lij": "Ligurian", "ltg": "Latgalian", "nso": "Northern Sotho", "pcm": "Nigerian Pidgin", "vec": "Venetian",
}  # fmt: skip
SCRIPTS = {"hans": "Simplified", "hant": "Traditional", "cyrl": "Cyrillic", "latn": "Latin"}


PRIVATE = "x"  # what follows this subtag of a code is private use (BCP 47): here, the style of a target language


def styled(code: str, style: str) -> str:
    """The code of a language in a style: es-x-formal; the language itself without a style."""
    return f"{code}-{PRIVATE}-{style.lower()}" if style else code


def style_of(code: str) -> str:
    """The style in a code; empty if it names none."""
    return code.partition(f"-{PRIVATE}-")[2]


def _subtags(code: str) -> list[str]:
    return code.replace("_", "-").lower().split("-")


def same_language(one: str, other: str) -> bool:
    """Whether two codes agree as far as both are specific: en = en-US, but pt-BR is not pt-PT."""
    return all(a == b for a, b in zip(_subtags(one), _subtags(other), strict=False))


def find_language(codes: Iterable[str], wanted: str) -> str | None:
    """The code of the wanted language; an equal code is preferred to a more or less specific one."""
    alike = [code for code in codes if same_language(code, wanted)]
    return next((code for code in alike if _subtags(code) == _subtags(wanted)), alike[0] if alike else None)


def code_of(name: str) -> str:
    """The code of a language by its English name; empty if there is none of this name."""
    codes = {known.lower(): code for code, known in (NAMES | NAMES_OF_MORE).items()}
    return codes.get(name.lower(), "")


def language_name(code: str) -> str:
    """The English name of a language: "Portuguese" for `pt`, "Portuguese (BR)" for `pt-br`, "Portuguese (formal)" for
    `pt-x-formal`; the code if unknown."""
    language, *details = _subtags(code.removesuffix(styled("", style := style_of(code))))
    name = NAMES.get(language) or NAMES_OF_MORE.get(language)
    if name is None:
        return code
    shown = ", ".join([*(SCRIPTS.get(detail, detail.upper()) for detail in details), *([style] if style else [])])
    return f"{name} ({shown})" if shown else name
