"""The phrasebook: hand-checked translations, links, agreement, and the sampling and separation of sentences."""

import os
import re
from collections import Counter
from hashlib import sha256
from itertools import pairwise

import pytest

from regard.data.synthetic.phrasebook import part_of, phrases
from regard.data.synthetic.phrasebook.grammar import (
    Clause,
    Named,
    NounPhrase,
    Place,
    Pronoun,
    Time,
    english_article,
)
from regard.data.synthetic.phrasebook.interpreter import Interpreter
from regard.data.synthetic.phrasebook.morphology import (
    ENDINGS,
    LANGUAGES,
    Name,
    Noun,
    conjugate,
    lexicon,
    plural,
)
from regard.errors import DataError, UsageError

COUNT = 13_000 if "REGARD_FAULT_COUNT" in os.environ else 2_000  # sentences drawn for each length and language
BOOK = lexicon()
NOUNS = {noun.english[0]: noun for kind in BOOK.nouns.values() for noun in kind}
VERBS = {verb.english["base"]: verb for verbs in (*BOOK.verbs.values(), BOOK.reports) for verb in verbs}
ADJECTIVES = {adjective.english: adjective for group in BOOK.adjectives.values() for adjective in group}
NAMES = {name.english: name for name in (*BOOK.people, *BOOK.places[1]) if isinstance(name, Name)}
DAYS = {day.english[0]: day for day in BOOK.every}
MONTHS = {month["en"]: month for month in BOOK.months}

ME, YOU, HE, SHE = Pronoun("I", 0), Pronoun("you", 1), Pronoun("he"), Pronoun("she", feminine=True)
WE, THEY = Pronoun("we", 3), Pronoun("they", 4)


def named(*names):
    return Named(tuple(NAMES[name] for name in names))


def a(words, plural=False, owner=None, relative=None):
    """A noun phrase from English words: determiner, adjective, noun; only the noun is required."""
    *before, noun = words.split()
    adjective = ADJECTIVES.get(before[-1]) if before else None
    determiner = before[0] if len(before) > (adjective is not None) else ""
    return NounPhrase(NOUNS[noun], plural, determiner, owner, adjective, relative)


def does(subject, verb, tense, target=None, **more):
    return Clause(subject, VERBS[verb], tense, object=target, **more)


def being(subject, tense, adjective=None, **more):
    return Clause(subject, None, tense, adjective=ADJECTIVES.get(adjective), **more)


def said(language, *clauses):
    """The pair for some clauses; each is a clause, (connective, clause) or (connective, clause, comma)."""
    speech = Interpreter(BOOK.tongues[language])
    for clause in clauses:
        speech.add(*(("", clause) if isinstance(clause, Clause) else clause))
    return speech.pair()


BREAD = does(WE, "eat", "progressive", a("bread"))
RIO = does(named("Lucas"), "visit", "soon", named("Rio"), time=Time("in", MONTHS["December"]))

