"""Processes that start in milliseconds: they are forked from one that has imported what training needs.

Importing it takes seconds, and the first optimiser imports `torch._dynamo`, which takes seconds more.
"""

import multiprocessing
from multiprocessing import forkserver

PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["regard.training.loop", "regard.cli.main", "regard.cli.train", "regard.training.tasks.translation"]
PRELOADED += ["torch._dynamo", "tensorboardX", "pytest"]


def start_server() -> None:
    """Start the process that forks, before a loader with workers starts one that has imported less."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
