"""Cost formulas against real modules: parameters exactly, FLOPs and memory as torch counts them."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.attention import record
from regard.families.catalog import MODELS
from regard.families.language.bert import ESM2
from regard.families.language.elmo import ElmoOutput
from regard.families.language.gpt import IGPT, LLAMA
from regard.families.language.lstm import LstmState
from regard.families.language.t5 import V1_1
from regard.families.language.word2vec import Scores, Word2Vec
from regard.families.navigation.path_lstm import PathLstm, PathScore
from regard.families.translation.seq2seq import Seq2Seq
from regard.families.vision_language.model import VilbertOutput
from regard.layers.blocks import Factors
from regard.studies.costs.models import COSTS
from regard.training.losses import negative_sampling

VOCAB = 53
SIZES = {
    "transformer": {"source_vocab": VOCAB, "target_vocab": 61, "width": 32, "heads": 4, "encoder_depth": 2,
                    "decoder_depth": 3, "ffn_width": 80},
    "seq2seq": {"source_vocab": VOCAB, "target_vocab": 61, "embedding": 24, "width": 32},
    "t5": {"source_vocab": VOCAB, "target_vocab": VOCAB, "width": 32, "heads": 4, "head_width": 8, "ffn_width": 80,
           "encoder_depth": 2, "decoder_depth": 3, "buckets": 8, "max_distance": 20},
    "gpt": {"vocab": VOCAB, "width": 32, "heads": 4, "depth": 3, "max_length": 40},
    "lstm": {"vocab": VOCAB, "embedding": 32, "width": 64, "depth": 3},
    "word2vec": {"vocab": VOCAB, "width": 32, "window": 3, "negatives": 4},
    "elmo": {"vocab": VOCAB, "width": 32, "filters": ((1, 8), (3, 24)), "characters": 9},
    "bert": {"vocab": VOCAB, "width": 32, "heads": 4, "depth": 3, "ffn_width": 80, "max_length": 40},
    "vlnbert": {"vocab": VOCAB, "width": 32, "heads": 4, "depth": 3, "ffn_width": 80, "max_length": 40,
                "region_width": 24, "region_heads": 3, "region_depth": 2, "region_ffn_width": 40, "link_width": 28,
                "link_heads": 2, "word_links": (1, 2), "region_links": (0, 1)},
    "path_lstm": {"vocab": VOCAB, "embedding": 24, "width": 32},
    "whisper": {"vocab": VOCAB, "bands": 20, "width": 32, "heads": 4, "encoder_depth": 2, "decoder_depth": 3,
                "ffn_width": 80, "max_frames": 20, "max_length": 40},
}  # fmt: skip
CASES = [
    ("transformer", {}),
    ("transformer", {"dropout": 0.0, "norm": "pre", "activation": "gelu", "tie": "none"}),
    ("transformer", {"activation": "swish", "activation_dropout": 0.1, "positions": "learned", "output_bias": True}),
    ("transformer", {"attention_dropout": 0.1, "positions": "rotary"}),
    ("transformer", {"positions": "linear", "join_positions": "concatenate"}),
    ("transformer", {"encoder": "convolution", "kernel": 5}),
    ("seq2seq", {}),
    ("seq2seq", {"cell": "gru", "attention": "none", "bidirectional": False}),
    ("seq2seq", {"cell": "gru", "attention": "general", "encoder_depth": 2, "decoder_depth": 2}),
    ("seq2seq", {"cell": "rnn", "attention": "dot", "encoder_depth": 3, "tie": "none", "bidirectional": False}),
    ("seq2seq", {"encoder": "convolution", "attention": "scaled_dot", "dropout": 0.0, "encoder_depth": 2}),
    ("seq2seq", {"attention": "none", "encoder_depth": 2, "decoder_depth": 2, "reverse_source": True}),
    ("seq2seq", {"attention": "none", "context": False, "first_state": "last", "cell": "gru", "bidirectional": False}),
    ("seq2seq", {"attention": "additive", "token_query": True, "first_state": "last"}),
    ("seq2seq", {"attention": "general", "token_query": True, "cell": "gru"}),
    ("t5", {}),
    ("t5", {"dropout": 0.0}),
    ("t5", V1_1),
    ("t5", {**V1_1, "dropout": 0.0, "head_width": 6}),
    ("gpt", {}),
    ("gpt", {"dropout": 0.0, "embedding_dropout": 0.0, "tie": False, "ffn_width": 50, "activation": "relu"}),
    ("gpt", {"attention_dropout": 0.1}),
    ("gpt", {**IGPT, "attention_dropout": 0.0}),
    ("gpt", LLAMA),
    ("gpt", {**LLAMA, "kv_heads": 2, "head_width": 10, "attention_bias": True, "ffn_width": 70}),
    ("lstm", {}),
    ("lstm", {"tie": False, "depth": 1}),
    ("lstm", {"input_dropout": 0.2, "layer_dropout": 0.2, "dropout": 0.2, "word_dropout": 0.1}),
    ("word2vec", {}),
    ("word2vec", {"kind": "cbow"}),
    ("elmo", {}),
    ("elmo", {"head": "classify", "labels": 3, "depth": 1, "highways": 0, "dropout": 0.0}),
    ("bert", {"head": "masked"}),
    (
        "bert",
        {"head": "masked", "embedding_width": 12, "shared_layers": True, "activation": "gelu_new", "dropout": 0.0},
    ),
    ("bert", {"head": "classify", "labels": 5, "attention_dropout": 0.0}),
    ("bert", {"head": "tags", "segments": 0, "pooler": False}),
    ("bert", {"head": "answer", "activation": "relu", "pooler": False}),
    ("bert", {**ESM2, "head": "masked", "max_length": 40}),
    ("vlnbert", {}),
    ("vlnbert", {"head": "pretraining", "attention_dropout": 0.0}),
    ("vlnbert", {"co_attention": False, "dropout": 0.0}),
    ("path_lstm", {}),
    ("whisper", {}),
    ("whisper", {"dropout": 0.1, "attention_dropout": 0.1, "activation": "relu"}),
]
BATCH, SOURCE, TARGET = 3, 17, 13


@pytest.fixture(params=CASES, ids=lambda case: "-".join([case[0], *map(str, case[1].values())]))
def case(request):
    """A model, its batch, and its planned costs."""
    name, changes = request.param
    torch.manual_seed(0)
    config = MODELS[name].config(**{**SIZES[name], **changes})
    source, target = torch.randint(VOCAB, (BATCH, SOURCE)), torch.randint(VOCAB, (BATCH, TARGET))
    real = torch.ones_like(source, dtype=torch.bool)
    words = torch.randint(VOCAB, (BATCH * TARGET, 11)).split([1, 6, 4], dim=1)
    steps = (torch.randn(BATCH, TARGET, 51, requires_grad=True), torch.randn(BATCH, TARGET, 11, requires_grad=True))
    there = torch.ones(BATCH, TARGET, dtype=torch.bool)
    batch = {
        "gpt": (target,), "lstm": (target,), "bert": (source, real), "elmo": (source, real),
        "vlnbert": (source, real, *steps, there), "path_lstm": (source, real, *steps, there),
        "whisper": (torch.randn(BATCH, SOURCE, 20), target),
        "word2vec": (words[0][:, 0], words[1], torch.ones_like(words[1], dtype=torch.bool), words[2]),
    }.get(name, (source, real, target))  # fmt: skip
    return MODELS[name].model(config).train(), batch, COSTS[name](config, SOURCE, TARGET)


def loss(model, batch):
    """A loss: the summed log-probability of some label."""
    answer = model(*batch)
    if isinstance(answer, Scores):
        return negative_sampling(*answer)
    if isinstance(answer, ElmoOutput) and answer.previous is not None:
        return sum(each.log_softmax(-1)[..., 0].sum() for each in answer[1:])
    if isinstance(answer, VilbertOutput | PathScore):
        heads = [getattr(answer, name, None) for name in ("word_logits", "region_logits", "match")]
        return answer.score.sum() + sum(each.log_softmax(-1)[..., 0].sum() for each in heads if each is not None)
    logits = answer if isinstance(answer, torch.Tensor) else answer.logits
    return logits.log_softmax(-1)[..., 0].sum()


def vectors(model, batch):
    """A function of the vectors that a loss over a vocabulary receives; any other loss unchanged."""
    predicts = getattr(model.config, "head", "language") in ("masked", "pretraining", "language")
    if not predicts or isinstance(model, Word2Vec | PathLstm):
        return loss(model, batch)
    answer = model(*batch, factored=True)
    if isinstance(answer, VilbertOutput):
        return answer.score.sum() + answer.region_logits.sum() + (answer.word_logits.hidden**2).sum()
    parts = [answer] if isinstance(answer, Factors) else [each for each in answer if isinstance(each, Factors)]
    return sum((part.hidden**2).sum() for part in parts)


def test_parameters_are_exact(case):
    model, _, costs = case
    assert costs.total.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_flops_are_those_torch_counts(case):
    model, batch, costs = case
    # torch's counter does not know the fused kernels of CPUs
    unfused = torch.backends.mkldnn.flags(enabled=False, allow_tf32=None), sdpa_kernel(SDPBackend.MATH)
    with unfused[0], unfused[1], FlopCounterMode(display=False) as counter:
        value = loss(model, batch)
        forward = counter.get_total_flops()
        value.backward()
    assert BATCH * costs.total.flops == forward
    assert 3 * BATCH * costs.total.flops == pytest.approx(counter.get_total_flops(), rel=0.02)


def test_activations_are_those_autograd_keeps(case):
    model, batch, costs = case
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    if isinstance(model, Seq2Seq | PathLstm):  # sentences of equal length use another kernel
        for mask in (each for each in batch if each.dtype == torch.bool):
            mask[0, -1] = False
    kept = {}  # by storage, so that views of one tensor count once; the tensor keeps its address from being reused

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        vectors(model, batch)
    measured = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    kernel = any(piece.kind == "lstm" for piece in costs.total.work)  # its workspace is padded to whole blocks
    assert 4 * BATCH * costs.total.kept == pytest.approx(measured, rel=0.2 if kernel else 0.1)


def test_matrices_are_those_the_recorder_sees(case):
    model, batch, costs = case
    if not costs.matrices:
        assert getattr(model, "cross", None) is None
        return
    with record(model) as looks, torch.no_grad():
        model.eval()(*batch)
    planned = {matrix.name: (BATCH, matrix.heads, matrix.queries, matrix.keys) for matrix in costs.matrices}
    assert planned == {name: tuple(weights.shape) for name, weights in looks.items()}
    assert all(matrix.entries == looks[matrix.name][0].numel() for matrix in costs.matrices)


def test_the_cache_is_what_the_decoder_state_holds(case):
    model, batch, costs = case
    if not hasattr(model, "start"):
        assert costs.sentence_cache == costs.hypothesis_cache == 0
        return
    model.eval()
    source = torch.ones(1, 1 if len(batch) == 1 else SOURCE, dtype=torch.long)  # a language model has no source
    with torch.inference_mode():
        state = model.start(batch[0][:1]) if batch[0].is_floating_point() else model.start(source, source > 0)
        for _ in range(TARGET):
            model.step(torch.ones(1, 1, dtype=torch.long), state)
    if hasattr(state, "caches"):
        sentence = sum(memory.k.numel() + memory.v.numel() for memory in getattr(state, "memories", ()))
        hypothesis = sum(2 * cache.k[:, :, : cache.length].numel() for cache in state.caches)
    elif isinstance(state, LstmState):
        sentence, hypothesis = 0, sum(layer.numel() for layer in state.layers)
    else:
        held = (state.source.memory, state.source.keys, state.source.summary)
        sentence = sum({part.data_ptr(): part.numel() for part in held}.values())  # keys may be the memory itself
        hypothesis = state.hidden.numel()
    assert (costs.sentence_cache, costs.hypothesis_cache) == (sentence, hypothesis)