GOLDEN = [
    ((BREAD,), "we are eating bread", "estamos comiendo pan", "estamos comendo pão"),
    (
        (RIO,),
        "Lucas is visiting Rio in December",
        "Lucas va a visitar Río en diciembre",
        "Lucas irá visitar o Rio em Dezembro",
    ),
    ((does(ME, "see", "present", Pronoun("it")),), "I see it", "lo veo", "eu o vejo"),
    ((being(ME, "past", "worried"),), "I was worried", "yo estaba preocupado", "eu estava preocupado"),
    (
        (being(named("Clara"), "present", "sick", question="why"),),
        "why is Clara sick?",
        "¿por qué está enferma Clara?",
        "por que Clara está doente?",
    ),
    (
        (does(WE, "look for", "progressive", Pronoun("them"), negated=True),),
        "we are not looking for them",
        "no los estamos buscando",
        "nós não os estamos procurando",
    ),
    (
        (does(ME, "help", "past", named("Marina"), time=Time("last", DAYS["week"])),),
        "I helped Marina last week",
        "ayudé a Marina la semana pasada",
        "ajudei Marina na semana passada",
    ),
    (
        (does(SHE, "visit", "future", a("the doctor"), time=Time("next", DAYS["Monday"])),),
        "she will visit the doctor next Monday",
        "ella visitará al médico el próximo lunes",
        "ela visitará o médico na próxima segunda-feira",
    ),
    (
        (does(named("Ana"), "buy", "past", a("a red bicycle")),),
        "Ana bought a red bicycle",
        "Ana compró una bicicleta roja",
        "Ana comprou uma bicicleta vermelha",
    ),
    (
        (does(YOU, "write", "past", a("a good book")),),
        "you wrote a good book",
        "escribiste un buen libro",
        "você escreveu um bom livro",
    ),
    (
        (does(THEY, "eat", "present", a("a orange"), time=Time("every", DAYS["day"])),),
        "they eat an orange every day",
        "ellos comen una naranja cada día",
        "eles comem uma laranja todo dia",
    ),
    (
        (does(named("Pedro"), "close", "perfect", a("the window", plural=True)),),
        "Pedro has already closed the windows",
        "Pedro ya ha cerrado las ventanas",
        "Pedro já fechou as janelas",
    ),
    (
        (does(ME, "open", "perfect", a("her box"), negated=True),),
        "I have not opened her box yet",
        "todavía no he abierto su caja",
        "ainda não abri a caixa dela",
    ),
    (
        (does(named("Carlos"), "sell", "past", a("car", owner=a("the lawyer")), recipient=a("my brother")),),
        "Carlos sold the lawyer's car to my brother",
        "Carlos vendió el coche del abogado a mi hermano",
        "Carlos vendeu o carro do advogado para meu irmão",
    ),
    (
        (does(a("sister", owner=named("Lucas")), "work", "present", place=Place("in", a("a big hospital"))),),
        "Lucas's sister works in a big hospital",
        "la hermana de Lucas trabaja en un hospital grande",
        "a irmã de Lucas trabalha em um hospital grande",
    ),
    (
        (does(a("the girl", plural=True), "arrive", "past", place=Place("arriving", a("the station"))),),
        "the girls arrived at the station",
        "las niñas llegaron a la estación",
        "as meninas chegaram à estação",
    ),
    (
        (does(HE, "walk", "present", place=Place("through", a("the park"))),),
        "he walks through the park",
        "él camina por el parque",
        "ele caminha pelo parque",
    ),
    (
        (does(named("Julia", "Sofia"), "travel", "past", place=Place("to", named("Porto"))),),
        "Julia and Sofia travelled to Porto",
        "Julia y Sofía viajaron a Oporto",
        "Júlia e Sofia viajaram para o Porto",
    ),
    (
        (being(a("the soup"), "present", "cold"), ("so", does(ME, "wait", "progressive"), True)),
        "the soup is cold, so I am waiting",
        "la sopa está fría, por eso estoy esperando",
        "a sopa está fria, por isso estou esperando",
    ),
    (
        (being(named("Marina", "Clara"), "past", "tired"),),
        "Marina and Clara were tired",
        "Marina y Clara estaban cansadas",
        "Marina e Clara estavam cansadas",
    ),
    (
        (being(a("this bridge"), "present", "famous", negated=True),),
        "this bridge is not famous",
        "este puente no es famoso",
        "esta ponte não é famosa",
    ),
    (
        (Clause(None, None, "past", object=a("two white horse", plural=True), place=Place("on", a("the beach"))),),
        "there were two white horses on the beach",
        "había dos caballos blancos en la playa",
        "havia dois cavalos brancos na praia",
    ),
    (
        (does(named("Lucas"), "eat", "progressive", question="what"),),
        "what is Lucas eating?",
        "¿qué está comiendo Lucas?",
        "o que Lucas está comendo?",
    ),
    (
        (does(YOU, "buy", "past", a("the ticket", plural=True), question="where"),),
        "where did you buy the tickets?",
        "¿dónde compraste los billetes?",
        "onde você comprou os bilhetes?",
    ),
    (
        (does(named("Ana"), "speak", "present", a("Spanish"), question="whether"),),
        "does Ana speak Spanish?",
        "¿Ana habla español?",
        "Ana fala espanhol?",
    ),
    (
        (does(None, "bring", "past", Pronoun("it"), question="who"),),
        "who brought it?",
        "¿quién lo trajo?",
        "quem o trouxe?",
    ),
    (
        (does(THEY, "live", "past", place=Place("in", named("Havana")), question="why"),),
        "why did they live in Havana?",
        "¿por qué vivieron ellos en La Habana?",
        "por que eles moraram em Havana?",
    ),
    (
        (does(ME, "swim", "future", time=Time("on", MONTHS["May"], day=3)),),
        "I will swim on May 3",
        "nadaré el 3 de mayo",
        "nadarei no dia 3 de Maio",
    ),
    (
        (does(a("our teacher", plural=True), "rest", "soon", time=Time("at", "two")),),
        "our teachers are resting at two",
        "nuestros profesores van a descansar a las dos",
        "nossos professores irão descansar às duas",
    ),
    (
        (
            does(
                a("the nurse", relative=does(None, "live", "present", place=Place("in", named("Rio")))),
                "sing",
                "past",
                a("a song"),
            ),
            ("when", does(named("Bruno"), "sleep", "past")),
        ),
        "the nurse who lives in Rio sang a song when Bruno slept",
        "la enfermera que vive en Río cantó una canción cuando Bruno durmió",
        "a enfermeira que mora no Rio cantou uma canção quando Bruno dormiu",
    ),
    (
        (
            ("if", does(YOU, "lose", "present", a("the key", plural=True, relative=does(ME, "bring", "past")))),
            ("", does(named("Laura"), "help", "present", Pronoun("you")), True),
        ),
        "if you lose the keys that I brought, Laura helps you",
        "si pierdes las llaves que traje, Laura te ayuda",
        "se você perde as chaves que eu trouxe, Laura te ajuda",
    ),
    (
        (
            does(named("Daniel"), "clean", "progressive", a("their old house"), time=Time("word", "now")),
            ("although", being(THEY, "present", place=Place("at", a("the market"))), True),
        ),
        "Daniel is cleaning their old house now, although they are at the market",
        "Daniel está limpiando su casa vieja ahora, aunque ellos están en el mercado",
        "Daniel está limpando a casa velha deles agora, se bem que eles estão no mercado",
    ),
]


