"""Text generation with language models and T5s: batches, streams, stops, best of n, perplexity and caches."""

import json
import math
from itertools import pairwise

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

import regard
from regard.checkpoints import export_model, save_model
from regard.errors import CheckpointError, ConfigError, DataError, UsageError
from regard.families.conversion import convert
from regard.families.language import language_models
from regard.families.language.gpt import LLAMA, Gpt, GptConfig
from regard.families.language.language_models import LanguageModel, TextToText
from regard.families.language.lstm import Lstm, LstmConfig
from regard.families.language.t5 import T5, T5Config
from regard.search import pipeline as decoding_pipeline
from regard.search.cuda_graphs import GraphModel
from regard.search.settings import SearchSettings

TEXT = "the fox saw the owl and the owl saw the fox; café, naïve, 你好 and 👍🏽 are words too. " * 3
PROMPTS = ["the fox", "the owl saw the fox and", "café", "", "naïve 你"]
END = "<|endoftext|>"
GREEDY = {"num_beams": 1, "do_sample": False, "suppress_tokens": [0]}  # Regard never generates padding


def byte_pairs(folder):
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False),
    )
    folder.mkdir(exist_ok=True, parents=True)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": END, "eos_token": END}))


def unigrams(folder):
    library = tokenizers.Tokenizer(models.Unigram())
    library.pre_tokenizer, library.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    specials = ["<pad>", "</s>", "<unk>"]
    library.train_from_iterator(
        [TEXT], trainers.UnigramTrainer(vocab_size=120, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    library.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    folder.mkdir(exist_ok=True, parents=True)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"pad_token": "<pad>", "eos_token": "</s>"}))


