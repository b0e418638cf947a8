"""Hand-made hosts for the tests of topology: a matrix by a function, and facts around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vllm_adapter.hostfacts.device_facts import Link
from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, LinkMatrix, NumaNode


def host(
    count: int,
    link: Callable[[int, int], str | None] = lambda i, j: None,
    *,
    vendor: str = "cuda",
    node: Callable[[int], int | None] = lambda i: None,
    names: Sequence[str | None] = (),
    device: Callable[[int], dict[str, Any]] = lambda i: {},
    **facts: Any,
) -> HostFacts:
    """`count` devices; `link(i, j)` is the cell of row i and column j, None for no cell."""
    labels = tuple(f"GPU{i}" for i in range(count))
    cells = [
        Link(labels[i], labels[j], text=text)
        for i in range(count)
        for j in range(count)
        if i != j and (text := link(i, j)) is not None
    ]
    accelerators = tuple(
        Accelerator(
            vendor,
            i,
            "a tool",
            **{
                "name": names[i] if names else None,
                "numa_nodes": () if (found := node(i)) is None else (found,),
                **device(i),
            },
        )
        for i in range(count)
    )
    matrix = LinkMatrix("a tool", vendor, labels, tuple(range(count)), links=tuple(cells))
    return HostFacts(accelerators=accelerators, links=(matrix,), **facts)


def numa(*cpus: range) -> tuple[NumaNode, ...]:
    """Nodes 0, 1, ... of these CPUs."""
    return tuple(NumaNode(i, tuple(numbers)) for i, numbers in enumerate(cpus))
