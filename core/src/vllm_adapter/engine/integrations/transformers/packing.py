"""A padded batch packed to its real tokens, which is what our operators run on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vllm_adapter.errors import UnsupportedModel


@dataclass(frozen=True)
class Packing:
    """Where the T real tokens of a padded batch [B, Q] are.

    `rows` is int64[T], the place of each real token in the flattened batch; None: no padding.
    """

    rows: torch.Tensor | None

    def pack(self, x: torch.Tensor) -> torch.Tensor:
        """[B, Q, hidden] -> [T, hidden], without gradients: the layers work in place."""
        flat = x.detach().flatten(0, 1)
        return flat if self.rows is None else flat.index_select(0, self.rows)

    def unpack(self, packed: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> the shape of `like`, zero where the batch is padding."""
        if self.rows is None:
            return packed.view(like.shape)
        flat = torch.zeros_like(like).flatten(0, 1)
        return flat.index_copy(0, self.rows, packed).view(like.shape)


def real_tokens(mask: object, batch: int, columns: int) -> torch.Tensor:
    """bool[batch, columns] on the host, from the tokenizer's mask.

    Raises:
        UnsupportedModel: it is no 2-D mask of that shape.
    """
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (batch, columns):
        shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise UnsupportedModel(
            f"the attention mask is {shape}, and the batch has {batch} rows of {columns}",
            hint="give the 2-D mask of the tokenizer, over everything seen so far",
        )
    return mask.bool().cpu()


def places(real: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """int64[T] on the device, or None where every token is real."""
    return None if bool(real.all()) else real.flatten().nonzero().flatten().to(device)
