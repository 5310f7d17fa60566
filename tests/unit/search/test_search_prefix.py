"""A translation begins with the given prefix, even if its words are unknown; the beam width is limited."""

from itertools import pairwise

import pytest
import torch

from regard.data.arguments import all_texts
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import TokenizerConfig, train_pair_tokenizer
from regard.errors import UsageError
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.families.translation.translator import Translator
from regard.search.pipeline import batches_by_length

PAIRS = [Pair("the red house", "la casa roja"), Pair("we are eating bread", "estamos comiendo pan")]


@pytest.fixture(scope="module", params=["word", "bpe"])
def translator(request) -> Translator:
    config = TokenizerConfig(kind=request.param, size=60, min_frequency=1, joint=False, lowercase=True)
    tokenizer = train_pair_tokenizer(PAIRS, config, "en", ["es"])
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "encoder_depth": 1, "decoder_depth": 1, "ffn_width": 16}
    vocabularies = {"source_vocab": tokenizer.source.size, "target_vocab": tokenizer.target.size}
    return Translator([Transformer(TransformerConfig.parse({**sizes, **vocabularies}))], tokenizer)


@pytest.mark.parametrize("prefix", ["la", "Zoom", "la Zoom", "Zoom Café Ñandú", "Zoom casa 東京"])
def test_every_answer_begins_with_the_prefix_as_it_is_written(translator, prefix):
    answer = translator.translate("the red house", prefix=prefix, beam=3, n_best=3, max_length=12)
    for each in (answer, *answer.alternatives):
        assert each.text.startswith(prefix)
    plain, short = translator.translate(["the red house", "bread"], prefix=prefix, max_length=12)
    assert plain.text.startswith(prefix) and short.text.startswith(prefix)
    *_, last = translator.stream("the red house", prefix=prefix, beam=1, max_length=12)
    assert last.text == plain.text


def test_only_the_first_sentence_of_a_text_begins_with_it(translator, monkeypatch):
    monkeypatch.setattr(translator, "sentences", lambda text: text.split("|"))
    assert translator.translate("the red house|bread", prefix="Zoom", max_length=8).text.count("Zoom") == 1


WRONG = (
    {"beam": 100_000}, {"n_best": 5000}, {"max_length": -1}, {"length_penalty": float("nan")},
    {"temperature": -1.0, "sample": True}, {"top_p": 2.0}, {"seed": 2**70},
    {"min_length": 9, "max_length": 5},
)  # fmt: skip


@pytest.mark.parametrize("changes", WRONG)
def test_settings_out_of_range_are_refused_in_one_line(translator, changes):
    with pytest.raises(UsageError) as error:
        translator.translate("the red house", **changes)
    name = next(iter(changes))
    assert str(error.value).startswith(f"{name} = ") and "\n" not in str(error.value)


@pytest.mark.parametrize("given", [5, None, ["a", 5], 2.5])
def test_what_is_no_text_is_refused(given):
    with pytest.raises(UsageError, match=r"expected a text or a list of texts; .* came, of type"):
        all_texts(given)
    with pytest.raises(UsageError, match="of type bytes"):
        all_texts(b"a")
    assert all_texts("a") == ["a"] and all_texts(("a", "b")) == ["a", "b"]


@pytest.mark.parametrize("width", [1, 5, 300, 5000])
def test_wide_searches_take_fewer_sentences_at_a_time(width):
    batches = list(batches_by_length([7] * 100, width))
    assert sorted(i for batch in batches for i in batch) == list(range(100))
    assert all(len(batch) == 1 or len(batch) * width <= 1024 for batch in batches)
    assert all(len(a) >= len(b) for a, b in pairwise(batches))
