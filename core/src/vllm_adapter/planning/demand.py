"""What a model needs: bytes of weights and of KV cache, products, by arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from vllm_adapter.planning.dtypes import BITS
from vllm_adapter.planning.model_files import ModelFiles, read_model
from vllm_adapter.planning.model_shape import ModelSizes
from vllm_adapter.planning.shapes import tensors_of
from vllm_adapter.planning.tensors import TensorGroup, WeightPacking


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer's keys and values: `width` elements a token; `window` tokens at most, 0 all.

    `heads` KV heads share the width, or 1 where all ranks need all of it (a latent).
    """

    width: int
    window: int
    heads: int

    def width_on(self, ranks: int) -> int:
        """Elements a token on one of the ranks of a tensor-parallel group."""
        return self.width // self.heads * -(-self.heads // ranks)


@dataclass(frozen=True)
class ModelDemand:
    """A model's needs. `dtype` is the model's own; `packing` how its checkpoint is quantised."""

    name: str
    shape: ModelSizes
    dtype: str
    packing: WeightPacking | None
    tensors: tuple[TensorGroup, ...]
    kv_layers: tuple[KvLayer, ...]
    files: ModelFiles = field(repr=False)

    @property
    def weight_dtype(self) -> str:
        """The dtype of the products: the checkpoint's packed one, else the model's."""
        return self.packing.dtype if self.packing else self.dtype

    @cached_property
    def parameters(self) -> int:
        """All elements but those of helpers in a fixed dtype."""
        return sum(group.elements for group in self.tensors if group.dtype is None)

    def weight_bytes(
        self, dtype: str | None = None, packing: WeightPacking | str | None = "own"
    ) -> int:
        """Bytes of all weights; `packing` "own" is the checkpoint's."""
        return sum(self.group_bytes(group, dtype, packing) for group in self.tensors)

    def group_bytes(
        self,
        group: TensorGroup,
        dtype: str | None = None,
        packing: WeightPacking | str | None = "own",
    ) -> int:
        """Bytes of one group."""
        how = self.packing if isinstance(packing, str) else packing
        kind = dtype or self.dtype
        return how.all_bytes(group, kind) if how else group.bytes(kind)

    def kv_bytes_a_token(self, dtype: str, ranks: int = 1) -> int:
        """Keys and values of one token in all layers, on one of the ranks."""
        return sum(layer.width_on(ranks) for layer in self.kv_layers) * BITS[dtype] // 8

    def kv_bytes(self, dtype: str, tokens: int, ranks: int = 1, block: int = 1) -> int:
        """Bytes of one sequence's KV blocks; a window's layers keep the window and one block."""
        total = 0
        for layer in self.kv_layers:
            kept = min(tokens, layer.window + block) if layer.window else tokens
            total += -(-kept // block) * block * layer.width_on(ranks)
        return total * BITS[dtype] // 8

    def to_json(self) -> dict[str, Any]:
        """A JSON object, also what the hook `plan_advice` is given."""
        shape = self.shape
        return {
            "model": self.name,
            "family": shape.family.name,
            "dtype": self.dtype,
            "weight_dtype": self.weight_dtype,
            "parameters": self.parameters,
            "weight_bytes": self.weight_bytes(),
            "file_bytes": self.files.files.total if self.files.files else None,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_size": shape.head_dim,
            "vocabulary": shape.vocab,
            "max_context": shape.positions,
            "experts": shape.experts.count if shape.experts else 0,
            "kv_bytes_a_token": self.kv_bytes_a_token(self.dtype),
        }


def demand_of(text: str) -> ModelDemand:
    """The needs of the model that a user names; errors as `read_model`."""
    return demand_from(read_model(text))


def demand_from(model: ModelFiles) -> ModelDemand:
    """The needs of a model that was read."""
    shape = model.shape
    return ModelDemand(
        model.name,
        shape,
        shape.dtype,
        model.packing,
        tensors_of(shape),
        tuple(_kv_layers(shape)),
        model,
    )


def _kv_layers(shape: ModelSizes) -> Iterator[KvLayer]:
    if shape.family.encoder:
        return
    for window in shape.windows:
        if shape.latent is not None:
            yield KvLayer(shape.latent.rank + shape.latent.rope, window, 1)
        else:
            yield KvLayer(2 * shape.kv_heads * shape.head_dim, window, shape.kv_heads)


def unpacked(demand: ModelDemand, dtype: str) -> ModelDemand:
    """The same model with every weight in one dtype."""
    return replace(demand, dtype=dtype, packing=None)