def gpt(**changes):
    torch.manual_seed(3)
    sizes = {"vocab": 300, "width": 32, "heads": 4, "depth": 2, "max_length": 64}
    model = Gpt(GptConfig(**{**sizes, **changes}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "gpt"
    export_model("gpt", gpt(), place, values={"bos_token_id": 0, "eos_token_id": 0}, extras=byte_pairs)
    return place


@pytest.fixture(scope="module")
def lm(folder):
    return regard.load(folder)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    place = tmp_path_factory.mktemp("models") / "llama"
    export_model("gpt", gpt(**LLAMA, kv_heads=2), place, extras=byte_pairs)
    return regard.load(place)


@pytest.fixture(scope="module")
def lstm(tmp_path_factory):
    torch.manual_seed(5)
    place = tmp_path_factory.mktemp("models") / "lstm"
    model = Lstm(LstmConfig(vocab=300, embedding=24, width=32, depth=2))
    torch.nn.init.normal_(model.embedding.weight)
    save_model(place, "lstm", model, extras=byte_pairs)
    return regard.load(place)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    torch.manual_seed(4)
    place = tmp_path_factory.mktemp("models") / "t5"
    sizes = {"source_vocab": 128, "target_vocab": 128, "width": 32, "heads": 4, "head_width": 6, "ffn_width": 48}
    model = T5(T5Config(**sizes, encoder_depth=2, decoder_depth=2))
    export_model("t5", model, place, values={"decoder_start_token_id": 0, "eos_token_id": 1}, extras=unigrams)
    return regard.load(place)


def test_folders_are_loaded_as_what_they_are_for(lm, llama, t5, tmp_path):
    assert isinstance(lm, LanguageModel) and isinstance(llama, LanguageModel) and isinstance(t5, TextToText)
    save_model(tmp_path / "own", "gpt", gpt(), extras=byte_pairs)  # a folder of our own
    assert regard.load(tmp_path / "own").generate("the", seed=1).text == lm.generate("the", seed=1).text


WAYS = [
    {"temperature": 0.0}, {"temperature": 0.8, "top_k": 20}, {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02},
    {"beam": 3}, {"temperature": 0.0, "repetition_penalty": 1.3}, {"temperature": 1.0, "n": 2, "best_of": 4},
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(kind, way, marks=() if kind == "lm" or (row + column) % 2 else pytest.mark.full)
        for row, kind in enumerate(["lm", "llama", "lstm", "t5"])
        for column, way in enumerate(WAYS)
    ],
)
def test_a_batch_is_its_prompts_one_by_one(kind, changes, request):
    writer = request.getfixturevalue(kind)
    together = writer.generate(PROMPTS, max_tokens=12, **changes)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        alone = writer.generate(prompt, max_tokens=12, **changes)
        assert (alone.text, alone.ids, alone.reason) == (completion.text, completion.ids, completion.reason)
        assert [a.ids for a in alone.alternatives] == [a.ids for a in completion.alternatives]
        assert alone.score == pytest.approx(completion.score, abs=1e-4)


@pytest.mark.parametrize("kind", ["lm", "llama", "t5"])
def test_captured_searches_write_the_same(kind, request, monkeypatch):
    monkeypatch.setattr(
        decoding_pipeline, "with_cuda_graphs", lambda model, device: GraphModel(model, lambda step, device: step)
    )
    monkeypatch.setattr(decoding_pipeline, "decoding_model", lambda model, precision, end: model)  # as on a GPU
    plain = request.getfixturevalue(kind)
    ahead = type(plain)(plain.model, plain.tokenizer, settings=plain.settings, ends=plain.ends)
    assert isinstance(ahead.decoder, GraphModel)
    for changes in ({"temperature": 1.0, "n": 2, "best_of": 3}, {"beam": 3}, {"temperature": 0.0, "stop": ["a", "th"]}):
        found, expected = (each.generate(PROMPTS, max_tokens=12, **changes) for each in (ahead, plain))
        assert [(one.text, one.reason) for one in found] == [(one.text, one.reason) for one in expected]
    pieces = [[chunk.text for chunk in each.stream("the", max_tokens=12, temperature=0.0)] for each in (ahead, plain)]
    assert pieces[0] == pieces[1]


@pytest.mark.parametrize("kind", ["lm", "llama", "t5"])
@pytest.mark.parametrize(
    "changes", [{"temperature": 0.0}, {"seed": 5, "temperature": 1.0}, {"beam": 3}, {"stop": ["a", "th"]}]
)
def test_a_stream_joins_to_the_whole(kind, changes, request):
    writer = request.getfixturevalue(kind)
    for prompt in PROMPTS:
        chunks = list(writer.stream(prompt, max_tokens=15, **changes))
        whole = writer.generate(prompt, max_tokens=15, **changes)
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert [chunk.reason for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
        assert chunks[-1].reason == whole.reason


@pytest.mark.parametrize("kind", ["lm", "llama"])
def test_greedy_writing_equals_reading_everything_again_for_each_token(kind, request):
    writer = request.getfixturevalue(kind)
    for prompt in PROMPTS:
        ids = writer.read(prompt)
        expected = []
        for _ in range(10):
            logits = writer.model(torch.tensor([[*ids, *expected]]))[0, -1]
            expected.append(int(logits.argmax()))
        if writer.ends[0] in expected:
            expected = expected[: expected.index(writer.ends[0])]
        assert writer.generate(prompt, max_tokens=10, temperature=0.0).ids == expected


def test_scores_are_the_models_own_mean_log_probabilities(lm):
    for completion in lm.generate(PROMPTS, max_tokens=9, temperature=0.7, top_k=30, repetition_penalty=1.5):
        told = torch.tensor(completion.ids)[:, None]
        each = completion.log_probabilities.gather(1, told)
        if completion.reason == "length":
            assert completion.log_probability == pytest.approx(each.sum().item(), abs=1e-3)
            assert completion.score == pytest.approx(each.mean().item(), abs=1e-4)


def test_the_best_of_many_is_the_most_probable(lm):
    best = lm.generate("the fox", max_tokens=8, n=3, best_of=10, temperature=1.0, seed=2)
    every = lm.generate("the fox", max_tokens=8, n=10, temperature=1.0, seed=2)
    scores = [c.score for c in (every, *every.alternatives)]
    assert scores == sorted(scores, reverse=True)
    assert [best.text, *(c.text for c in best.alternatives)] == [every.text, *(c.text for c in every.alternatives)][:3]
    assert len({c.text for c in (every, *every.alternatives)}) > 1


def test_stop_strings_end_a_text_before_them(lm):
    free = lm.generate("the fox", max_tokens=30, temperature=1.0, seed=1).text
    stop = free[7:9]
    stopped = lm.generate("the fox", max_tokens=30, temperature=1.0, seed=1, stop=["not there", stop])
    assert stopped.text == free[: free.index(stop)] and stopped.reason == "stop"
    assert len(stopped.ids) < 30
    with pytest.raises(UsageError, match="stop string is empty"):
        lm.generate("the", stop=[""])


def test_a_stop_string_in_the_prompt_does_not_count(lm):
    free = lm.generate("the fox", max_tokens=5, temperature=0.0)
    assert "fox" not in free.text
    assert lm.generate("the fox", max_tokens=5, temperature=0.0, stop="fox").text == free.text


def test_further_end_tokens_end_a_text_too(folder, tmp_path):
    free = LanguageModel.load(folder).generate("the fox", max_tokens=6, temperature=0.0)
    model = LanguageModel.load(folder)
    model.ends = (0, free.ids[3])
    ended = model.generate("the fox", max_tokens=6, temperature=0.0)
    assert ended.ids == free.ids[: free.ids.index(free.ids[3]) + 1] and ended.reason == "stop"


def test_a_repetition_penalty_makes_what_was_said_less_probable(lm):
    plain = lm.generate("the fox", max_tokens=30, temperature=0.0)
    fresh = lm.generate("the fox", max_tokens=30, temperature=0.0, repetition_penalty=5.0)
    assert len(set(fresh.ids)) > len(set(plain.ids))
    # by hand, for the first token
    ids = lm.read("the fox")
    logits = lm.model(torch.tensor([ids]))[0, -1]
    for token in set(ids):
        logits[token] = logits[token] / 5 if logits[token] > 0 else logits[token] * 5
    assert fresh.ids[0] == int(logits.argmax())


@pytest.mark.parametrize("kind", ["lm", "llama"])
@pytest.mark.parametrize(("presence", "frequency"), [(1.3, 0.0), (0.0, 0.7), (-0.4, 1.1)])
def test_penalties_and_biases_are_openais_formula(kind, presence, frequency, request):
    writer = request.getfixturevalue(kind)
    bias = {7: 3.0, 40: -100.0}
    for prompt in PROMPTS[:3]:
        ids, said = writer.read(prompt), []
        for _ in range(12):
            logits = writer.model(torch.tensor([[*ids, *said]]))[0, -1]
            for token in range(len(logits)):
                count = said.count(token)  # counted in the answer only
                logits[token] += bias.get(token, 0.0) - count * frequency - (count > 0) * presence
            said.append(int(logits.argmax()))
        said = said[: said.index(writer.ends[0])] if writer.ends[0] in said else said
        changes = {"presence_penalty": presence, "frequency_penalty": frequency, "logit_bias": bias}
        found = writer.generate(PROMPTS[:3], max_tokens=12, temperature=0.0, **changes)
        assert found[PROMPTS.index(prompt)].ids == said


def test_a_bias_of_minus_100_forbids_and_scores_stay_the_models_own(lm):
    free = lm.generate("the fox", max_tokens=6, temperature=1.0, seed=1)
    bound = lm.generate("the fox", max_tokens=6, temperature=1.0, seed=1, logit_bias=dict.fromkeys(free.ids, -100.0))
    assert not {*free.ids} & {*bound.ids}
    each = bound.log_probabilities.gather(1, torch.tensor(bound.ids)[:, None])
    assert bound.reason == "stop" or bound.log_probability == pytest.approx(each.sum().item(), abs=1e-3)
    with pytest.raises(UsageError, match="tokens 0 to 299"):
        lm.generate("the fox", logit_bias={300: 1.0})


# Token predictions


@pytest.mark.parametrize("kind", ["lm", "llama", "t5"])
def test_every_place_predicts_what_the_text_before_it_lets_expect(kind, request):
    writer = request.getfixturevalue(kind)
    answer = writer.generate("the fox", max_tokens=6, temperature=0.0, logit_bias={writer.ends[0]: -100.0})
    source, target = writer.forced_inputs(answer.prompt_ids, answer.ids)
    told = writer.predict_tokens(answer.prompt_ids, answer.ids, top=4)
    assert [each.place for each in told] == list(range(len(target)))
    for each in told:
        before = target[: each.place + 1]  # one pass for each place, over the tokens before it
        inputs = [torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool)] if source else []
        probability = writer.model(*inputs, torch.tensor([before]))[0, -1].softmax(-1)
        best = probability.argsort(descending=True)[:4]
        assert [c.token for c in each.choices] == writer.tokenizer.shown(best.tolist())
        assert [c.probability for c in each.choices] == pytest.approx(probability[best].tolist(), abs=1e-5)
        if each.place + 1 < len(target):
            came = target[each.place + 1]
            assert each.actual.token == writer.tokenizer.shown([came])[0]
            assert each.actual.probability == pytest.approx(probability[came].item(), abs=1e-5)
            assert each.rank == int((probability > probability[came]).sum()) + 1
        assert each.generated == (len(target) - len(answer.ids) <= each.place + 1 < len(target))
    assert (
        told[-1].actual is None
        and writer.predict_tokens(answer.prompt_ids, answer.ids, top=4, places=(1, 3)) == told[1:3]
    )
    (end,) = writer.tokenizer.shown(writer.ends[:1])
    assert writer.predict_tokens(answer.prompt_ids, answer.ids, ended=True)[-1].actual.token == end


@pytest.mark.parametrize(
    "drawing",
    [{"temperature": 0.7}, {"temperature": 1.5, "top_k": 5}, {"temperature": 1.0, "top_p": 0.6},
     {"temperature": 0.8, "min_p": 0.2}, {"temperature": 0.0}],
)  # fmt: skip
def test_the_share_drawn_is_that_of_the_tempered_and_cut_distribution(lm, drawing):
    ids = lm.read("the owl")
    settings = lm.generation_settings(max_tokens=1, beam=1, **drawing)
    (told,) = lm.predict_tokens(ids, places=(len(ids) - 1, len(ids)), top=300, settings=settings)
    logits = lm.model(torch.tensor([ids]))[0, -1].double()
    tempered = (logits / (drawing["temperature"] or 1e-4)).softmax(-1)
    allowed, mass = [], 0.0
    for token in tempered.argsort(descending=True).tolist():
        is_likely = tempered[token] >= drawing.get("min_p", 0.0) * tempered.max()
        if mass < drawing.get("top_p", 1.0) and len(allowed) < drawing.get("top_k", 300) and is_likely:
            allowed.append(token)
        mass += tempered[token].item()
    total = sum(tempered[token].item() for token in allowed)
    expected = {token: tempered[token].item() / total for token in allowed}
    for token, choice in zip(logits.argsort(descending=True).tolist(), told.choices, strict=True):
        assert choice.drawn == pytest.approx(expected.get(token, 0.0), abs=1e-4)


def test_tokens_are_drawn_as_often_as_predicted(lm):
    ids, drawing = lm.read("the owl"), {"temperature": 1.3, "top_p": 0.8}
    settings = lm.generation_settings(max_tokens=1, beam=1, **drawing)
    (told,) = lm.predict_tokens(ids, places=(len(ids) - 1, len(ids)), top=300, settings=settings)
    many = lm.generate("the owl", max_tokens=1, n=600, **drawing)
    drawn = [lm.tokenizer.shown(each.ids or lm.ends[:1])[0] for each in (many, *many.alternatives)]
    assert len({*drawn}) > 5
    for token in {choice.token for choice in told.choices}:  # incomplete characters look alike
        expected = sum(choice.drawn for choice in told.choices if choice.token == token)
        assert drawn.count(token) / 600 == pytest.approx(expected, abs=0.08)


def test_an_answer_that_fills_the_context_can_be_looked_at(lm):
    full = lm.generate("the fox", max_tokens=500, temperature=0.0, logit_bias={lm.ends[0]: -100.0})
    assert len(full.prompt_ids) + len(full.ids) == 65
    assert len(full.attention.target) == 64
    told = lm.predict_tokens(full.prompt_ids, full.ids)
    assert len(told) == 64 and told[-1].actual.token == full.tokens[-1]


def test_the_last_piece_of_a_stream_has_the_whole(lm):
    *_, last = lm.stream("the fox", max_tokens=8, temperature=1.0, seed=3)
    assert last.whole == lm.generate("the fox", max_tokens=8, temperature=1.0, seed=3)


def test_min_p_keeps_what_has_its_share_of_the_best(lm):
    ids = lm.read("the owl")
    probability = lm.model(torch.tensor([ids]))[0, -1].softmax(-1)
    allowed = set((probability >= 0.3 * probability.max()).nonzero().flatten().tolist())
    drawn = lm.generate("the owl", max_tokens=1, temperature=1.0, n=200, min_p=0.3)
    assert {c.ids[0] for c in (drawn, *drawn.alternatives) if c.ids} <= allowed
    assert 1 < len(allowed) < 300


def test_the_limits_of_a_folder_hold_where_none_is_asked_for(lm, monkeypatch):
    free = {"temperature": 0.0, "logit_bias": {lm.ends[0]: -100.0}}
    read = len(lm.read("the fox"))
    for limits, expected in (({"longest": 3}, 3), ({"context": read + 5 - 1}, 5), ({"context": 1}, 1)):
        monkeypatch.setattr(lm, "settings", SearchSettings(**limits))
        assert len(lm.generate("the fox", **free).ids) == expected
        assert len(lm.generate("the fox", max_tokens=7, **free).ids) == 7


def test_the_same_seed_writes_the_same(lm):
    one, same, other = (lm.generate("the", max_tokens=20, temperature=1.0, seed=seed).text for seed in (1, 1, 2))
    assert one == same != other


def test_prompt_and_answer_fit_the_learned_positions(lm, llama):
    long = "the fox saw the owl " * 4
    count = len(lm.read(long))
    assert 20 < count < 64
    full = lm.generate(long, max_tokens=500, temperature=0.0)
    assert count + len(full.ids) == 64 + 1 or full.reason == "stop"  # the last token need not be read
    both = lm.generate([long, "the"], max_tokens=500, temperature=0.0)
    assert [each.ids for each in both] == [full.ids, lm.generate("the", max_tokens=500, temperature=0.0).ids]
    with pytest.raises(DataError, match=r"'the fox saw.* tokens; this model reads 64"):
        lm.generate(long * 9)
    assert len(llama.generate(long * 9, max_tokens=3, temperature=0.0).ids) <= 3  # rotary positions have no limit


def test_perplexity_is_the_formula_whatever_the_stride(lm):
    text = "the fox saw the owl"
    ids = [0, *lm.read(text)]
    log_p = lm.model(torch.tensor([ids]))[0].log_softmax(-1)
    total = sum(log_p[place, token].item() for place, token in enumerate(ids[1:]))
    found = lm.perplexity(text)
    assert found.log_probability == pytest.approx(total, abs=1e-4)
    assert found.per_token == pytest.approx(math.exp(-total / (len(ids) - 1)))
    assert found.per_word == pytest.approx(math.exp(-total / 5))
    assert found.bits_per_byte == pytest.approx(-total / 19 / math.log(2))


@pytest.mark.parametrize("stride", [1, 7, 32, 63])
def test_perplexity_predicts_every_token_once_from_its_window(lm, stride):
    ids = [0, *lm.tokenizer.encode([TEXT])[0].ids]
    assert len(ids) > 64
    total, place = 0.0, 1
    while place < len(ids):
        first = 0 if place < 64 else next(f for f in range(0, len(ids), stride) if place < f + 64)
        log_p = lm.model(torch.tensor([ids[first:place]]))[0, -1].log_softmax(-1)
        total += log_p[ids[place]].item()
        place += 1
    assert lm.perplexity(TEXT, stride=stride).log_probability == pytest.approx(total, abs=1e-2)


def test_a_recurrent_model_predicts_a_text_from_its_beginning(lstm, monkeypatch):
    monkeypatch.setattr(language_models, "PIECE", 7)
    ids = [0, *lstm.tokenizer.encode([TEXT])[0].ids]
    log_p = lstm.model(torch.tensor([ids]))[0].log_softmax(-1)
    total = sum(log_p[place, token].item() for place, token in enumerate(ids[1:]))
    assert lstm.perplexity(TEXT).log_probability == pytest.approx(total, abs=1e-2)
    assert len(lstm.generate(TEXT * 9, max_tokens=3, temperature=0.0).ids) <= 3
    with pytest.raises(UsageError, match="no attention to look at"):
        _ = lstm.generate("the", max_tokens=3).attention
    with pytest.raises(UsageError, match="no windows"):
        lstm.perplexity(TEXT, stride=3)


def test_perplexity_refuses_what_it_cannot_do(lm):
    with pytest.raises(UsageError, match="stride is 64"):
        lm.perplexity("the", stride=64)
    with pytest.raises(DataError, match="no token"):
        lm.perplexity("")


def test_attention_is_looked_up_afterwards(lm, t5):
    completion = lm.generate("the fox", max_tokens=5, temperature=0.0)
    seen = completion.attention
    length = len(completion.prompt_ids) + len(completion.ids)
    assert len(seen.target) == length and set(seen.weights) == {"decoder.0.attention", "decoder.1.attention"}
    assert all(each.shape == (4, length, length) for each in seen.weights.values())
    answer = t5.generate("the fox", max_tokens=5)
    seen = answer.attention
    assert seen.weights["decoder.1.cross"].shape == (4, len(seen.target), len(seen.source))
    assert answer.log_probabilities.shape == (max(len(answer.ids), 1), 128)


def test_next_tokens_are_those_of_the_last_position(lm):
    first, *others = lm.next_tokens("the fox", 5)
    logits = lm.model(torch.tensor([lm.read("the fox")]))[0, -1]
    assert first.probability == pytest.approx(logits.softmax(-1).max().item(), abs=1e-6)
    assert first.token == lm.tokenizer.pieces([int(logits.argmax())])[0] and len(others) == 4


def test_t5_answers_as_transformers_does(t5, tmp_path):
    transformers = pytest.importorskip("transformers")
    export_model("t5", t5.model, tmp_path / "out", values={"decoder_start_token_id": 0, "eos_token_id": 1})
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()
    for prompt in PROMPTS[:3]:
        ids = t5.read(prompt)
        assert ids[-1] == 1
        told = theirs.generate(torch.tensor([ids]), max_new_tokens=9, **GREEDY)[0, 1:].tolist()
        ours = t5.generate(prompt, max_tokens=9).ids
        assert ours == (told[: told.index(1)] if 1 in told else told)


@pytest.mark.parametrize("changes", [{}, {"repetition_penalty": 1.7}])
def test_gpt2_writes_as_transformers_does(changes, lm, folder):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel.from_pretrained(folder).eval()
    for prompt in PROMPTS[:3]:
        ids = torch.tensor([lm.read(prompt)])
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "pad_token_id": 0, **changes}
        told = theirs.generate(ids, max_new_tokens=12, **options)[0, ids.shape[1] :].tolist()
        ours = lm.generate(prompt, max_tokens=12, temperature=0.0, **changes).ids
        assert ours == (told[: told.index(0)] if 0 in told else told)


