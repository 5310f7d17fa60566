"""The attention core: one function, one module, one recorder.

Shape letters, used throughout the project:
    B batch    H heads    G key/value heads (G divides H)    Tq, Tk query and key lengths    K head width
    D model width    S sentences    W hypotheses per sentence    T length    V vocabulary
"""

from regard.attention.cache import GrowingCache, LayerCache, Slots, StaticCache
from regard.attention.core import Attend, attend, attention_weights
from regard.attention.multihead import MultiHeadAttention
from regard.attention.record import Looks, record
from regard.attention.scores import ScoredAttention

__all__ = [
    "Attend",
    "GrowingCache",
    "LayerCache",
    "Looks",
    "MultiHeadAttention",
    "ScoredAttention",
    "Slots",
    "StaticCache",
    "attend",
    "attention_weights",
    "record",
]
