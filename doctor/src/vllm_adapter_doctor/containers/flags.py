"""How a container is started so that the chosen devices work inside, each flag with its reason.

No image is built or run here: the flags come from documents and public run scripts, as
`container_recipes` says of each; what has no source is marked as an assumption.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vllm_adapter.errors import InputError
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import VENDORS
from vllm_adapter_doctor.containers.recipes import RECIPES, Recipe, RecipeItem
from vllm_adapter_doctor.devices.box_device import Device
from vllm_adapter_doctor.devices.visible import environment_for

NOT_RUN: Final = "no image was built or run here: these flags come from documents and scripts"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `words` are its shell words; `shell` replaces them where the host must be asked.

    `source` is empty for an assumption.
    """

    words: tuple[str, ...]
    why: str
    source: str = ""
    shell: str = ""

    @property
    def text(self) -> str:
        """The flag as it is typed in a shell."""
        return self.shell or shlex.join(self.words)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"flag": self.text, "why": self.why, "source": self.source or "assumption"}


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What is asked for: these devices (none is the CPU) of the vendor's `siblings` on the box."""

    vendor: str
    devices: tuple[Device, ...]
    siblings: tuple[Device, ...]
    facts: HostFacts
    wsl: bool = False

    @property
    def recipe(self) -> Recipe:
        """The vendor's recipe.

        Raises:
            InputError: none is known.
        """
        if self.vendor not in RECIPES:
            known = ", ".join(RECIPES)
            raise InputError(
                f"no container recipe is known for {self.vendor}",
                hint=f"recipes are known for: {known}; ask the vendor's documents",
            )
        return RECIPES[self.vendor]

    @property
    def whole(self) -> bool:
        """Whether every device of the vendor is asked for."""
        return len(self.devices) == len(self.siblings)

    @property
    def module(self) -> bool:
        """Whether the devices are a module's own GPU (a Jetson's), by their names."""
        pattern = self.recipe.module
        if pattern is None or not self.devices:
            return False
        return all(pattern.search(device.name or "") for device in self.devices)

    def holds(self, item: RecipeItem) -> bool:
        """Whether an item's condition is met."""
        meets = {
            "": True,
            "several": len(self.devices) > 1,
            "one": len(self.devices) <= 1,
            "wsl": self.wsl,
            "native": not self.wsl,
        }
        return meets[item.when]


def run_flags(order: DeviceRequest, engine: str) -> tuple[Flag, ...]:
    """The flags of `docker run` or `podman run`, in the recipe's order.

    Raises:
        InputError: no recipe is known for the vendor.
    """
    flags = [
        flag
        for item in order.recipe.items
        if order.holds(item)
        for flag in _flags(item, order, engine)
    ]
    if order.recipe.whole and order.devices and not order.whole:
        found = environment_for(order.devices, order.siblings)
        why = "the nodes give all devices: this leaves the chosen ones"
        flags += [
            Flag(("-e", f"{name}={value}"), why, "vendor docs") for name, value in found.variables
        ]
    return tuple({flag.text: flag for flag in reversed(flags)}.values())[::-1]


def command(order: DeviceRequest, engine: str, image: str, flags: Sequence[Flag]) -> str:
    """The whole command, one flag a line, safe to paste into a POSIX shell."""
    lines = [f"{engine} run --rm -it", *(flag.text for flag in flags), shlex.quote(image)]
    return " \\\n  ".join(lines)


def notes(order: DeviceRequest, engine: str) -> tuple[str, ...]:
    """What should be known beside the flags."""
    found = [NOT_RUN, *order.recipe.notes]
    if order.recipe.wsl and order.wsl:
        found.append(order.recipe.wsl)
    guessed = [one.id for one in order.devices if not one.nodes]
    if guessed and any("{n}" in item.value for item in order.recipe.items) and engine != "k8s":
        found.append(
            f"the report lists no device nodes of {', '.join(guessed)}: compare the numbers above "
            f"with `ls {VENDORS[order.vendor].numbered[0].format(n='*')}`"
        )
    if engine == "podman" and any(item.kind == "group" for item in order.recipe.items):
        found.append("rootless podman keeps your own groups with --group-add keep-groups instead")
    known = order.recipe.wsl or "wsl" in {item.when for item in order.recipe.items}
    if order.wsl and order.devices and not known:
        found.append("nothing is known here of this vendor's devices on WSL")
    return tuple(found)


