"""Ending a run cleanly after a signal, and finding the first module whose output is not finite."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import RegardError

Poll = Callable[[], None]  # called wherever work can stop; raises if a signal has come
T = TypeVar("T")


def polled(items: Iterable[T], poll: Poll) -> Iterator[T]:
    """The items as they are; work can stop before each."""
    for item in items:
        poll()
        yield item


class SignalError(RegardError):
    """A signal ended the run. The exit code is the shell's code for that signal (130, 143)."""

    def __init__(self, signum: int, kept: str) -> None:
        super().__init__(signum, kept)  # the plain arguments, since the error may be pickled for other ranks
        self.exit_code = 128 + signum

    def __str__(self) -> str:
        return f"{signal.Signals(self.args[0]).name} received; {self.args[1]}"


class Signals:
    """Records SIGINT and SIGTERM until `check` is called.

    The handler does not raise: the exception could appear inside a library that catches all exceptions and continues.
    A second signal of the same kind ends the process as usual.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self.trained = False  # whether a checkpoint has anything to save
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for signum in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[signum] = signal.signal(signum, self._handle)
            except ValueError:  # only the main thread can set handlers; in other threads signals are not handled
                break
        return self

    def __exit__(self, *error: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def told(self) -> None:
        """Record that another rank has received a signal."""
        self.received = self.received or signal.SIGTERM

    def check(self) -> None:
        """Raise if a signal has come."""
        if self.received is not None:
            saved = "what was trained is saved; continue with --resume"
            raise SignalError(self.received, saved if self.trained else "nothing had been trained yet")

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)
        self.received = signum


class _FoundError(Exception):
    """Ends the forward pass at the first bad module."""


def first_bad_module(model: nn.Module, forward_backward: Callable[[], None]) -> str:
    """Repeat a step with hooks, and name the first module output, or else the first gradient, that is not finite."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"the weights {name} are not finite"
    handles = [
        module.register_forward_hook(_hook(name or type(model).__name__)) for name, module in model.named_modules()
    ]
    try:
        forward_backward()
    except _FoundError as found:
        return f"the output of module {found} is not finite"
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not _finite(parameter.grad):
            return f"all outputs are finite, but the gradient of {name} is not"
    return "a second pass over the same sentences was finite"


def _hook(name: str) -> Callable[[nn.Module, Any, Any], None]:
    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        if not _finite(output):
            raise _FoundError(name)

    return check


def _finite(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(torch.isfinite(value).all())
    if isinstance(value, (tuple, list)):
        return all(_finite(item) for item in value)
    return True