@pytest.mark.parametrize(("clauses", "english", "spanish", "portuguese"), GOLDEN, ids=[row[1] for row in GOLDEN])
def test_hand_checked_sentences(clauses, english, spanish, portuguese):
    assert [said(language, *clauses).target for language in LANGUAGES] == [spanish, portuguese]
    assert {said(language, *clauses).source for language in LANGUAGES} == {english}


def word_links(pair, links):
    source, target = pair.source.split(), pair.target.split()
    return {(source[i], target[j]) for i, j in links}


def test_links_of_the_lecture_sentences():
    bread = said("es", BREAD)
    assert bread.links == ((1, 0), (2, 1), (3, 2))
    assert set(bread.possible) - set(bread.links) == {(0, 0)}  # the dropped pronoun and the verb form that implies it
    rio = said("pt", RIO)
    assert rio.links == ((0, 0), (1, 1), (2, 2), (3, 4), (4, 5), (5, 6))
    assert set(rio.possible) - set(rio.links) == {(3, 3)}  # the article of Rio
    assert rio.to == "pt"


def test_links_cross_contract_and_fuse():
    house = does(SHE, "clean", "future", a("old house", owner=a("the doctor")))
    pair = said("es", house)
    assert pair.target == "ella limpiará la casa vieja del médico"
    assert word_links(pair, pair.links) == {
        ("she", "ella"),
        ("will", "limpiará"),
        ("clean", "limpiará"),
        ("house", "casa"),
        ("old", "vieja"),
        ("the", "del"),
        ("doctor's", "médico"),
    }
    assert word_links(pair, set(pair.possible) - set(pair.links)) == {("doctor's", "la"), ("doctor's", "del")}
    asked = said("es", does(named("Ana"), "visit", "past", a("the teacher"), question="when"))
    assert asked.target == "¿cuándo visitó Ana al profesor?"
    assert word_links(asked, set(asked.possible) - set(asked.links)) == {
        ("did", "visitó"),
        ("teacher?", "al"),
    }


