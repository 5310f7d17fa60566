"""Names that start with `hf:` are fetched from the Hugging Face hub; nothing else ever touches the network."""

from __future__ import annotations

import sys
from pathlib import Path

from regard.errors import CheckpointError

PREFIX = "hf:"
WANTED = ["*.json", "*.safetensors", "*.spm", "*.model", "*.txt", "*.bin"]


def local_folder(name: str | Path) -> Path:
    """The folder itself, or where the files of `hf:owner/name` are cached, fetched when they are not there yet."""
    if not str(name).startswith(PREFIX):
        return Path(name)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    repository = str(name).removeprefix(PREFIX)
    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError):
        print(f"fetching {repository} from the Hugging Face hub ({', '.join(WANTED)})", file=sys.stderr)
    except HFValidationError as error:
        raise CheckpointError(f"{name} is not a model name; write hf:owner/name ({error})") from None
    try:
        return Path(snapshot_download(repository, allow_patterns=WANTED))
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"cannot fetch {repository} from the Hugging Face hub: {reason}. Without a network, give a local folder"
        ) from None
