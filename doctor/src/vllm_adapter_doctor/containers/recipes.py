"""What a container needs for each vendor's devices: one recipe a vendor, from the vendors' files.

`source` is where an item is from: "vLLM docs", "vendor docs", "vendor runtime", or "public" for
run scripts of several public projects that agree. An item without a source is an assumption, and
the output says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.hostfacts.vendor_files import LazyMapping, sections, typed


@dataclass(frozen=True, slots=True)
class RecipeItem:
    """One thing to pass in.

    `kind`: "device" (a node), "mount" (a path, read-only), "env" (NAME=VALUE), "group" (of a
    node), "gpus" (NVIDIA's own way), "runtime", "cap", "security", "ipc", "shm", "memlock".
    `{n}` in `value` makes one item a device, of its node's number; `{index}` is the tool's own
    numbers, with commas, or "all". `target` is the path inside, where it is another. `when`:
    "several" devices, "wsl" or "native"; empty is always. `pod` is whether Kubernetes needs it
    beside the device plug-in.
    """

    kind: str
    value: str
    why: str
    source: str = ""
    when: str = ""
    target: str = ""
    pod: bool = True


@dataclass(frozen=True, slots=True)
class Resource:
    """A device plug-in's key. It holds for `partition`s alone, for a driver, or for archs and
    names with these `words`; without any of them, always.
    """

    key: str
    source: str = ""
    note: str = ""
    partition: bool = False
    driver: str = ""
    words: str = ""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The items of one vendor. `whole`: the nodes give all devices, so a variable must choose.

    `resources` are the device plug-in's keys, the first that holds being it. It counts devices,
    or with `cards` cards. `wsl` is a note for WSL, where something is known of it. Devices whose
    names `module` fits are a module's own GPU, which the usual way does not reach.
    """

    items: tuple[RecipeItem, ...]
    resources: tuple[Resource, ...] = ()
    whole: bool = False
    cards: bool = False
    notes: tuple[str, ...] = ()
    wsl: str | None = None
    module: re.Pattern[str] | None = None


_SHARED: Final = (
    RecipeItem(
        "ipc",
        "host",
        "processes of one model exchange tensors through shared memory",
        "vLLM docs",
        "several",
        pod=False,
    ),
    RecipeItem(
        "shm",
        "4g",
        "torch passes tensors between processes through /dev/shm, which is 64 MiB by default",
        "vLLM docs",
        "one",
        pod=False,
    ),
    RecipeItem(
        "memlock",
        "-1",
        "pinned host memory and RDMA registrations count against this limit",
        "",
        "several",
        pod=False,
    ),
)
_CPU: Final = Recipe(
    (
        RecipeItem(
            "shm",
            "4g",
            "processes exchange tensors through /dev/shm, which is 64 MiB by default",
            "vLLM docs",
            pod=False,
        ),
        RecipeItem("cap", "SYS_NICE", "binding memory to NUMA nodes", "vLLM docs"),
    ),
)
"""The CPU is no vendor's device."""


def _recipe(raw: Mapping[str, Any]) -> Recipe:
    items = [
        one
        for item in raw["items"]
        for one in (_SHARED if item["kind"] == "shared" else (RecipeItem(**item),))
    ]
    return typed(raw, Recipe, items=items, module=raw.get("module", {}).get("names"))


RECIPES: Final[Mapping[str, Recipe]] = LazyMapping(
    lambda: {name: _recipe(raw) for name, raw in sections("container")} | {"cpu": _CPU}
)
"""By the adapter's name."""
