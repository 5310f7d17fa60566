"""Searches with captured steps give the same answers. Without a GPU a step is repeated instead of replayed."""

import gc

import pytest
import torch

from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.language.t5 import T5, T5Config
from regard.families.translation.transformer import Transformer, TransformerConfig
from regard.search import cuda_graphs
from regard.search.cuda_graphs import GraphModel, power_of_four, with_cuda_graphs
from regard.search.protocols import Ensemble
from regard.search.search import Search, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import from_prompt, from_source

VOCABULARY = Vocabulary(start=1, end=2, pad=0)
CPU = torch.device("cpu")


def repeat(step, device):
    """Imitates a CUDA graph: the step runs once for warm-up, and later runs again on the same storage."""
    for _ in range(cuda_graphs.WARMUP_STEPS):
        step()
    return step


def sharper(model, name, by=4.0):
    """A model with a sharper distribution: that of random weights is nearly uniform."""
    with torch.no_grad():
        getattr(model, name).weight.mul_(by)
    return model.eval()


def transformer(seed=0, **values):
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 4, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 64}
    return sharper(
        Transformer(TransformerConfig(source_vocab=20, target_vocab=20, **{**sizes, **values})), "target_embedding"
    )


def gpt(seed=0, **values):
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 4, "depth": 2, "ffn_width": 64, "max_length": 80}
    return sharper(Gpt(GptConfig(vocab=20, **{**sizes, **values})), "embedding", 30.0)


def t5(seed=0):
    torch.manual_seed(seed)
    sizes = {"width": 32, "heads": 4, "head_width": 6, "encoder_depth": 2, "decoder_depth": 2, "ffn_width": 64}
    config = T5Config(source_vocab=20, target_vocab=20, buckets=8, max_distance=20, **sizes)
    return sharper(T5(config), "embedding", 2.0)


def ragged(count, seed=0, longest=7):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest + 1, (count,), generator=generator)
    lengths[0] = longest
    return torch.randint(3, 20, (count, longest), generator=generator), torch.arange(longest) < lengths[:, None]


def start_of(model, source, mask, settings, **options):
    """The start of a search: after a prompt for a language model, else with the start token."""
    if isinstance(getattr(model, "model", model), Gpt):
        return from_prompt(model, source, mask, settings, **options)
    return from_source(model, source, mask, settings, VOCABULARY.start, **options)


def decode(model, source, mask, settings, **options):
    return search(model, start_of(model, source, mask, settings, **options), settings, VOCABULARY)


MODELS = {
    "transformer": transformer,
    "learned": lambda seed: transformer(seed, positions="learned", norm="pre", max_length=64),
    "linear": lambda seed: transformer(seed, positions="linear"),
    "rotary": lambda seed: transformer(seed, positions="rotary"),
    "concatenated": lambda seed: transformer(seed, join_positions="concatenate", positions="sinusoidal_halves"),
    "gpt": gpt,
    "llama": lambda seed: gpt(seed, positions="rotary", norm="rms", gated=True, kv_heads=2, attention_bias=False),
    "window": lambda seed: gpt(seed, positions="rotary", window=3, window_layers=(0,), head_norm=True),
    "t5": t5,
}
SETTINGS = {
    "greedy": SearchSettings(),
    "beam": SearchSettings(beam=4, n_best=3),
    "mean": SearchSettings(beam=3, length_penalty=0.3, max_length=9),
    "long": SearchSettings(beam=2, min_length=12, max_length=40, no_repeat_ngram=2),
    "words": SearchSettings(no_repeat_ngram=1, max_length=12),
    "penalties": SearchSettings(beam=3, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3),
    "bias": SearchSettings(logit_bias={5: 3.0, 7: -4.0}, max_length=20),
    "sampled": SearchSettings(
        sample=True, n_best=2, temperature=0.8, top_k=9, top_p=0.9, seed=3, repetition_penalty=1.2
    ),
}