def _flags(item: RecipeItem, order: DeviceRequest, engine: str) -> Iterator[Flag]:
    values = [item.value]
    if "{n}" in item.value:
        numbers = [d.index if d.node_number is None else d.node_number for d in order.devices]
        values = [item.value.format(n=number) for number in numbers]
    elif "{index}" in item.value:
        values = [item.value.format(index=_indices(order))]
    for value in values:
        yield from _flag(item, value, order, engine)


def _flag(item: RecipeItem, value: str, order: DeviceRequest, engine: str) -> Iterator[Flag]:
    if item.kind == "gpus":
        yield from _gpus(item, value, order, engine)
    elif item.kind == "group":
        yield from _group(item, value, order)
    else:
        forms = {
            "device": ("--device", value),
            "mount": ("-v", f"{value}:{item.target or value}:ro"),
            "env": ("-e", value),
            "runtime": ("--runtime", value),
            "cap": ("--cap-add", value),
            "security": ("--security-opt", value),
            "ipc": (f"--ipc={value}",),
            "shm": ("--shm-size", value),
            "memlock": ("--ulimit", f"memlock={value}"),
        }
        yield Flag(forms[item.kind], item.why, item.source)


def _gpus(item: RecipeItem, value: str, order: DeviceRequest, engine: str) -> Iterator[Flag]:
    whole = value == "all" or order.wsl
    if engine == "podman":
        why = "CDI: the toolkit's description of the device"
        names = ["all"] if whole else value.split(",")
        for name in names:
            yield Flag(("--device", f"nvidia.com/gpu={name}"), why, "vendor docs")
        yield Flag(
            ("--security-opt", "label=disable"),
            "SELinux would keep the container from the device nodes",
            "vendor docs",
        )
    elif order.module:
        why = "the toolkit refuses --gpus on a Jetson: its runtime mounts what its CSV files name"
        yield Flag(("--runtime", "nvidia"), why, "vendor runtime")
        why = "without it that runtime passes nothing in; most CUDA images set it"
        yield Flag(("-e", "NVIDIA_VISIBLE_DEVICES=all"), why, "vendor docs")
    else:  # docker reads the value as CSV, so that a list needs quotes of its own
        yield Flag(("--gpus", "all" if whole else f'"device={value}"'), item.why, item.source)


def _group(item: RecipeItem, path: str, order: DeviceRequest) -> Iterator[Flag]:
    """The group by number where the facts show one; else the shell asks the host for it."""
    head = path.rstrip("0123456789")
    nodes = [n for n in order.facts.nodes if n.path.rstrip("0123456789") == head]
    groups = sorted({node.group for node in nodes if node.group is not None})
    for group in groups:
        if group:  # root's own group gives nothing away
            why = f"{item.why}; here it is {group}"
            yield Flag(("--group-add", str(group)), why, item.source)
    if not groups:
        ask = f'--group-add "$(stat -c %g {shlex.quote(path)})"'
        why = f"{item.why}; the host is asked for the number"
        yield Flag(("--group-add",), why, item.source, ask)


def _indices(order: DeviceRequest) -> str:
    """What the vendor's runtime takes: "all", or the tool's own numbers; a MIG UUID."""
    if order.whole and not any(device.partition for device in order.devices):
        return "all"
    names = []
    for device in order.devices:
        number = device.index if device.physical is None else device.physical
        names.append(device.uuid if device.partition and device.uuid else str(number))
    return ",".join(names)
