"""Model folders: written atomically, and verified when they are read."""

from regard.checkpoints.folder import complete_checkpoints, newest_complete, publish, resolve, verify, write_folder
from regard.checkpoints.huggingface import export_model, model_card
from regard.checkpoints.models import LoadedModel, load_model, save_model, write_model
from regard.checkpoints.weights import read_tensors, write_tensors

__all__ = [
    "LoadedModel",
    "complete_checkpoints",
    "export_model",
    "load_model",
    "model_card",
    "newest_complete",
    "publish",
    "read_tensors",
    "resolve",
    "save_model",
    "verify",
    "write_folder",
    "write_model",
    "write_tensors",
]
