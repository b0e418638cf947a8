"""Which device holds which layer's KV blocks: a layer's cache stays inside one link domain.

Decoding reads all blocks of a layer where the layer is computed, so a block elsewhere crosses a
link each step. `by_domain` deals whole layers to domains, in order, so that activations cross once
where a stage ends; `striped` deals single blocks round robin, as a placement without a map would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_adapter.errors import InputError
from vllm_adapter.planning.parallel import layers_of_stages


@dataclass(frozen=True, slots=True)
class KvPlacement:
    """`compute[layer]` is the device that computes a layer; `homes[layer][i]` where block i lies.

    Block i of every sequence's layer lies on `homes[layer][i % len(homes[layer])]`.
    """

    compute: tuple[int, ...]
    homes: tuple[tuple[int, ...], ...]

    def device_of(self, layer: int, block: int) -> int:
        """The device on which a block of a layer lies."""
        home = self.homes[layer]
        return home[block % len(home)]

    def crossing(self, layer: int, blocks: Sequence[int]) -> list[int]:
        """The blocks that are read from another device than the one that computes the layer."""
        here = self.compute[layer]
        return [block for block in blocks if self.device_of(layer, block) != here]


def by_domain(layers: int, domains: Sequence[Sequence[int]]) -> KvPlacement:
    """Whole layers to domains, as evenly as stages of a pipeline; within one to its first device.

    Raises:
        InputError: no domain, an empty one, one device in two, or fewer layers than domains.
    """
    _check(layers, domains)
    compute = tuple(
        domain[0]
        for domain, count in zip(domains, layers_of_stages(layers, len(domains)), strict=True)
        for _ in range(count)
    )
    return KvPlacement(compute, tuple((device,) for device in compute))


def striped(layers: int, domains: Sequence[Sequence[int]]) -> KvPlacement:
    """Layers computed as in `by_domain`, blocks of each layer dealt to all domains in turn."""
    compute = by_domain(layers, domains).compute
    return KvPlacement(compute, (tuple(domain[0] for domain in domains),) * layers)


def _check(layers: int, domains: Sequence[Sequence[int]]) -> None:
    devices = [device for domain in domains for device in domain]
    if not domains or not all(domains) or len(set(devices)) != len(devices):
        raise InputError(
            f"link domains {[list(one) for one in domains]} do not hold each device once",
            hint="name every device in one domain, and no empty domain",
        )
    if layers < len(domains):
        raise InputError(
            f"{layers} layers cannot be dealt out to {len(domains)} link domains",
            hint="use fewer domains than the model has layers",
        )
