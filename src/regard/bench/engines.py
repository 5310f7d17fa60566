"""The engines that `regard bench` compares on the same work: each loads its own form of the same weights.

An engine turns a `Task` into `Prepared`: `answer` computes the result, which is compared, and `run` is timed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention.multihead import MultiHeadAttention
from regard.bench.joey import Joey
from regard.checkpoints import load_model
from regard.data.batch import Batch, collate, pad_rows
from regard.device import multiplies_bf16
from regard.errors import UsageError
from regard.families.language.bert import Bert
from regard.families.language.text_reader import Readers
from regard.families.translation.transformer import Transformer
from regard.layers.blocks import ACTIVATIONS, DecoderLayer, EncoderLayer
from regard.optional import needed
from regard.search.search import search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.speculative import decoding_model
from regard.search.start import from_prompt, from_source
from regard.training.losses import cross_entropy
from regard.training.optim import adamw, guarded_step

EXTRA = "bench"
LR = 1e-4
OURS, THEIRS, CTRANSLATE2 = "regard", "huggingface", "ctranslate2"  # the folders of a task
Answer = list[list[int]] | list[float]  # tokens, or numbers that should be nearly equal


@dataclass(frozen=True)
class Task:
    """The input of every engine: folders with the same weights, the rows to read, and how to decode."""

    folder: Path
    rows: list[list[int]]  # token ids of sources, prompts or texts
    beam: int
    length: int  # length of an answer: exactly this, or at most
    exactly: bool
    vocabulary: Vocabulary
    joeynmt: str = ""  # path of a Python that has JoeyNMT

    @property
    def settings(self) -> SearchSettings:
        return SearchSettings(beam=self.beam, max_length=self.length, min_length=self.length if self.exactly else 0)


class Prepared(NamedTuple):
    """An engine that has loaded its model."""

    answer: Callable[[], Answer]
    run: Callable[[], object]
    used: Callable[[], float] = time.process_time  # CPU seconds so far


Engine = Callable[[Task], Prepared]


def _decode(task: Task, precision: str = "fp32", *, prompts: bool = False) -> Prepared:
    """Our search, from sources or from prompts."""
    model, (source, mask) = decoding_model(_ours(task), precision, task.vocabulary.end), _padded(task)

    def answer() -> Answer:
        if prompts:
            start = from_prompt(model, source, mask, task.settings)
        else:
            start = from_source(model, source, mask, task.settings, task.vocabulary.start)
        return [best.tokens for best, *_ in search(model, start, task.settings, task.vocabulary)]

    return Prepared(answer, answer)


def _translate_transformers(task: Task) -> Prepared:
    model, (source, mask) = _theirs(task, "MarianMTModel"), _padded(task)
    return _generating(task, model, source, mask, skipped=1)


def _translate_ctranslate2(task: Task, compute_type: str = "float32") -> Prepared:
    library = needed("ctranslate2", extra=EXTRA)
    model = library.Translator(
        str(task.folder / CTRANSLATE2), compute_type=compute_type, intra_threads=torch.get_num_threads()
    )
    rows = [[str(token) for token in row[:-1]] for row in task.rows]  # CTranslate2 adds the end token itself
    lengths = {"max_decoding_length": task.length, "min_decoding_length": task.length if task.exactly else 1}

    def answer() -> Answer:
        found = model.translate_batch(rows, beam_size=task.beam, **lengths)
        return [[int(piece) for piece in each.hypotheses[0]] for each in found]

    return Prepared(answer, answer)


def _generate_transformers(task: Task) -> Prepared:
    model, (source, mask) = _theirs(task, "AutoModelForCausalLM"), _padded(task, left=True)
    return _generating(task, model, source, mask, skipped=source.shape[1])


def _train(task: Task, precision: str = "fp32") -> Prepared:
    if precision == "bf16" and not multiplies_bf16(torch.device("cpu")):
        raise UsageError("this processor has no bf16 arithmetic: a step would take a hundred times as long")
    return _training(task, _ours(task), precision)


def _train_torch(task: Task) -> Prepared:
    return _training(task, TorchTransformer(_ours(task)))


def _train_transformers(task: Task) -> Prepared:
    model, batch = _theirs(task, "MarianMTModel"), _pairs(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, fused=True)
    labels = batch.labels.masked_fill(~batch.labels_mask, -100)  # positions that their loss ignores

    def loss() -> Tensor:
        return model(input_ids=batch.source, attention_mask=batch.source_mask.long(), labels=labels).loss

    return Prepared(lambda: _measured(model, loss), lambda: _step(model, loss, optimizer, optimizer.step))


def _train_joeynmt(task: Task, same_dropout: bool = True) -> Prepared:
    joey = Joey(task.joeynmt, _ours(task), _pairs(task), task.folder, LR, same_dropout=same_dropout)
    return Prepared(lambda: [joey.loss], joey.step, lambda: joey.used)


def _encode(task: Task) -> Prepared:
    tokens, mask = _padded(task)
    reader: Any = Readers(_ours(task)).of(tokens)
    return _encoding(lambda: reader(tokens, mask).hidden, mask)


def _encode_torch(task: Task) -> Prepared:
    reference, (tokens, mask) = TorchBert(_ours(task)).eval(), _padded(task)
    return _encoding(lambda: reference(tokens, mask), mask)


def _encode_transformers(task: Task) -> Prepared:
    model, (tokens, mask) = _theirs(task, "AutoModel"), _padded(task)
    return _encoding(lambda: model(input_ids=tokens, attention_mask=mask.long()).last_hidden_state, mask)


ENGINES: dict[str, dict[str, Engine]] = {
    "translate": {
        "regard": _decode,
        "regard fp16": partial(_decode, precision="fp16"),
        "regard int8": partial(_decode, precision="int8"),
        "transformers": _translate_transformers,
        "ctranslate2": _translate_ctranslate2,
        "ctranslate2 int8": partial(_translate_ctranslate2, compute_type="int8"),
    },
    "train": {
        "regard": _train,
        "regard bf16": partial(_train, precision="bf16"),
        "transformers": _train_transformers,
        "joeynmt": _train_joeynmt,
        "joeynmt as it is": partial(_train_joeynmt, same_dropout=False),
        "torch.nn": _train_torch,
    },
    "generate": {
        "regard": partial(_decode, prompts=True),
        "regard fp16": partial(_decode, precision="fp16", prompts=True),
        "regard int8": partial(_decode, precision="int8", prompts=True),
        "transformers": _generate_transformers,
    },
    "encode": {"regard": _encode, "transformers": _encode_transformers, "torch.nn": _encode_torch},
}


def _ours(task: Task) -> Any:
    return load_model(task.folder / OURS).model


def _theirs(task: Task, kind: str) -> Any:
    library = needed("transformers", extra=EXTRA)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    library.utils.logging.disable_progress_bar()
    return getattr(library, kind).from_pretrained(task.folder / THEIRS).eval()


def _padded(task: Task, left: bool = False) -> tuple[Tensor, Tensor]:
    """The rows of a task as one tensor, and which of its tokens are real."""
    if not left:
        return pad_rows(task.rows, task.vocabulary.pad)
    tokens, mask = pad_rows([row[::-1] for row in task.rows], task.vocabulary.pad)
    return tokens.flip(1), mask.flip(1)


def _generating(task: Task, model: Any, source: Tensor, mask: Tensor, skipped: int) -> Prepared:
    """transformers' `generate` with the settings of our search; the first `skipped` tokens are dropped from its
    answers."""
    vocabulary = task.vocabulary
    options = {
        "num_beams": task.beam, "do_sample": False, "length_penalty": 1.0, "forced_eos_token_id": None,
        "max_new_tokens": task.length, "max_length": None, "min_new_tokens": task.length if task.exactly else None,
        "bad_words_ids": [[token] for token in vocabulary.forbidden] or None,
        "pad_token_id": vocabulary.pad, "eos_token_id": vocabulary.end,
    }  # fmt: skip

    @torch.inference_mode()
    def answer() -> Answer:
        rows = model.generate(input_ids=source, attention_mask=mask.long(), **options)[:, skipped:].tolist()
        return [row[: row.index(vocabulary.end)] if vocabulary.end in row else row for row in rows]

    return Prepared(answer, answer)


def _training(task: Task, model: nn.Module, precision: str = "fp32") -> Prepared:
    batch = _pairs(task)
    options = {"inputs_mask": batch.labels_mask, "factored": True} if isinstance(model, Transformer) else {}
    optimizer = adamw(model.parameters(), betas=(0.9, 0.999), weight_decay=0.01)

    def loss() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            logits = model(batch.source, batch.source_mask, batch.inputs, **options)
            return cross_entropy(logits, batch.labels, batch.labels_mask) / batch.tokens

    def step() -> None:
        _step(model, loss, optimizer, lambda: guarded_step(optimizer, LR, torch.zeros(())))

    return Prepared(lambda: _measured(model, loss), step)


def _pairs(task: Task) -> Batch:
    """Sources, and targets of the same lengths: the reversed sources."""
    ends = task.vocabulary
    return collate(task.rows, [[*row[-2::-1], ends.end] for row in task.rows], pad=ends.pad, start=ends.start)


@torch.inference_mode()
def _measured(model: nn.Module, loss: Callable[[], Tensor]) -> Answer:
    model.eval()
    return [loss().item()]


def _step(
    model: nn.Module, loss: Callable[[], Tensor], optimizer: torch.optim.Optimizer, step: Callable[[], object]
) -> None:
    model.train()
    loss().backward()
    step()
    optimizer.zero_grad()


def _encoding(run: Callable[[], Tensor], mask: Tensor) -> Prepared:
    run = torch.inference_mode()(run)
    return Prepared(lambda: run()[mask].mean(1).tolist(), run)


# Regard's weights in torch's own layers


class TorchTransformer(nn.Module):
    """A Transformer (post-norm, attention encoder) with torch's own layers; the embeddings are Regard's."""

    def __init__(self, model: Transformer):
        super().__init__()
        c = model.config
        self.model = model
        sizes = c.width, c.heads, c.ffn_width, c.dropout, ACTIVATIONS[c.activation]
        reader = nn.TransformerEncoderLayer(*sizes, batch_first=True)
        writer = nn.TransformerDecoderLayer(*sizes, batch_first=True)
        self.encoder = nn.TransformerEncoder(reader, c.encoder_depth, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(writer, c.decoder_depth)
        assert isinstance(model.encoder, nn.ModuleList)
        for ours, theirs in ((model.encoder, self.encoder), (model.decoder, self.decoder)):
            for layer, other in zip(ours, theirs.layers, strict=True):
                copy_layer(layer, other)
        del self.model.encoder, self.model.decoder

    def forward(
        self, source: Int[Tensor, "B S"], mask: Bool[Tensor, "B S"], inputs: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        model = self.model
        padding, causal = ~mask, nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        memory = self.encoder(model.embed_source(source), src_key_padding_mask=padding)
        x = model.embed_target(inputs, 0)
        x = self.decoder(x, memory, tgt_mask=causal, tgt_is_causal=True, memory_key_padding_mask=padding)
        return model.predict(x)


class TorchBert(nn.Module):
    """A BERT with torch's own layers."""

    def __init__(self, model: Bert):
        super().__init__()
        c = model.config
        self.model = model
        layer = nn.TransformerEncoderLayer(
            c.width, c.heads, c.ffn_width, c.dropout, ACTIVATIONS[c.activation], c.norm_eps, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, c.depth, enable_nested_tensor=False)
        for ours, theirs in zip(model.encoder, self.encoder.layers, strict=True):
            copy_layer(ours, theirs)
        del self.model.encoder

    def forward(self, tokens: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.encoder(self.model.embed(tokens), src_key_padding_mask=~mask)


def copy_layer(ours: nn.Module, theirs: Any) -> None:
    """Put the weights of one of our layers into torch's own."""
    assert isinstance(ours, EncoderLayer | DecoderLayer)
    _copy_attention(ours.attention, theirs.self_attn)
    norms = [ours.after_attention, ours.after_feed_forward]
    if isinstance(ours, DecoderLayer):
        _copy_attention(ours.cross, theirs.multihead_attn)
        norms.insert(1, ours.after_cross)
    theirs.linear1.load_state_dict(ours.feed_forward.up.state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward.down.state_dict())
    for number, residual in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(residual.norm.state_dict())


def _copy_attention(ours: MultiHeadAttention, theirs: nn.MultiheadAttention) -> None:
    projections = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())
