"""Every model by name: its configuration, its class, its presets. A new model is one more row."""

from typing import Any, NamedTuple

from torch import nn

from regard.config import Config
from regard.models import (
    bert,
    elmo,
    gpt,
    lstm,
    mvit,
    resnet,
    sagan,
    segmenter,
    seq2seq,
    swin,
    t5,
    transformer,
    vit,
    word2vec,
)


class Entry(NamedTuple):
    """What the rest of the project needs to build a model it only knows by name."""

    config: type[Config]
    model: type[nn.Module]
    presets: dict[str, dict[str, Any]]


MODELS: dict[str, Entry] = {
    "seq2seq": Entry(seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq, seq2seq.PRESETS),
    "transformer": Entry(transformer.TransformerConfig, transformer.Transformer, transformer.PRESETS),
    "bert": Entry(bert.BertConfig, bert.Bert, bert.PRESETS),
    "gpt": Entry(gpt.GptConfig, gpt.Gpt, gpt.PRESETS),
    "lstm": Entry(lstm.LstmConfig, lstm.Lstm, lstm.PRESETS),
    "word2vec": Entry(word2vec.Word2VecConfig, word2vec.Word2Vec, word2vec.PRESETS),
    "elmo": Entry(elmo.ElmoConfig, elmo.Elmo, elmo.PRESETS),
    "t5": Entry(t5.T5Config, t5.T5, t5.PRESETS),
    "resnet": Entry(resnet.ResnetConfig, resnet.Resnet, resnet.PRESETS),
    "vit": Entry(vit.VitConfig, vit.Vit, vit.PRESETS),
    "swin": Entry(swin.SwinConfig, swin.Swin, swin.PRESETS),
    "mvit": Entry(mvit.MvitConfig, mvit.Mvit, mvit.PRESETS),
    "segmenter": Entry(segmenter.SegmenterConfig, segmenter.Segmenter, segmenter.PRESETS),
    "sagan": Entry(sagan.SaganConfig, sagan.Sagan, sagan.PRESETS),
}
