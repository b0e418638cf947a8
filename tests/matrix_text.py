"""Link matrices as tools print them, and the damage that pasting does: for property tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.parsers import (
    ascend_topo,
    gaudi_topo,
    mthreads_topo,
    nvidia_p2p,
    nvidia_topo,
    xpu_topo,
)
from vllm_adapter_doctor.report.text import clean

DATA = Path(__file__).parent / "data" / "reports"
MODULES = (ascend_topo, gaudi_topo, mthreads_topo, nvidia_p2p, nvidia_topo, xpu_topo)
CASES = sorted(DATA.glob("topology-nvidia/*.txt")) + [
    DATA / name
    for name in (
        "ascend/01-topo-8x910b3-hccs.txt",
        "ascend/03-topo-8x-pcie-sys-indented-doc-paste.txt",
        "intel/01-xpu-smi-topology-2xmax1100-xl24.txt",
        "intel/03-xpu-smi-topology-8xb60-two-sockets-partial.txt",
        "other-vendors/04-mthreads-topo-table.txt",
        "collect-env/01-cuda-driver-510-torch-cu121-unavailable.txt",
        "collect-env/17-2080ti-8x-sm75.txt",
        "collect-env/21-sglang-check-env-wsl-3-of-4-gpus.txt",
    )
]


def facts_of(text: str) -> HostFacts:
    """What all parsers of matrices say together."""
    report = clean(text)
    found = [module.parse(report) for module in MODULES]
    return HostFacts(
        accelerators=tuple(one for facts in found for one in facts.accelerators),
        links=tuple(table for facts in found for table in facts.links),
    )


WORDS = ("NV1", "NV2", "NV12", "NV18", "SYS", "NODE", "PHB", "PXB", "PIX")
LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
COLUMNS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


@dataclass(frozen=True)
class Printed:
    """A machine's matrix; `values` are the columns behind the cells, by device."""

    labels: tuple[str, ...]
    devices: int
    cells: tuple[tuple[str, ...], ...]
    values: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]

    def link(self, first: str, second: str) -> str:
        return self.cells[self.labels.index(first)][self.labels.index(second)]

    def row(self, at: int) -> list[str]:
        cells = [" X " if at == i else cell for i, cell in enumerate(self.cells[at])]
        return [self.labels[at], *cells]

    def lines(self) -> list[str]:
        """As nvidia-smi prints it: tabs, and two of them behind the NUMA column."""
        out = ["\t" + "\t".join((*self.labels, *self.columns))]
        for at in range(len(self.labels)):
            line = "\t".join(self.row(at))
            if at < self.devices and self.columns:
                cpu, *rest = self.values[at]
                line += "\t" + "\t".join([cpu, "\t\t".join(rest)] if rest else [cpu])
            out.append(line)
        return out


def cpu_lists() -> st.SearchStrategy[str]:
    return st.builds(
        lambda a, n, gap: f"{a}-{a + n},{a + n + gap}-{a + 2 * n + gap}",
        st.integers(0, 200),
        st.integers(1, 47),
        st.integers(2, 200),
    ) | st.builds(lambda a, n: f"{a}-{a + n}", st.integers(0, 300), st.integers(1, 95))


@st.composite
def printed(draw: st.DrawFn, *, full: bool = False, words: tuple[str, ...] = WORDS) -> Printed:
    """Any machine; with `full` each value is there."""
    devices = draw(st.integers(1 if full else 2, 12))
    nics = draw(st.integers(0, 3))
    labels = tuple(f"GPU{i}" for i in range(devices)) + tuple(f"NIC{i}" for i in range(nics))
    count = len(labels)
    picks = draw(st.binary(min_size=count * count, max_size=count * count))
    cells = tuple(
        tuple(words[pick % len(words)] for pick in picks[at * count : (at + 1) * count])
        for at in range(count)
    )
    columns = COLUMNS[: draw(st.integers(0, 3))]
    blank = st.nothing() if full else st.just("")
    cpu = cpu_lists() | blank
    numa = st.sampled_from(("0", "1", "7", "0-1", "0,3-9,11-17")) | blank
    memory = st.sampled_from(("N/A", "N/A", "2", "18"))
    if not full:
        numa = numa | st.just("N/A")
    values = tuple((draw(cpu), draw(numa), draw(memory))[: len(columns)] for _ in range(devices))
    return Printed(labels, devices, cells, values, columns)


def aligned(lines: list[str]) -> list[str]:
    return [line.expandtabs(8) for line in lines]


def single(lines: list[str]) -> list[str]:
    """All runs of blanks became one."""
    return [" ".join(line.split()) for line in lines]


def stripped(lines: list[str]) -> list[str]:
    """A collector's strip() of the whole text."""
    return [lines[0].strip(), *lines[1:]]


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def prefixed(lines: list[str]) -> list[str]:
    return [f"[2026-02-11 09:55:49] worker-3 INFO topo.py:15] {line}" for line in lines]


def quoted(lines: list[str]) -> list[str]:
    return [f"> {line}" for line in lines]


def marked(lines: list[str]) -> list[str]:
    return [f"\x1b[4m{lines[0]}\x1b[0m", *lines[1:]]


def wrapped(lines: list[str], width: int) -> list[str]:
    """A terminal of that width: blanks at the ends of lines get lost."""
    out = []
    for line in aligned(lines):
        out += [line[at : at + width].rstrip() for at in range(0, max(len(line), 1), width)]
    return out


STYLES = (list, aligned, single)
DAMAGES = (list, stripped, indented, prefixed, quoted, marked)
