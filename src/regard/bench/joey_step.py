"""A training step of JoeyNMT (Kreutzer et al. 2019); `joey.py` runs this file with a Python that has JoeyNMT.

Nothing of Regard is imported. Every request is one line of JSON or text, and so is every response.
"""

import json
import os
import sys
import time
from importlib import import_module
from typing import Any, TextIO

import torch
from torch import Tensor, nn


class Vocabulary:
    """The attributes of a vocabulary that JoeyNMT's model uses: its size, and the ids of special tokens."""

    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()
    sep_index = None

    def __init__(self, size: int, pad: int):
        self.size = size
        self.pad_index = self.bos_index = self.eos_index = self.unk_index = pad

    def __len__(self) -> int:
        return self.size


def build(task: dict[str, Any]) -> Any:
    """Their model with our weights. `same_dropout` turns off their dropout inside attention and feed-forward layers,
    which the other engines do not have."""
    side = {
        "type": "transformer", "hidden_size": task["width"], "ff_size": task["ffn_width"], "num_heads": task["heads"],
        "dropout": task["dropout"], "layer_norm": "post", "activation": task["activation"],
        "embeddings": {"embedding_dim": task["width"], "scale": True, "dropout": task["dropout"]},
    }  # fmt: skip
    settings = {
        "encoder": {**side, "num_layers": task["encoder_depth"]},
        "decoder": {**side, "num_layers": task["decoder_depth"]},
        "tied_embeddings": True,
        "tied_softmax": True,
    }
    vocabulary = Vocabulary(task["vocabulary"], task["pad"])
    model = import_module("joeynmt.model").build_model(settings, vocabulary, vocabulary)
    model.load_state_dict(torch.load(task["weights"], weights_only=True))
    model.loss_function = ("crossentropy", 0.0)
    layers = import_module("joeynmt.transformer_layers")
    for module in model.modules() if task["same_dropout"] else ():
        if isinstance(module, layers.MultiHeadedAttention):
            module.dropout = nn.Identity()
        elif isinstance(module, layers.PositionwiseFeedForward):
            module.pwff_layer[2] = nn.Identity()
    return model


def serve(task: dict[str, Any], asked: TextIO, out: TextIO) -> None:
    """Write the loss of the batch, then train one step on it for every line that arrives."""
    torch.set_num_threads(task["threads"])
    model, pad = build(task), task["pad"]
    source, inputs, labels = (torch.tensor(task[name]) for name in ("source", "inputs", "labels"))
    batch = {
        "src": source, "src_mask": (source != pad)[:, None], "src_length": (source != pad).sum(1),
        "trg_input": inputs, "trg": labels, "trg_mask": (labels != pad)[:, None],
    }  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=task["lr"], fused=True)

    def loss() -> Tensor:
        total: Tensor = model(return_type="loss", **batch)[0]
        return total / (labels != pad).sum()

    with torch.inference_mode():
        model.eval()
        say(out, loss=loss().item(), used=time.process_time())
    model.train()
    for _ in asked:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()
        say(out, used=time.process_time())


def say(out: TextIO, **values: Any) -> None:
    print(json.dumps(values), file=out, flush=True)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file: its modules could hide a library of the same name
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout carries responses only; what the library prints goes to stderr
    try:
        serve(json.loads(sys.stdin.readline()), sys.stdin, answers)
    except Exception as error:
        say(answers, problem=f"{type(error).__name__}: {error}")