def agree(found, expected):
    assert [[h.tokens for h in answers] for answers in found] == [[h.tokens for h in answers] for answers in expected]
    assert [[h.finished for h in answers] for answers in found] == [[h.finished for h in a] for a in expected]
    for answers, others in zip(found, expected, strict=True):
        assert [h.score for h in answers] == pytest.approx([h.score for h in others], abs=1e-4)


SEARCHES = [
    *(("transformer", each) for each in SETTINGS),
    *(("gpt", each) for each in ("greedy", "long", "penalties", "sampled")),
    *((each, "beam") for each in MODELS if each != "transformer"),
]
TOGETHER = [(name, settings, (1, 5) if settings in ("greedy", "beam") else (5,)) for name, settings in SEARCHES]
ALONE = [(name, settings, (1, 5)) for name, settings, counts in TOGETHER if counts == (5,)]


@pytest.mark.parametrize(
    ("name", "settings", "counts"), [*TOGETHER, *(pytest.param(*case, marks=pytest.mark.full) for case in ALONE)]
)
def test_captured_searches_answer_as_the_others_do(name, settings, counts):
    model = MODELS[name](len(settings)).double()  # with 32 bits, random weights leave hypotheses nearly equal
    runner = GraphModel(model, repeat)
    for count in counts:
        source, mask = ragged(count, count)
        task = source, mask, SETTINGS[settings]
        agree(decode(runner, *task), decode(model, *task))


def test_prefixes_are_forced_in_captured_searches():
    model, (source, mask) = transformer(), ragged(4)
    prefixes = [[5], [], [6, 7, 8], [9, 9]]
    for settings in (SearchSettings(beam=3, max_length=12), SearchSettings(sample=True, max_length=12)):
        task = source, mask, settings
        agree(decode(GraphModel(model, repeat), *task, prefixes=prefixes), decode(model, *task, prefixes=prefixes))


@pytest.mark.parametrize("beam", [1, 3])
def test_whoever_stops_answers_is_asked(beam):
    model, (source, mask) = gpt(), ragged(5)
    asked = []

    def stop(sentence, tokens):
        asked.append(sentence)
        return tokens[-1] in (4, 5, 6) or len(tokens) == 3 + sentence

    task = source, mask, SearchSettings(beam=beam, max_length=20)
    found = decode(GraphModel(model, repeat), *task, stop=stop)
    assert set(asked) == set(range(5))
    agree(found, decode(model, *task, stop=stop))
    assert any(h.finished for (h,) in found)


def test_an_ensemble_is_captured_as_one():
    both, (source, mask) = Ensemble([transformer(1), transformer(2, positions="rotary")]), ragged(6)
    task = source, mask, SearchSettings(beam=3)
    agree(decode(GraphModel(both, repeat), *task), decode(both, *task))


def test_a_loop_serves_one_search_after_the_other_and_never_two_at_once():
    model, made = transformer(), []
    runner = GraphModel(model, lambda step, device: made.append(step) or repeat(step, device))
    settings = SearchSettings(beam=2)
    for seed in range(3):  # other sentences and lengths of the same shape
        source, mask = ragged(6, seed, longest=5 + seed)
        agree(decode(runner, source, mask, settings), decode(model, source, mask, settings))
        gc.collect()
    assert len(made) == 1
    (source, mask), (other, other_mask) = ragged(6, 7), ragged(6, 8)
    with torch.inference_mode():
        one = Search(runner, start_of(runner, source, mask, settings), settings, VOCABULARY)
        two = Search(runner, start_of(runner, other, other_mask, settings), settings, VOCABULARY)
        while not (one.done and two.done):
            for each in (one, two):
                if not each.done:
                    each.advance()
    assert len(made) == 2
    agree(one.results(), decode(model, source, mask, settings))
    agree(two.results(), decode(model, other, other_mask, settings))
    del one, two, each
    gc.collect()
    assert len(runner.idle) == 2


