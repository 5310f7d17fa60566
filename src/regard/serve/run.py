"""Starting and stopping a server."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from regard.checkpoints.folder import is_sealed
from regard.errors import RegardError, UsageError
from regard.serve.app import create_app
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.temp_folders import remove_abandoned_temp_folders
from regard.serve.models.registry import ModelRegistry
from regard.serve.settings import ServeSettings
from regard.studies.demo import demo_folder

HURRY = 1.0  # seconds that whoever presses Ctrl-C twice waits at most for the batch in the works
BACKLOG = 2048  # connections that the system keeps until the server takes them


def run(models: Sequence[str], runs: Path, settings: ServeSettings) -> None:
    """Serve until interrupted or terminated; what was accepted is finished first."""
    signal.signal(signal.SIGTERM, _leave)  # uvicorn passes the signal on when it has finished
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs are started to ignore it
    registry = ModelRegistry(models, memory=settings.memory, device=settings.device, precision=settings.precision)
    jobs = TrainingJobs(runs, limit=settings.upload, on_finished=registry.add, on_removed=registry.remove)
    if not models and is_sealed(demo_folder()):
        registry.add(demo_folder())
    for name, folder in jobs.models().items():
        try:
            registry.add(folder, name)
        except RegardError as error:  # one damaged run must not keep the others from being served
            print(f"regard: warning: {name} is left out: {error}", file=sys.stderr)
    remove_abandoned_temp_folders()
    app = create_app(registry, jobs, settings)
    listening = listen(settings)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if settings.public and not settings.api_keys:
        deeds = "use its models, and train others on this machine" if settings.training else "use its models"
        remedy = "give --api-key KEY" + (" or --no-training" if settings.training else "")
        print(f"regard: warning: no API key is set: whoever reaches this server can {deeds}; {remedy}", file=sys.stderr)
    print(f"Regard is at http://{shown}:{port}  (stop with Ctrl-C)", file=sys.stderr, flush=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # believed by the guard, from the proxies that were named
        timeout_graceful_shutdown=math.ceil(settings.seconds),
        backlog=BACKLOG,
    )
    try:
        Server(config).run(sockets=[listening])
    finally:  # after a second Ctrl-C the engine is still at work
        if not app.state.engine.halt(HURRY):
            os._exit(128 + signal.SIGINT)  # a thread that computes must not outlive the interpreter


class Server(uvicorn.Server):
    """Uvicorn's, but silent about all that a second Ctrl-C interrupts."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        logging.getLogger("uvicorn.error").disabled = self.force_exit


def listen(settings: ServeSettings) -> socket.socket:
    """The listening socket: made here, so that a taken port is told in one line, and nobody comes too early."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cannot listen on {settings.host} port {settings.port}: {getattr(error, 'strerror', None) or error}; "
            "choose another with --host and --port"
        ) from None
    return listening


def _leave(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
