"""Recurrent networks: the vanilla RNN, the LSTM (Hochreiter 1997) and the GRU (Cho 2014).

The cells are the equations. `Recurrent` owns the parameters and runs them on torch's fused kernels or, with
`fused=False`, step by step through the cells; both give the same numbers.

Regularisation is as in the AWD-LSTM (Merity et al. 2018): `weight_drop` drops entries of the recurrent matrices
(DropConnect), `LockedDropout` uses one mask for all steps of a sequence (Gal & Ghahramani 2016), `WordDropout` drops
all occurrences of a word.

A state is one tensor [N L B D]: N parts (the LSTM has hidden and cell, the others only hidden), one row for each of the
L layers and directions. Part 0 is always the hidden state.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from regard.attention.dropout import drop
from regard.attention.places import Computed, Result
from regard.errors import UsageError

Kind = Literal["rnn", "lstm", "gru"]
Parts = tuple[Float[Tensor, "B D"], ...]  # the state of one cell: (hidden,) or (hidden, cell)


@dataclass(frozen=True, eq=False)
class Cell(ABC):
    """h_t = f_W(x_t, h_{t-1}) of one layer in one direction, with the parameters of another module."""

    of_input: Float[Tensor, "gates I"]
    of_state: Float[Tensor, "gates D"]
    input_bias: Float[Tensor, " gates"]
    state_bias: Float[Tensor, " gates"]

    gates: ClassVar[int]
    parts: ClassVar[int] = 1

    @property
    def matrix(self) -> Float[Tensor, "gates inputs"]:
        """The single matrix that multiplies [x_t, h_{t-1}], as in the lectures."""
        return torch.cat([self.of_input, self.of_state], dim=1)

    def project(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B gates"]:
        """The part of the step that does not depend on the state; all time steps can be projected at once."""
        return functional.linear(x, self.of_input, self.input_bias)

    def recall(self, hidden: Float[Tensor, "*B D"]) -> Float[Tensor, "*B gates"]:
        """The part of the step that depends on the state."""
        return functional.linear(hidden, self.of_state, self.state_bias)

    @abstractmethod
    def update(self, projected: Float[Tensor, "B gates"], state: Parts) -> Parts:
        """The next state from a projected input and the previous state."""

    def gate_values(self, projected: Float[Tensor, "*B gates"], hidden: Float[Tensor, "*B D"]) -> tuple[Tensor, ...]:
        """The values of the gates [*B D] that a step opens, in the order of their rows; of a plain RNN, none."""
        return ()

    def __call__(self, x: Float[Tensor, "B I"], state: Parts) -> Parts:
        return self.update(self.project(x), state)


class RNNCell(Cell):
    """h_t = tanh(W [x_t, h_{t-1}] + b)."""

    gates = 1

    def update(self, projected: Float[Tensor, "B gates"], state: Parts) -> Parts:
        return (torch.tanh(projected + self.recall(state[0])),)


class LSTMCell(Cell):
    """c_t = f ⊙ c_{t-1} + i ⊙ g, h_t = o ⊙ tanh(c_t): f erases, i writes g, o reveals. Rows of W: i, f, g, o."""

    gates = 4
    parts = 2

    def update(self, projected: Float[Tensor, "B gates"], state: Parts) -> Parts:
        hidden, cell = state
        i, f, g, o = (projected + self.recall(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    def gate_values(self, projected: Float[Tensor, "*B gates"], hidden: Float[Tensor, "*B D"]) -> tuple[Tensor, ...]:
        i, f, _, o = (projected + self.recall(hidden)).chunk(4, dim=-1)
        return torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)


class GRUCell(Cell):
    """h_t = u ⊙ h_{t-1} + (1 - u) ⊙ h̃_t, where the reset gate r hides the past from h̃_t. Rows of W: r, u, h̃."""

    gates = 3

    def update(self, projected: Float[Tensor, "B gates"], state: Parts) -> Parts:
        (hidden,) = state
        parts = [2 * hidden.shape[-1], hidden.shape[-1]]
        gates_of_input, new = projected.split(parts, dim=-1)
        gates_of_state, past = self.recall(hidden).split(parts, dim=-1)
        r, u = torch.sigmoid(gates_of_input + gates_of_state).chunk(2, dim=-1)
        candidate = torch.tanh(new + r * past)
        return (torch.lerp(candidate, hidden, u),)

    def gate_values(self, projected: Float[Tensor, "*B gates"], hidden: Float[Tensor, "*B D"]) -> tuple[Tensor, ...]:
        of_input, of_state = (each.chunk(3, dim=-1)[:2] for each in (projected, self.recall(hidden)))
        return tuple(torch.sigmoid(one + other) for one, other in zip(of_input, of_state, strict=True))


CELLS: dict[Kind, type[Cell]] = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}
KERNELS: dict[Kind, Callable[..., nn.RNNBase]] = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
FUSED: dict[Kind, Callable[..., tuple[Tensor, ...]]] = {"rnn": torch.rnn_tanh, "lstm": torch.lstm, "gru": torch.gru}
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # torch's names of a layer's parameters
# Devices where autocast to bfloat16 would run fused kernels in float16, in which small gradients vanish. On these the
# kernels run in the data type of their weights.
AUTOCAST_IS_HALF = ("cuda",)


class Recurrent(nn.Module):
    """A recurrent network of many layers in one or two directions over padded batches.

    Outputs at padding are zero, final states are those of the last real token, and the backward direction starts at the
    last real token: a sentence gives the same numbers alone and in a batch.
    """

    PLACES: ClassVar = {
        "states": Result(index=0),
        "gates": Computed(read=lambda module, args, options, output: module.gates(*args[:3], **options)),
    }

    def __init__(
        self,
        kind: Kind,
        input_width: int,
        width: int,
        depth: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
        fused: bool = True,
        weight_drop: float = 0.0,
    ):
        super().__init__()
        self.kind, self.input_width, self.width, self.depth = kind, input_width, width, depth
        self.directions = 2 if bidirectional else 1
        self.dropout, self.fused, self.weight_drop = dropout, fused, weight_drop
        self.kernel = KERNELS[kind](
            input_width,
            width,
            depth,
            batch_first=True,
            bidirectional=bidirectional,
            dropout=dropout if depth > 1 else 0.0,  # torch warns about a dropout between layers that do not exist
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Orthogonal recurrent matrices preserve gradients at first; a forget-gate bias of 1 preserves the cell."""
        for name, parameter in self.kernel.named_parameters():
            if name.startswith("weight_ih"):
                nn.init.xavier_uniform_(parameter)
            elif name.startswith("weight_hh"):
                for gate in parameter.data.split(self.width):
                    nn.init.orthogonal_(gate)
            else:
                nn.init.zeros_(parameter)
                if self.kind == "lstm" and name.startswith("bias_ih"):
                    nn.init.ones_(parameter.data[self.width : 2 * self.width])

    def cell(self, layer: int, direction: int = 0) -> Cell:
        """The equations of one layer (direction 1 reads backwards) over this module's parameters."""
        return CELLS[self.kind](*(getattr(self.kernel, f"{name}_{_suffix(layer, direction)}") for name in NAMES))

    def zero_state(self, like: Float[Tensor, "B *rest"]) -> Float[Tensor, "N L B D"]:
        """h_0 = 0 for a batch of the size, type and device of `like`."""
        return like.new_zeros(CELLS[self.kind].parts, self.depth * self.directions, like.shape[0], self.width)

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        state: Float[Tensor, "N L B D"] | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        truncate: int | None = None,
    ) -> tuple[Float[Tensor, "B T O"], Float[Tensor, "N L B D"]]:
        """Outputs of the last layer at every step, and the final states of all layers.

        `truncate` is truncated back-propagation through time: gradients are cut every `truncate` steps; outputs do not
        change.
        """
        state = self.zero_state(x) if state is None else state
        run = self._run_kernel if self.fused else self._run_cells
        if truncate is None:
            return run(x, state, mask)
        if truncate < 1 or self.directions == 2:
            raise UsageError(
                f"truncate={truncate} with {self.directions} direction(s): it must be at least 1, in a network of one "
                "direction, because whoever reads backwards has no past to cut off"
            )
        pieces = x.split(truncate, dim=1)
        masks = [None] * len(pieces) if mask is None else mask.split(truncate, dim=1)
        outputs: list[Tensor] = []
        for piece, piece_mask in zip(pieces, masks, strict=True):
            output, state = run(piece, state.detach() if outputs else state, piece_mask)
            outputs.append(output)
        return torch.cat(outputs, dim=1), state

    def step(
        self, x: Float[Tensor, "B I"], state: Float[Tensor, "N L B D"] | None = None
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "N L B D"]]:
        """One token of every sequence, for decoding."""
        if self.directions == 2:
            raise UsageError("a bidirectional network cannot go step by step; build it with bidirectional=False")
        output, state = self(x[:, None], state)
        return output[:, 0], state

    def gates(
        self,
        x: Float[Tensor, "B T I"],
        state: Float[Tensor, "N L B D"] | None = None,
        mask: Bool[Tensor, "B T"] | None = None,
        truncate: int | None = None,
    ) -> Float[Tensor, "B T L gates D"] | None:
        """The values of the gates of every layer and direction: i, f, o of an LSTM, r, u of a GRU; of an RNN, None.

        Fused kernels do not give them, so they are computed again from the states, by the equations of the cells.
        """
        if self.kind == "rnn":
            return None
        state, found = self.zero_state(x) if state is None else state, []
        for layer in range(self.depth):
            outputs = []
            for direction in range(self.directions):
                cell, initial = self.cell(layer, direction), state[:, layer * self.directions + direction].unbind()
                output, _ = unroll(cell, x, initial, mask, backward=direction == 1)
                first = initial[0][:, None]
                real = output if mask is None else torch.where(mask[..., None], output, first)
                before = [real[:, 1:], first] if direction == 1 else [first, real[:, :-1]]
                found.append(torch.stack(cell.gate_values(cell.project(x), torch.cat(before, dim=1)), dim=2))
                outputs.append(output)
            x = torch.cat(outputs, dim=-1)
        return torch.stack(found, dim=2)

    def _run_kernel(
        self, x: Float[Tensor, "B T I"], state: Float[Tensor, "N L B D"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B T O"], Float[Tensor, "N L B D"]]:
        if x.device.type in AUTOCAST_IS_HALF and torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                kind = next(self.kernel.parameters()).dtype
                return self._run_kernel(x.to(kind), state.to(kind), mask)
        initial = (state[0].contiguous(), state[1].contiguous()) if self.kind == "lstm" else state[0].contiguous()
        if self.training and self.weight_drop:
            return self._run_dropped(x, initial, mask)
        # cuDNN has gradients only in training mode; torch's own kernels also have them for frozen models.
        frozen = torch.is_grad_enabled() and not self.training
        with torch.backends.cudnn.flags(enabled=False) if frozen else nullcontext():
            return self._run_packed(x, state, initial, mask)

    def _run_packed(
        self,
        x: Float[Tensor, "B T I"],
        state: Float[Tensor, "N L B D"],
        initial: Tensor | tuple[Tensor, Tensor],
        mask: Bool[Tensor, "B T"] | None,
    ) -> tuple[Float[Tensor, "B T O"], Float[Tensor, "N L B D"]]:
        """The fused kernel over the real tokens alone; `initial` is `state` in the kernel's form."""
        if mask is None:
            output, final = self.kernel(x, initial)
            return output, _stack_parts(final)
        lengths = mask.sum(dim=1)
        # torch refuses to pack empty sequences, so they take one step, whose result is discarded.
        packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
        output, final = self.kernel(packed, initial)
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
        empty = (lengths == 0)[:, None]
        return output.masked_fill(empty[..., None], 0.0), torch.where(empty, state, _stack_parts(final))

    def _run_dropped(
        self, x: Float[Tensor, "B T I"], initial: Tensor | tuple[Tensor, Tensor], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B T O"], Float[Tensor, "N L B D"]]:
        """The fused kernel with dropped weights."""
        if mask is not None:
            raise UsageError("weight_drop trains on texts without padding; leave out the mask, or set it to 0")
        weights, kernel = list(self._thinned().values()), self.kernel
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous")  # they are copies
            output, *final = FUSED[self.kind](
                x, initial, weights, True, self.depth, kernel.dropout, True, kernel.bidirectional, True
            )
        return output, torch.stack(final)

    def _thinned(self) -> dict[str, Tensor]:
        """The parameters by name; in training, entries of the recurrent matrices are dropped."""
        return {
            name: drop(p, self.weight_drop) if self.training and name.startswith("weight_hh") else p
            for name, p in self.kernel.named_parameters()
        }

    def _run_cells(
        self, x: Float[Tensor, "B T I"], state: Float[Tensor, "N L B D"], mask: Bool[Tensor, "B T"] | None
    ) -> tuple[Float[Tensor, "B T O"], Float[Tensor, "N L B D"]]:
        finals, weights = [], self._thinned()
        for layer in range(self.depth):
            if layer > 0 and self.training:
                x = drop(x, self.dropout)
            outputs = []
            for direction in range(self.directions):
                initial = state[:, layer * self.directions + direction].unbind()
                cell = CELLS[self.kind](*(weights[f"{name}_{_suffix(layer, direction)}"] for name in NAMES))
                output, final = unroll(cell, x, initial, mask, backward=direction == 1)
                outputs.append(output)
                finals.append(torch.stack(final))
            x = torch.cat(outputs, dim=-1)
        return x, torch.stack(finals, dim=1)


class LockedDropout(nn.Module):
    """Dropout whose mask is the same at every step of a sequence."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        if not self.training or not self.share:
            return x
        return x * functional.dropout(x.new_ones(len(x), 1, x.shape[-1]), self.share)


class WordDropout(nn.Module):
    """Drops words of the vocabulary for one batch: the vectors of all their occurrences are zero."""

    def __init__(self, share: float):
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "B T D"], tokens: Int[Tensor, "B T"], vocabulary: int) -> Float[Tensor, "B T D"]:
        """`x` are the vectors of `tokens`, which are numbers below `vocabulary`."""
        if not self.training or not self.share:
            return x
        return x * functional.dropout(x.new_ones(vocabulary), self.share)[tokens, None]


def unroll(
    cell: Cell,
    x: Float[Tensor, "B T I"],
    state: Parts,
    mask: Bool[Tensor, "B T"] | None = None,
    backward: bool = False,
) -> tuple[Float[Tensor, "B T D"], Parts]:
    """Run one cell along a sequence; at padding the state does not change and the output is zero."""
    steps = list(enumerate(cell.project(x).unbind(1)))
    outputs: list[Tensor] = [x] * len(steps)
    for t, projected in reversed(steps) if backward else steps:
        following = cell.update(projected, state)
        if mask is not None:
            real = mask[:, t, None]
            following = tuple(torch.where(real, new, old) for new, old in zip(following, state, strict=True))
        state, outputs[t] = following, following[0]
    output = torch.stack(outputs, dim=1)
    return (output if mask is None else output.masked_fill(~mask[..., None], 0.0)), state


def reverse(x: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """The real tokens of each sequence in reverse order, with padding in place; this is its own inverse."""
    order: Int[Tensor, "1 T"] = torch.arange(x.shape[1], device=x.device)[None]
    mirrored = torch.where(mask, mask.sum(dim=1, keepdim=True) - 1 - order, order)
    return x.gather(1, mirrored[..., None].expand_as(x))


def _suffix(layer: int, direction: int) -> str:
    return f"l{layer}" + ("_reverse" if direction else "")


def _stack_parts(final: Tensor | Sequence[Tensor]) -> Float[Tensor, "N L B D"]:
    return final[None] if isinstance(final, Tensor) else torch.stack(list(final))
