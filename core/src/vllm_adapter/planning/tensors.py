"""A model's tensors by shape, and their bytes, plain or as a quantised checkpoint packs them.

>>> gate = TensorGroup("layers.{layer}.mlp.gate_proj", (14336, 4096), range(32))
>>> gate.elements, gate.bytes("bfloat16")
(1879048192, 3758096384)
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from vllm_adapter.planning.dtypes import bytes_of

Split = Literal["column", "row", "vocab", "kv", "experts", "none"]
"""How ranks of a tensor-parallel group share a tensor; "kv": by KV heads, "none": each has all."""


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors of one shape, [rows, columns] of a product or [size].

    `name` has `{layer}` and `{expert}` where there is one for each of `layers` and `experts`.
    `linear`: a product that a quantised checkpoint packs; `dtype` is set where it is the same
    whatever the model's is.
    """

    name: str
    shape: tuple[int, ...]
    layers: Sequence[int] = field(default=(0,))
    experts: int = 1
    linear: bool = True
    split: Split = "none"
    dtype: str | None = None
    product: bool = False
    """A product that is computed and never packed: the output head, a router."""

    @property
    def count(self) -> int:
        """How many tensors."""
        return len(self.layers) * self.experts

    @property
    def one(self) -> int:
        """Elements of one tensor."""
        return math.prod(self.shape)

    @property
    def elements(self) -> int:
        """Elements of all."""
        return self.count * self.one

    def bytes(self, dtype: str) -> int:
        """Bytes of all in a dtype, unpacked."""
        return self.count * bytes_of(self.one, self.dtype or dtype)

    def names(self) -> Iterator[str]:
        """The name of each."""
        for layer in self.layers:
            for expert in range(self.experts):
                yield self.name.format(layer=layer, expert=expert)


@dataclass(frozen=True, slots=True)
class WeightPacking:
    """How a quantised checkpoint keeps a product [rows, columns].

    `dtype` is that of a weight's element; `block` (rows, columns) is what shares a scale, where 0
    means all; `zeros` is whether each scale has a packed zero point, `index` whether each column
    has an int32 group number, `shape` whether two int64 with the shape stand beside it. `ignored`
    are names and patterns (`re:...`) of products that stay as they are.
    """

    method: str
    dtype: str
    block: tuple[int, int]
    scale_dtype: str
    zeros: bool = False
    index: bool = False
    shape: bool = False
    ignored: tuple[str, ...] = ()

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of one packed product with its scales."""
        rows, columns = shape
        high, wide = (size or whole for size, whole in zip(self.block, shape, strict=True))
        scales = -(-rows // high) * -(-columns // wide)
        total = bytes_of(rows * columns, self.dtype) + bytes_of(scales, self.scale_dtype)
        if self.zeros:
            total += bytes_of(scales, self.dtype)
        if self.index:
            total += bytes_of(columns, "int32")
        return total + (2 * 8 if self.shape else 0)

    def keeps(self, name: str) -> bool:
        """Whether a product of that name is not packed."""
        return any(_named(rule, name) for rule in self.ignored)

    def all_bytes(self, group: TensorGroup, dtype: str) -> int:
        """Bytes of a group, in which `dtype` is that of what is not packed."""
        if not group.linear or len(group.shape) != 2:
            return group.bytes(dtype)
        packed = self.bytes_of(group.shape)
        if not self.ignored:
            return group.count * packed
        kept = sum(1 for name in group.names() if self.keeps(name))
        return (group.count - kept) * packed + kept * bytes_of(group.one, dtype)


_PREFIX: Final = re.compile(r"^(model\.|language_model\.)+")


def _named(rule: str, name: str) -> bool:
    """Whether a name of a list stands for a tensor: by pattern, or by its module or one above."""
    if rule.startswith("re:"):
        return (
            re.match(rule[3:], name) is not None or re.match(rule[3:], f"model.{name}") is not None
        )
    module = _PREFIX.sub("", rule)
    return name == module or name.startswith(f"{module}.")