def test_the_lecture_sentences_are_held_out():
    assert [part_of(said("es", clause).source) for clause in (BREAD, RIO)] == ["test", "test"]


def test_the_constructions_of_the_lecture_sentences_are_drawn():
    people, cities = ("|".join(name.english for name in names) for names in (BOOK.people, BOOK.places[1]))
    patterns = [
        "(we|you|they) are (eating|cooking) (bread|rice|meat|fish|cheese|soup)",
        f"({people}) is visiting ({cities}) in ({'|'.join(MONTHS)})",
    ]
    for pair in phrases("pt", part="train", count=40_000, seed=5, min_words=4, max_words=6):
        patterns = [pattern for pattern in patterns if not re.fullmatch(pattern, pair.source)]
        if not patterns:
            break
    assert not patterns


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_source_has_one_target(language):
    targets = {}
    for seed, longest in enumerate((4, 6, 12, 20)):
        for pair in phrases(language, part="train", count=COUNT, seed=seed, max_words=longest):
            assert targets.setdefault(pair.source, pair.target) == pair.target
    assert len(targets) > 3 * COUNT


def test_both_languages_share_their_sources():
    spanish, portuguese = (list(phrases(language, part="valid", count=50, seed=3)) for language in LANGUAGES)
    assert [pair.source for pair in spanish] == [pair.source for pair in portuguese]


DRAWN = {  # of the version of 2026-11-18: recipes and measured figures rest on these sentences
    ("es", "train"): "ebe6e16727fe1d92",
    ("es", "test"): "1cf558ebf89969e2",
    ("pt", "train"): "d1b246b4a00b6af0",
    ("pt", "test"): "331371ca53a9aaf3",
}


@pytest.mark.parametrize(("language", "part"), DRAWN)
def test_the_sentences_of_a_seed_stay_the_same(language, part):
    drawn = [
        (pair.source, pair.target, pair.links, pair.possible)
        for longest in (12, 60)
        for pair in phrases(language, part=part, count=300, seed=1, max_words=longest)
    ]
    assert sha256(repr(drawn).encode()).hexdigest()[:16] == DRAWN[language, part]


