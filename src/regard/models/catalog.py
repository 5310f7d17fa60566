"""Every model by name. A new model is one more row, and other modules look models up here.

`inference/pipelines/catalog.py` is the second of the two tables: it describes the pipelines that run these models.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn

from regard.config import Config
from regard.models import (
    agentformer,
    bert,
    captioner,
    conformer,
    detector,
    elmo,
    evoformer,
    gpt,
    interactor,
    lstm,
    mvit,
    path_lstm,
    resnet,
    sagan,
    segmenter,
    seq2seq,
    sparse_autoencoder,
    swin,
    t5,
    transformer,
    vilbert,
    vit,
    vlnbert,
    whisper,
    word2vec,
)


class ModelEntry(NamedTuple):
    """One model: its classes, title and presets, the pipeline that runs it, and the tasks that train it."""

    config: type[Config]
    model: type[nn.Module]
    presets: dict[str, dict[str, Any]]
    title: str  # the usual name of the family
    pipeline: str  # key of the pipeline that runs it, unless its folder says otherwise
    tasks: tuple[str, ...]  # names of the tasks that train it, the usual one first
    vocabulary: Mapping[str, int] = {}  # tokens of the published models, by preset; "" is for all other presets


MODELS: dict[str, ModelEntry] = {
    "seq2seq": ModelEntry(
        seq2seq.Seq2SeqConfig, seq2seq.Seq2Seq, seq2seq.PRESETS, "Recurrent network", "translator", ("translation",)
    ),
    "transformer": ModelEntry(
        transformer.TransformerConfig, transformer.Transformer, transformer.PRESETS, "Transformer", "translator",
        ("translation",),
    ),
    "bert": ModelEntry(
        bert.BertConfig, bert.Bert, bert.PRESETS, "BERT", "text_encoder",
        ("masked", "classification", "tags", "answers"),
        {"": 30_522, "roberta": 50_265, "albert": 30_000, "esm2-8m": 33, "esm2-650m": 33},
    ),
    "gpt": ModelEntry(
        gpt.GptConfig, gpt.Gpt, gpt.PRESETS, "GPT", "language_model", ("language", "pixels"),
        {"": 50_257, "llama-7b": 32_000},
    ),
    "lstm": ModelEntry(lstm.LstmConfig, lstm.Lstm, lstm.PRESETS, "LSTM", "language_model", ("language",)),
    "word2vec": ModelEntry(
        word2vec.Word2VecConfig, word2vec.Word2Vec, word2vec.PRESETS, "Word vectors", "word_vectors", ("words",)
    ),
    "elmo": ModelEntry(
        elmo.ElmoConfig, elmo.Elmo, elmo.PRESETS, "ELMo", "text_encoder", ("language", "classification")
    ),
    "t5": ModelEntry(
        t5.T5Config, t5.T5, t5.PRESETS, "T5", "text_to_text", ("prompts", "spans", "translation"), {"": 32_128}
    ),
    "resnet": ModelEntry(
        resnet.ResnetConfig, resnet.Resnet, resnet.PRESETS, "Residual network", "image_classifier", ("images",)
    ),
    "vit": ModelEntry(vit.VitConfig, vit.Vit, vit.PRESETS, "Vision Transformer", "image_classifier", ("images",)),
    "swin": ModelEntry(swin.SwinConfig, swin.Swin, swin.PRESETS, "Swin Transformer", "image_classifier", ("images",)),
    "mvit": ModelEntry(
        mvit.MvitConfig, mvit.Mvit, mvit.PRESETS, "Multiscale Transformer", "image_classifier", ("images",)
    ),
    "segmenter": ModelEntry(
        segmenter.SegmenterConfig, segmenter.Segmenter, segmenter.PRESETS, "Segmenter", "image_segmenter",
        ("segmentation",),
    ),
    "captioner": ModelEntry(
        captioner.CaptionerConfig, captioner.Captioner, captioner.PRESETS, "Captioner", "image_captioner",
        ("captioning",),
    ),
    "conformer": ModelEntry(
        conformer.ConformerConfig, conformer.Conformer, conformer.PRESETS, "Conformer", "speech_recognizer",
        ("speech",), {"": 1024},
    ),
    "vlnbert": ModelEntry(
        vlnbert.VlnbertConfig, vilbert.Vilbert, vlnbert.PRESETS, "VLN-BERT", "navigator", ("paths", "path_pairs"),
        {"": 30_522},
    ),
    "path_lstm": ModelEntry(
        path_lstm.PathLstmConfig, path_lstm.PathLstm, path_lstm.PRESETS, "Path LSTM", "navigator", ("paths",)
    ),
    "agentformer": ModelEntry(
        agentformer.AgentFormerConfig, agentformer.AgentFormer, agentformer.PRESETS, "AgentFormer", "forecaster",
        ("forecasting", "forecast_sampler"),
    ),
    "detector": ModelEntry(
        detector.DetectorConfig, detector.Detector, detector.PRESETS, "Faster R-CNN", "object_detector", ("detection",)
    ),
    "evoformer": ModelEntry(
        evoformer.EvoformerConfig, evoformer.Evoformer, evoformer.PRESETS, "Evoformer", "structure_predictor",
        ("folding",),
    ),
    "sagan": ModelEntry(
        sagan.SaganConfig, sagan.Sagan, sagan.PRESETS, "SAGAN", "image_generator", ("gan",)
    ),
    "vilbert": ModelEntry(
        vilbert.VilbertConfig, vilbert.Vilbert, vilbert.PRESETS, "ViLBERT", "vision_language",
        ("vision_language", "retrieval", "pointing", "questions"), {"": 30_522},
    ),
    "interactor": ModelEntry(
        interactor.InteractorConfig, interactor.Interactor, interactor.PRESETS, "Protein pairs", "interactions",
        ("interactions",),
    ),
    "whisper": ModelEntry(
        whisper.WhisperConfig, whisper.Whisper, whisper.PRESETS, "Whisper", "whisper_transcriber", (),
        {"": 51_865, "large-v3": 51_866, "turbo": 51_866},
    ),
    "sparse_autoencoder": ModelEntry(
        sparse_autoencoder.SparseAutoencoderConfig, sparse_autoencoder.SparseAutoencoder, sparse_autoencoder.PRESETS,
        "Sparse autoencoder", "feature_dictionary", ("dictionary",),
    ),
}  # fmt: skip


def models_for(task: str) -> tuple[str, ...]:
    """The names of the models that a training task can train."""
    return tuple(name for name, entry in MODELS.items() if task in entry.tasks)


def models_run_by(pipeline: str) -> tuple[str, ...]:
    """The names of the models that a pipeline runs."""
    return tuple(name for name, entry in MODELS.items() if entry.pipeline == pipeline)
