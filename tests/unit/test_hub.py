"""Models named hf:… are downloaded once, with a message; without a network the error says what is missing."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from regard.checkpoints.folder import local_folder
from regard.cli.main import run
from regard.errors import CheckpointError


class Hub:
    """A stand-in for the hub and its cache; `network` lets a download succeed."""

    def __init__(self, folder: Path, *, network: bool) -> None:
        self.folder, self.network, self.asked = folder, network, []

    def __call__(self, repository: str, *, allow_patterns: list[str], local_files_only: bool = False) -> str:
        self.asked.append((repository, local_files_only))
        if local_files_only and not self.folder.exists():
            raise LocalEntryNotFoundError("not in the cache")
        if not local_files_only:
            if not self.network:
                raise LocalEntryNotFoundError("no way out.\nDetails follow.")
            self.folder.mkdir(exist_ok=True)
            (self.folder / "model.safetensors").touch()
        return str(self.folder)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = Hub(tmp_path / "snapshot", network=True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    return made


def test_a_folder_never_asks_the_hub(hub: Hub) -> None:
    assert local_folder("runs/en-es") == Path("runs/en-es")
    assert hub.asked == []


def test_a_name_is_fetched_once_and_said_to_be(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert local_folder("hf:owner/name") == hub.folder
    assert "fetching owner/name" in capsys.readouterr().err
    assert local_folder("hf:owner/name") == hub.folder
    assert capsys.readouterr().err == ""
    assert hub.asked == [("owner/name", True), ("owner/name", False), ("owner/name", True)]


def test_a_download_that_was_cut_short_is_taken_up_again(hub: Hub) -> None:
    hub.folder.mkdir()
    local_folder("hf:owner/name")
    assert (hub.folder / "model.safetensors").exists()


def test_without_a_network_the_message_says_what_is_missing(hub: Hub) -> None:
    hub.network = False
    with pytest.raises(CheckpointError, match=r"cannot fetch owner/name .*: no way out\. .*local folder"):
        local_folder("hf:owner/name")


def test_the_command_line_offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(["translate", "hi", "-m", "hf:regard-tests/not-there"]) == 1
    assert "cannot fetch regard-tests/not-there" in capsys.readouterr().err
    assert run(["translate", "hi", "-m", "hf:a/b/c"]) == 1
    assert "hf:owner/name" in capsys.readouterr().err
