"""regard serve: the web page, and the LibreTranslate and OpenAI APIs."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from regard.verbs.options import Device, Precision, existing


def serve(
    model: Annotated[
        list[str], typer.Option("-m", "--model", help="Model folder or hf:owner/name; the first is the default one.")
    ] = [],  # noqa: B006 - typer's way to say "none given"
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 lets others in: set a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = 5000,
    runs: Annotated[Path | None, typer.Option(help="Where models trained from the page are kept.")] = None,
    api_key: Annotated[
        list[str], typer.Option("--api-key", help="A key that clients must send; also REGARD_API_KEYS, by commas.")
    ] = [],  # noqa: B006
    allowed_host: Annotated[
        list[str], typer.Option("--allowed-host", help="A name it is reached by, as behind a proxy: example.org.")
    ] = [],  # noqa: B006
    origin: Annotated[
        list[str], typer.Option("--origin", help="Another site whose pages may ask (CORS): https://example.org.")
    ] = [],  # noqa: B006
    trusted_proxy: Annotated[
        list[str], typer.Option("--trusted-proxy", help="Address of a proxy whose X-Forwarded-* are believed.")
    ] = [],  # noqa: B006
    root_path: Annotated[str, typer.Option(help="The path below which a proxy has it, such as /mt.")] = "",
    training: Annotated[bool, typer.Option("--training/--no-training", help="Whether clients may train.")] = True,
    max_runs: Annotated[int, typer.Option(help="Trainings kept; one more is refused until one is deleted.")] = 100,
    upload: Annotated[int, typer.Option(help="MiB of training data or of a document taken at once.")] = 256,
    document: Annotated[int, typer.Option(help="MiB of text and markup in a document, unpacked.")] = 16,
    uploads: Annotated[int, typer.Option(help="MiB of training data kept in all.")] = 4096,
    memory: Annotated[int, typer.Option(help="MiB of weights kept loaded; the longest unused leave first.")] = 4096,
    characters: Annotated[int, typer.Option(help="Longest text taken.")] = 10_000,
    seconds: Annotated[float, typer.Option(help="Longest time a request may take.")] = 60.0,
    grace: Annotated[float, typer.Option(help="Seconds to finish requests in when it is told to stop.")] = 8.0,
    queue: Annotated[int, typer.Option(help="Requests that may wait; one more is told to come back.")] = 256,
    per_key: Annotated[int, typer.Option(help="Requests a minute that each key may send; 0: any number.")] = 0,
    translation_memory: Annotated[
        list[str], typer.Option("--translation-memory", help="Earlier translations: TMX, TSV or other pairs.")
    ] = [],  # noqa: B006
    remember: Annotated[
        Path | None, typer.Option(help="JSONL file where answers and corrections are kept, and used from then on.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No access log.")] = False,
    device: Device = "cpu",
    precision: Precision = "fp32",
) -> None:
    """Serve a web page to translate, look, compare and train, and the LibreTranslate and OpenAI APIs.

    Nothing is fetched from anywhere. Without a model the built-in ones translate between en, es, pt, fr, de and it.

    Example: regard serve -m runs/en-es -m runs/en-de --port 5000
    """
    # Threads that spin while they wait are slow beside a training run or another server. Torch reads this when it is
    # loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    import platformdirs

    from regard.serve.run import run
    from regard.serve.settings import MIB, ServeSettings

    keys = [*api_key, *filter(None, os.environ.get("REGARD_API_KEYS", "").split(","))]
    settings = ServeSettings.parse({
        "host": host, "port": port, "api_keys": keys, "memory": memory, "characters": characters,
        "allowed_hosts": allowed_host, "origins": origin, "trusted_proxies": trusted_proxy, "root_path": root_path,
        "training": training, "runs": max_runs, "upload": upload * MIB, "uploads": uploads * MIB,
        "document": document * MIB, "per_key": per_key, "grace": grace,
        "seconds": seconds, "queue": queue, "device": device, "precision": precision,
        "remember": str(remember or ""),
        "memories": [str(existing(file)) for file in translation_memory],
        "body": max(ServeSettings().body, 8 * characters),  # large enough for the longest text, even if it is escaped
    })  # fmt: skip
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    logging.getLogger("regard.access").disabled = quiet
    run(model, runs or Path(platformdirs.user_data_dir("regard")) / "runs", settings)