def test_ngrams_are_not_repeated_where_padding_is_the_end_token(lm):
    said = lm.generate("the", max_tokens=40, temperature=0.0, no_repeat_ngram=2).ids
    pairs = list(pairwise(said))
    assert len(pairs) == len(set(pairs))


def test_mistakes_are_refused(lm, folder, tmp_path):
    for wrong in ({"max_tokens": 0}, {"n": 0}, {"n": 3, "best_of": 2}, {"beam": 2, "temperature": 1.0}, {"min_p": 2.0}):
        with pytest.raises(UsageError):
            lm.generate("the", **wrong)
    with pytest.raises(ConfigError, match="did you mean 'top_k'"):
        lm.generate("the", topk=3)
    with pytest.raises(UsageError, match="is a gpt model; expected a t5"):
        TextToText.load(folder)
    save_model(tmp_path / "small", "gpt", gpt(vocab=200), extras=byte_pairs)
    with pytest.raises(CheckpointError, match="300 tokens, but the model knows 200"):
        regard.load(tmp_path / "small")
    save_model(tmp_path / "mute", "gpt", gpt())
    with pytest.raises(CheckpointError, match="tokenizer"):
        regard.load(tmp_path / "mute")


def test_folders_are_converted_both_ways(lm, folder, t5, tmp_path):
    transformers = pytest.importorskip("transformers")
    convert(folder, tmp_path / "ours", "regard")
    assert regard.load(tmp_path / "ours").generate(PROMPTS, seed=3, max_tokens=9) == lm.generate(
        PROMPTS, seed=3, max_tokens=9
    )
    convert(tmp_path / "ours", tmp_path / "back", "huggingface")
    for name in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()
    theirs = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "back")
    assert (theirs.config.bos_token_id, theirs.config.eos_token_id) == (0, 0)
    save_model(tmp_path / "t5", "t5", t5.model, extras=unigrams)
    convert(tmp_path / "t5", tmp_path / "t5-back", "huggingface")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "t5-back")
    told = theirs.generate(torch.tensor([t5.read("the fox")]), max_new_tokens=5, **GREEDY)[0].tolist()
    assert told[0] == 0 and t5.generate("the fox", max_tokens=5).ids == [each for each in told[1:] if each != 1]
