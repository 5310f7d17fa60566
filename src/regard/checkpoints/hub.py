"""Download models named `hf:owner/name` from the Hugging Face hub; nothing else uses the network."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.errors import CheckpointError

PREFIX = "hf:"
WEIGHTS = ["*.safetensors", "*.bin"]
WANTED = [*WEIGHTS, "*.json", "*.spm", "*.model", "*.txt"]


def local_folder(name: str | Path) -> Path:
    """The folder itself, or the cached files of `hf:owner/name`, which are downloaded if they are missing."""
    if not str(name).startswith(PREFIX):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = str(name).removeprefix(PREFIX)
    try:
        cached = Path(snapshot_download(repository, allow_patterns=WANTED, local_files_only=True))
        if any(file for pattern in WEIGHTS for file in cached.glob(pattern)):  # otherwise a download was interrupted
            return cached
    except HFValidationError as error:
        raise CheckpointError(f"{name} is not a model name; write hf:owner/name ({error})") from None
    except (LocalEntryNotFoundError, FileNotFoundError):
        pass
    print(f"fetching {repository} from the Hugging Face hub ({', '.join(WANTED)})", file=sys.stderr)
    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise CheckpointError(
            f"cannot fetch {repository} from the Hugging Face hub: {reason}. Without a network, give a local folder"
        ) from None
