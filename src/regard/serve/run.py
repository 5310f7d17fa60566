"""Start and stop a server process."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from regard.errors import RegardError, UsageError
from regard.families.translation.shipped import built_in_models
from regard.serve.app import create_app
from regard.serve.http.connections import TimedConnection
from regard.serve.jobs.runner import TrainingJobs
from regard.serve.jobs.temp_folders import remove_abandoned_temp_folders
from regard.serve.models.registry import ModelRegistry
from regard.serve.settings import ServeSettings

FORCED_EXIT_WAIT = 1.0  # seconds to wait for the running batch after a second Ctrl-C
OVERTIME = 4.0  # seconds after the grace period in which the server ends, whatever still runs
BACKLOG = 2048  # connections that the system queues until the server accepts them


def run(models: Sequence[str], runs: Path, settings: ServeSettings) -> None:
    """Serve until interrupted or terminated; accepted requests are finished first."""
    signal.signal(signal.SIGTERM, _exit_on_signal)  # uvicorn raises the signal again after its shutdown
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with SIGINT ignored
    registry = ModelRegistry(
        served_models(models), memory=settings.memory, device=settings.device, precision=settings.precision
    )
    jobs = TrainingJobs(runs, limit=settings.upload, on_finished=registry.add, on_removed=registry.remove)
    ids: dict[str, str] = {}
    for name, folder in jobs.run_folders.models().items():
        try:
            ids[name] = registry.add(folder, name)
        except RegardError as error:  # one damaged run must not prevent the server from starting
            print(f"regard: warning: {name} is left out: {error}", file=sys.stderr)
    for record in jobs.replacements():
        registry.put_before(ids.get(record.name, ""), record.base)
    remove_abandoned_temp_folders()
    app = create_app(registry, jobs, settings)
    listening = listen(settings)
    host, port = listening.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    if settings.public and not settings.api_keys:
        rights = "use its models, and train others on this machine" if settings.training else "use its models"
        remedy = "give --api-key KEY" + (" or --no-training" if settings.training else "")
        print(
            f"regard: warning: no API key is set: anyone who reaches this server can {rights}; {remedy}",
            file=sys.stderr,
        )
    print(f"Regard is at http://{url_host}:{port}  (stop with Ctrl-C)", file=sys.stderr, flush=True)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the guard reads them, from trusted proxies only
        timeout_graceful_shutdown=math.ceil(min(settings.grace, settings.seconds)),
        backlog=BACKLOG,
        http=TimedConnection,
    )
    server = Server(config, jobs, settings.grace + OVERTIME)
    try:
        server.run(sockets=[listening])
    finally:  # after a second Ctrl-C, or a long batch, the engine is still running
        if not app.state.engine.halt(FORCED_EXIT_WAIT):
            os._exit(128 + server.signal)  # a thread inside torch crashes when the interpreter is finalised under it


def served_models(named: Sequence[str]) -> Sequence[str]:
    """The models that were named, or the built-in ones."""
    return named or [model.name for model in built_in_models()]


class Server(uvicorn.Server):
    """Uvicorn's server, which ends in time, and without error logs for the requests that a second Ctrl-C interrupts."""

    def __init__(self, config: uvicorn.Config, jobs: TrainingJobs, deadline: float) -> None:
        super().__init__(config)
        self.jobs, self.deadline = jobs, deadline
        self.signal = int(signal.SIGINT)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self.signal = sig
            # A training saves while requests are finished. The timer ends the process also if a thread does not end.
            threading.Thread(target=self.jobs.close, daemon=True).start()
            timer = threading.Timer(self.deadline, os._exit, (128 + sig,))
            timer.daemon = True
            timer.start()
        super().handle_exit(sig, frame)
        logging.getLogger("uvicorn.error").disabled = self.force_exit


def listen(settings: ServeSettings) -> socket.socket:
    """Open the listening socket here, not in uvicorn, so that a port in use is a one-line error."""
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


def _exit_on_signal(signum: int, frame: FrameType | None) -> None:
    sys.exit(128 + signum)
