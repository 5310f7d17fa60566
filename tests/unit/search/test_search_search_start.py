"""A search starts from a state, for any kind of source, with the caller's own seeds and limits."""

import pytest
import torch
from torch import nn

from regard.errors import UsageError
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.translation.seq2seq import Seq2Seq, Seq2SeqConfig
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.search.protocols import Ensemble
from regard.search.search import Search, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.speculative import SpeculativeModel
from regard.search.start import SearchStart, from_prompt, from_source

VOCABULARY = Vocabulary(start=1, end=2, pad=0)
SIZES = {"width": 32, "heads": 4, "ffn_width": 64}


class Captioner(nn.Module):
    """Describes an image by a table of logits that the image selects: its source has no tokens."""

    def __init__(self, vocab=9):
        super().__init__()
        self.tables = nn.Parameter(torch.randn(4, vocab, vocab, generator=torch.Generator().manual_seed(0)) * 3)

    def start(self, images):
        return CaptionState(self.tables[images.flatten(1).sum(1).long() % 4])

    def step(self, tokens, state):
        rows = torch.arange(len(tokens))[:, None]
        return state.tables[rows, tokens]


class CaptionState:
    def __init__(self, tables):
        self.tables = tables

    def reorder(self, origin):
        pass

    def keep(self, sentences):
        self.tables = self.tables[sentences]

    def copy(self):
        return CaptionState(self.tables)


def caption_start(model, images, seeds=()):
    first = torch.full((len(images),), VOCABULARY.start)
    return SearchStart(model.start(images), first, limits=[6] * len(images), seeds=seeds)


@pytest.mark.parametrize("settings", [SearchSettings(), SearchSettings(beam=3, n_best=2), SearchSettings(n_best=3)])
def test_a_model_whose_source_is_an_image_is_searched_as_any_other(settings):
    model, images = Captioner().eval(), torch.arange(5 * 3 * 2 * 2).view(5, 3, 2, 2).float()
    together = search(model, caption_start(model, images), settings, VOCABULARY)
    for row, image in enumerate(images):
        assert search(model, caption_start(model, image[None]), settings, VOCABULARY) == [together[row]]


def test_equal_seeds_draw_equal_answers_and_others_do_not():
    model, images = Captioner().eval(), torch.zeros(4, 1, 2, 2)
    settings = SearchSettings(sample=True, n_best=3)
    one, same, other, _ = search(model, caption_start(model, images, ["a", "a", "b", "c"]), settings, VOCABULARY)
    assert one == same and one != other


def test_sampling_without_a_seed_for_each_sentence_is_refused():
    model, images = Captioner().eval(), torch.zeros(2, 1, 2, 2)
    with pytest.raises(UsageError, match="0 seeds for 2 sentences"):
        Search(model, caption_start(model, images), SearchSettings(sample=True), VOCABULARY)


MODELS = {
    "transformer": lambda: Transformer(
        TransformerConfig(source_vocab=20, target_vocab=20, encoder_depth=1, decoder_depth=2, **SIZES)
    ),
    "seq2seq": lambda: Seq2Seq(Seq2SeqConfig(source_vocab=20, target_vocab=20, embedding=8, width=16)),
    "gpt": lambda: Gpt(GptConfig(vocab=20, depth=2, max_length=40, **SIZES)),
    "lstm": lambda: Lstm(LstmConfig(vocab=20, embedding=8, width=16, depth=1)),
}


@pytest.mark.parametrize("wrap", [lambda model: model, lambda model: Ensemble([model, model])], ids=["one", "ensemble"])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_a_copied_state_is_independent_of_the_first(name, wrap):
    torch.manual_seed(0)
    model = wrap(MODELS[name]().eval())
    source = torch.randint(3, 20, (3, 5))
    state = model.start(source, torch.ones_like(source, dtype=torch.bool))
    tokens, others = torch.randint(3, 20, (2, 3, 1))
    model.step(tokens, state)
    copied = state.copy()
    expected = model.step(others, state)
    state.keep(torch.tensor([2, 0]))
    model.step(tokens[[2, 0]], state)
    assert torch.equal(model.step(others, copied), expected)


@torch.inference_mode()
def test_a_state_with_guesses_is_copied_without_them():
    torch.manual_seed(0)
    model = MODELS["transformer"]().eval()
    speculative = SpeculativeModel(model, lambda: model, VOCABULARY.end)
    source = torch.randint(3, 20, (1, 5))
    state, plain = (each.start(source, source > 0) for each in (speculative, model))
    state.expect(1, 20)
    for token in torch.tensor([1, 7]):
        speculative.step(token[None, None], state)
        model.step(token[None, None], plain)
    copied, token = state.copy(), torch.tensor([[9]])
    assert torch.allclose(speculative.step(token, copied), model.step(token, plain), atol=1e-5)


def test_a_prompt_may_be_padded_at_either_end():
    torch.manual_seed(0)
    model, settings = MODELS["gpt"]().eval(), SearchSettings(max_length=6, repetition_penalty=1.5)
    right = torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])
    left = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 4]])
    starts = [from_prompt(model, tokens, tokens > 0, settings) for tokens in (right, left)]
    assert [start.first.tolist() for start in starts] == [[8, 4], [8, 4]]
    found = [search(model, start, settings, VOCABULARY) for start in starts]
    assert [[h.tokens for h in row] for row in found[0]] == [[h.tokens for h in row] for row in found[1]]


def test_the_length_limit_follows_from_the_real_tokens_of_a_source():
    model, tokens = MODELS["transformer"]().eval(), torch.tensor([[5, 6, 7, 8], [9, 4, 0, 0]])
    start = from_source(model, tokens, tokens > 0, SearchSettings(max_ratio=2, max_extra=3), VOCABULARY.start)
    assert start.limits == [11, 7] and start.first.tolist() == [1, 1]
