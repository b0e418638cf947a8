"""Collectives by way of the host, for a device that torch.distributed has no backend for."""

from __future__ import annotations

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class HostStagedCommunicator(DeviceCommunicatorBase):
    """Copies to the host, lets the group of host processes do it, and copies back.

    Every tensor may have any shape, [...]; ranks are those inside of the group.
    """

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, of the same shape."""
        host = input_.cpu()
        dist.all_reduce(host, group=self.cpu_group)
        return host.to(input_.device)

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """All ranks' tensors, one after the other along `dim`."""
        host = input_.cpu().contiguous()
        parts = [torch.empty_like(host) for _ in range(self.world_size)]
        dist.all_gather(parts, host, group=self.cpu_group)
        return torch.cat(parts, dim).to(input_.device)

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> torch.Tensor | list[torch.Tensor]:
        """As `all_gather`, where rank r has sizes[r] rows."""
        if isinstance(input_, list):
            return [self._gathered(one, sizes) for one in input_]
        assert dim == 0, "upstream: vllm@0.32 gathers rows alone"
        return self._gathered(input_, sizes)

    def reduce_scatter(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """This rank's equal share along `dim` of the sum over all ranks."""
        summed = input_.cpu().contiguous()
        dist.all_reduce(summed, group=self.cpu_group)
        share = summed.chunk(self.world_size, dim)[self.rank_in_group]
        return share.contiguous().to(input_.device)

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = -1, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """As `reduce_scatter`, where rank r gets sizes[r] along `dim`."""
        if sizes is None:
            return self.reduce_scatter(input_, dim)
        summed = input_.cpu().contiguous()
        dist.all_reduce(summed, group=self.cpu_group)
        share = torch.split(summed, sizes, dim)[self.rank_in_group]
        return share.contiguous().to(input_.device)

    def gather(self, input_: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        """At rank `dst` all ranks' tensors along `dim`; None at the others."""
        host = input_.cpu().contiguous()
        parts = None
        if self.rank_in_group == dst:
            parts = [torch.empty_like(host) for _ in range(self.world_size)]
        dist.gather(host, parts, dst=self.ranks[dst], group=self.cpu_group)
        return None if parts is None else torch.cat(parts, dim).to(input_.device)

    def broadcast(self, tensor: torch.Tensor, src: int = 0) -> torch.Tensor:
        """Rank `src`'s tensor, written into everybody's."""
        if self.world_size > 1:
            host = tensor.cpu().contiguous()
            dist.broadcast(host, self.ranks[src], self.cpu_group)
            tensor.copy_(host)
        return tensor

    def send(self, tensor: torch.Tensor, dst: int | None = None) -> None:
        """To a rank, by default the next one; waits until it is sent."""
        if dst is None:
            dst = (self.rank_in_group + 1) % self.world_size
        dist.send(tensor.cpu().contiguous(), self.ranks[dst], self.cpu_group)

    def recv(self, size: torch.Size, dtype: torch.dtype, src: int | None = None) -> torch.Tensor:
        """From a rank, by default the one before."""
        if src is None:
            src = (self.rank_in_group - 1) % self.world_size
        host = torch.empty(size, dtype=dtype)
        dist.recv(host, self.ranks[src], self.cpu_group)
        return host.to(self.device)

    def _gathered(self, rows: torch.Tensor, sizes: list[int] | None) -> torch.Tensor:
        if sizes is None:
            return self.all_gather(rows, 0)
        host = rows.cpu().contiguous()
        longest = max(sizes)
        padded = host.new_zeros(longest, *host.shape[1:])
        padded[: host.shape[0]] = host
        parts = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(parts, padded, group=self.cpu_group)
        kept = [part[:size] for part, size in zip(parts, sizes, strict=True)]
        return torch.cat(kept).to(rows.device)