def test_few_loops_wait(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MAX_IDLE_LOOPS", 2)
    runner = GraphModel(transformer(), repeat)
    for beam in (1, 2, 3):
        decode(runner, *ragged(1), SearchSettings(beam=beam, max_length=3))
    gc.collect()
    assert [key[1] for key, _ in runner.idle] == [2, 3]


def test_a_captured_search_can_be_watched_step_by_step():
    model, (source, mask) = transformer(), ragged(2)
    settings = SearchSettings(beam=3, max_length=10)
    with torch.inference_mode():
        plain, ahead = (
            Search(each, start_of(each, source, mask, settings), settings, VOCABULARY)
            for each in (model, GraphModel(model, repeat))
        )
        while not plain.done:
            plain.advance()
            ahead.advance()
            assert ahead.common_prefix() == plain.common_prefix()
            assert ahead.done == plain.done
    agree(ahead.results(), plain.results())


def test_rows_that_ended_go_on_beyond_the_last_learned_position():
    model, (source, mask) = gpt(max_length=20), ragged(3, longest=15)
    mask[1, 3:] = False
    settings = SearchSettings(max_length=16, min_length=16, context=20)
    task = source, mask, settings
    found = decode(GraphModel(model, repeat), *task)
    assert [len(h.tokens) for (h,) in found] == [6, 16, min(16, 21 - int(mask[2].sum()))]
    agree(found, decode(model, *task))


def test_only_what_has_a_fixed_shape_is_captured_and_only_on_a_gpu():
    lstm = Lstm(LstmConfig(vocab=20, embedding=8, width=8, depth=1)).eval()
    gpu = torch.device("cuda")
    assert with_cuda_graphs(lstm, gpu) is lstm
    both = Ensemble([transformer(), lstm])
    assert with_cuda_graphs(both, gpu) is both
    model = transformer()
    assert with_cuda_graphs(model, CPU) is model
    assert isinstance(with_cuda_graphs(model, gpu), GraphModel)


def test_a_capture_that_fails_is_told_once_and_the_search_goes_on():
    def broken(step, device):
        step()
        raise RuntimeError("operation not permitted when stream is capturing")

    model, (source, mask) = transformer(), ragged(5)
    runner, task = GraphModel(model, broken), (source, mask, SearchSettings(beam=2))
    with pytest.warns(UserWarning, match="CUDA graphs failed.*not permitted"):
        found = decode(runner, *task)
    agree(found, decode(model, *task))
    agree(decode(runner, *task), found)  # a second warning would be an error


def test_without_room_for_a_loop_the_search_goes_on_and_others_make_room():
    model, (source, mask) = transformer(), ragged(3)
    runner, task = GraphModel(model, repeat), (source, mask, SearchSettings(beam=2))
    expected = decode(runner, *task)
    gc.collect()
    assert len(runner.idle) == 1

    def full(step, device):
        raise torch.OutOfMemoryError

    runner.capture = full
    decode(runner, *task[:2], SearchSettings())
    assert not runner.idle
    runner.capture = repeat
    agree(decode(runner, *task), expected)


@pytest.mark.usefixtures("bf16")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_the_bytes_are_captured_too(dtype):
    model = transformer().to(dtype)
    task = *ragged(3), SearchSettings(beam=2, max_length=5)
    found, expected = (decode(each, *task) for each in (GraphModel(model, repeat), model))
    assert [h.tokens for (h,) in found] == [h.tokens for (h,) in expected]


def test_prompts_of_one_token_are_continued():
    model, source = gpt(), torch.tensor([[5], [9]])
    task = source, source > 0, SearchSettings(beam=2, max_length=10)
    agree(decode(GraphModel(model, repeat), *task), decode(model, *task))


def test_sizes_are_powers_of_four():
    assert [power_of_four(count) for count in (1, 2, 4, 5, 16, 17, 64, 65)] == [1, 4, 4, 16, 16, 64, 64, 256]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
def test_on_a_gpu_graphs_answer_as_a_search_without_them(name):
    model = MODELS[name](1).cuda()
    for settings in SETTINGS.values():
        runner = with_cuda_graphs(model, torch.device("cuda"))
        for seed in range(3):
            source, mask = (part.cuda() for part in ragged(5, seed))
            agree(decode(runner, source, mask, settings), decode(model, source, mask, settings))
            gc.collect()
        assert not runner.failed and len(runner.idle) == 1