def test_a_seed_fixes_the_draw():
    first, again, other = (list(phrases("es", part="train", count=100, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_parts_do_not_overlap_and_sources_are_distinct():
    drawn = {
        part: [pair.source for pair in phrases("es", part=part, count=1_500, seed=7, max_words=5)]
        for part in ("train", "valid", "test")
    }
    assert sum(len(set(sources)) for sources in drawn.values()) == len(set().union(*drawn.values())) == 4_500
    assert all(part_of(source) == part for part, sources in drawn.items() for source in sources)


@pytest.mark.parametrize(("least", "most"), [(1, 60), (1, 3), (12, 12), (58, 60)])
def test_lengths_stay_in_their_range(least, most):
    pairs = phrases("pt", part="train", count=60, seed=0, min_words=least, max_words=most)
    assert all(least <= len(pair.source.split()) <= most for pair in pairs)


def test_lengths_are_spread():
    lengths = Counter((len(pair.source.split()) - 1) // 10 for pair in phrases("es", part="test", count=300, seed=0))
    assert sorted(lengths) == [0, 1, 2, 3, 4, 5]
    assert min(lengths.values()) >= 25


def test_there_are_more_than_200_000_sentences():
    """A lower bound from one construction alone: subject, verb in a tense, owner, noun."""
    subjects = len({"I", "you", "he", "she", "we", "they"}) + len(BOOK.people)
    predicates = {
        (verb, tense, noun)
        for frame, verbs in BOOK.verbs.items()
        for verb in verbs
        for tense in verb.tenses[frame]
        for group in verb.objects
        for noun in group
        if isinstance(noun, Noun) and noun.owned and noun.number != "bare"
    }
    owners = len({"my", "your", "his", "her", "our", "their"}) + len(BOOK.people)
    assert subjects * len(predicates) * owners > 200_000


@pytest.mark.parametrize("language", LANGUAGES)
def test_links_are_in_range_and_reach_every_word(language):
    for pair in phrases(language, part="train", count=3_000, seed=11):
        assert set(pair.links) <= set(pair.possible)
        assert {i for i, _ in pair.possible} == set(range(len(pair.source.split())))
        assert {j for _, j in pair.possible} == set(range(len(pair.target.split())))


@pytest.mark.parametrize("language", LANGUAGES)
def test_articles_agree_with_their_nouns(language):
    """An article has the gender and number of the noun that follows it, whatever is between them (except el agua)."""
    tongue = BOOK.tongues[language]
    the, some = tongue.determiners["the"], tongue.determiners["a"]
    forms = {}
    for noun in NOUNS.values():
        for number in (0, 1):
            forms.setdefault(noun.forms[language][number], set()).add(noun.feminine[language] + 2 * number)
    checked = 0
    for pair in phrases(language, part="train", count=5_000, seed=2, max_words=12):
        words = [word.strip("¿?,") for word in pair.target.split()]
        source = pair.source.split()
        articles = {j for i, j in pair.links if source[i] in ("the", "a", "an")}
        for j in articles:
            noun = words[j + 1] if j + 1 < len(words) else ""
            if words[j] in (*the, *some) and noun in forms and noun not in tongue.stressed["nouns"]:
                allowed = {table[k] for table in (the, some) for k in forms[words[j + 1]]}
                assert words[j] in allowed, pair
                checked += 1
    assert checked > 1_000


@pytest.mark.parametrize(
    ("language", "infinitive", "tense", "forms"),
    [
        ("es", "hablar", "present", "hablo hablas habla hablamos hablan"),
        ("es", "comer", "past", "comí comiste comió comimos comieron"),
        ("es", "escribir", "future", "escribiré escribirás escribirá escribiremos escribirán"),
        ("pt", "falar", "past", "falei falou falou falamos falaram"),
        ("pt", "vender", "present", "vendo vende vende vendemos vendem"),
        ("pt", "abrir", "past", "abri abriu abriu abrimos abriram"),
        ("pt", "beber", "future", "beberei beberá beberá beberemos beberão"),
    ],
)
def test_regular_verbs(language, infinitive, tense, forms):
    none = {tense: {} for tense in ENDINGS[language]}
    assert conjugate(infinitive, language, none)[tense] == forms.split()


@pytest.mark.parametrize(
    ("language", "word", "expected"),
    [
        ("es", "canción", "canciones"),
        ("es", "jardín", "jardines"),
        ("es", "reloj", "relojes"),
        ("es", "feliz", "felices"),
        ("es", "café", "cafés"),
        ("pt", "estação", "estações"),
        ("pt", "homem", "homens"),
        ("pt", "hospital", "hospitais"),
        ("pt", "hotel", "hotéis"),
        ("pt", "mulher", "mulheres"),
        ("pt", "maçã", "maçãs"),
    ],
)
def test_plurals(language, word, expected):
    assert plural(word, language) == expected


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_verb_has_all_its_forms(language):
    for verb in VERBS.values():
        for tense in ("present", "past", "future"):
            assert len(verb.forms[language][tense]) == 5


def test_spanish_y_turns_to_e_before_an_i_sound():
    for pair in phrases("es", part="train", count=2_000, seed=4):
        words = pair.target.lower().split()
        assert not any(first == "y" and second.startswith(("i", "hi")) for first, second in pairwise(words)), pair
    both = does(ME, "eat", "present", a("bread")), ("and", does(WE, "go", "future", place=Place("to", named("Rome"))))
    assert said("es", *both).target == "como pan e iremos a Roma"


@pytest.mark.parametrize(
    ("following", "article"),
    [("apple", "an"), ("university", "a"), ("American", "an"), ("umbrella", "an"), ("dog", "a")],
)
def test_the_english_article_goes_by_the_sound(following, article):
    assert english_article(following) == article


def test_mistakes_are_explained():
    with pytest.raises(UsageError, match="speaks es and pt, not 'de'"):
        next(phrases("de", part="train", count=1, seed=0))
    with pytest.raises(UsageError, match="the shortest has 2"):
        next(phrases("es", part="train", count=1, seed=0, max_words=1))
    with pytest.raises(DataError, match="found only"):
        list(phrases("es", part="test", count=100_000, seed=0, max_words=2))
