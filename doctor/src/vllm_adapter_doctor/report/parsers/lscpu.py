"""`lscpu`, alone or inside collect_env; /proc/cpuinfo and macOS's `sysctl` where they were pasted.

util-linux prints keys in the language of the user: English and Chinese are read.
"""

from __future__ import annotations

import re
from typing import Final

from vllm_adapter.hostfacts.facts import CpuFacts, HostFacts, MemoryFacts, NumaNode, OsFacts
from vllm_adapter_doctor.report.parsers._common import cpu_list
from vllm_adapter_doctor.report.parsers._fields import known_value
from vllm_adapter_doctor.report.parsers._flags import flags_of
from vllm_adapter_doctor.report.text import Report

_LINE: Final = re.compile(
    r"^\s*(?P<key>[A-Za-z\u4e00-\u9fff][\w().\- \u4e00-\u9fff]*?)\s*:\s*(?P<value>.*)$"
)
_CHINESE: Final = {
    "架构": "architecture",
    "cpu": "cpu(s)",
    "在线 cpu 列表": "on-line cpu(s) list",
    "离线 cpu 列表": "off-line cpu(s) list",
    "每个核的线程数": "thread(s) per core",
    "每个座的核数": "core(s) per socket",
    "座": "socket(s)",
    "型号名称": "model name",
    "标记": "flags",
}
_NODE: Final = re.compile(r"numa (?:node|节点)\s*(\d{1,4}) cpu(?:\(s\))?")
_KEYS: Final = frozenset(
    {
        *_CHINESE.values(),
        "core(s) per cluster",
        "cluster(s)",
        "features",
        "processor",
        "machdep.cpu.brand_string",
        "hw.ncpu",
        "hw.logicalcpu",
        "hw.physicalcpu",
        "hw.packages",
        "hw.memsize",
    }
)
_HEADING: Final = re.compile(r"^\s*(?:CPU:|CPU Info)$")
_ALONE: Final = re.compile(r"^\s*(?:Name: (\S.*)|(Apple M\d+(?: (?:Pro|Max|Ultra))?))$")


def parse(report: Report) -> HostFacts:
    """CPU and NUMA nodes of the first machine in the report."""
    report = report.settled
    found, nodes, cut = _read(report)
    every = {key: values[0] for key, values in found.items()}
    if "architecture" not in every and "processor" in every:
        model = known_value(every.get("model name"))
        return HostFacts(cpu=CpuFacts(model, flags_of(report, "flags", "Features")))
    online, offline = _cpus(every, "on-line cpu(s) list"), _cpus(every, "off-line cpu(s) list")
    logical = len(online) if online else None
    followed = next(reversed(every), "") != "cpu(s)"  # else the text ends before the list
    if online is None and "off-line cpu(s) list" not in every and followed:
        logical = _number(every.get("cpu(s)")) or _number(
            every.get("hw.logicalcpu", every.get("hw.ncpu"))
        )
    models = list(dict.fromkeys(name for name in found.get("model name", ()) if known_value(name)))
    model = (
        " + ".join(models) or known_value(every.get("machdep.cpu.brand_string")) or _alone(report)
    )
    cores, sockets = _cores(found)
    architecture = known_value(every.get("architecture"))
    if architecture and architecture.isdigit():
        architecture = None  # Windows has numbers for it
    memory = _number(every.get("hw.memsize"))
    apple = any(key.startswith(("hw.", "machdep.")) for key in every)
    return HostFacts(
        os=OsFacts("Darwin" if apple else None, machine=architecture),
        cpu=CpuFacts(
            model or None,
            flags_of(report, "Flags", "Features", "标记"),
            logical,
            cores,
            sockets,
            offline or (),
        ),
        numa=tuple(NumaNode(number, nodes[number]) for number in sorted(nodes)),
        memory=MemoryFacts(memory),
        unknown=(("numa", "lscpu: a list of CPUs that was cut"),) if cut else (),
    )


def _read(report: Report) -> tuple[dict[str, list[str]], dict[int, tuple[int, ...]], bool]:
    """Values by key, nodes' CPUs, and whether a node's list was cut.

    A second "Architecture" is that of another machine.
    """
    found: dict[str, list[str]] = {}
    nodes: dict[int, tuple[int, ...]] = {}
    cut = False
    for line in report.lines:
        match = _LINE.match(line.text)
        if not match:
            continue
        key = " ".join(match["key"].lower().split())
        if key == "cpu" and not match["value"].strip().isdigit():
            continue
        key = _CHINESE.get(key, key)
        if key == "architecture" and key in found:
            break
        node = _NODE.fullmatch(key)
        if node:
            cpus = cpu_list(match["value"])
            if cpus is None:
                cut = True
            else:
                nodes.setdefault(int(node[1]), cpus)
        elif key in _KEYS:
            found.setdefault(key, []).append(match["value"].strip())
    return found, nodes, cut


def _cpus(every: dict[str, str], key: str) -> tuple[int, ...] | None:
    return cpu_list(every[key]) if every.get(key) else None


def _number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,15}", text) else None


def _cores(found: dict[str, list[str]]) -> tuple[int | None, int | None]:
    """Cores and sockets. Chips with unlike cores have a pair of figures for each kind."""
    each = [_number(text) for text in found.get("core(s) per socket", ())]
    sockets = [_number(text) for text in found.get("socket(s)", ())]
    if len(each) == len(sockets) == 1:
        one, count = each[0], sockets[0]
        return (one * count if one and count else None), count
    if each and len(each) == len(sockets):
        return sum((a or 0) * (b or 0) for a, b in zip(each, sockets, strict=True)) or None, None
    count = sockets[0] if len(sockets) == 1 else None
    cluster = [_number(text) for text in found.get("core(s) per cluster", ())]
    clusters = [_number(text) for text in found.get("cluster(s)", ())]
    if len(cluster) == len(clusters) == 1 and cluster[0] and clusters[0]:
        return cluster[0] * clusters[0], count
    physical = _number(found.get("hw.physicalcpu", [""])[0])
    return physical, count or _number(found.get("hw.packages", [""])[0])


def _alone(report: Report) -> str | None:
    """The name that is all a dump of macOS or Windows says under its heading."""
    for position, _ in report.find(_HEADING):
        for line in report.lines[position + 1 : position + 4]:
            if found := _ALONE.match(line.text):
                name: str = found[1] or found[2]
                return name
    return None
