"""Memory: of the device, of the host, shared and locked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding
from vllm_adapter.doctor.rule import Box, Rule, finding, quoted
from vllm_adapter.doctor.text_rule import TextRule

_FREE: Final = r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)"
_FULL: Final = (
    r"(?P<device>NPU|CUDA|HIP|XPU|MUSA|HPU|MLU|GCU|MACA)(?: [Ee]rror:)? out of memory\.?"
    r"(?: Tried to allocate (?P<size>[\d.]+ \w+))?"
)
_TOTAL: Final = (
    r"(?:total capacity of (?P<one>[\d.]+ [GM]iB)|(?P<two>[\d.]+ [GM]iB) total capacity)"
)
_USED: Final = (
    r"(?P<one>[\d.]+ [GM]iB) already allocated|(?P<two>[\d.]+ [GM]iB) is allocated by PyTorch"
)
_TOOLS: Final = {
    "cuda": "nvidia-smi", "rocm": "rocm-smi --showpids", "ascend": "npu-smi info",
    "xpu": "xpu-smi ps", "gaudi": "hl-smi", "musa": "mthreads-gmi", "metax": "mx-smi",
    "mlu": "cnmon",
}  # fmt: skip


def _free_memory(box: Box) -> Iterator[Finding]:
    """vLLM's refusal at start; its words say GPU whatever the device is."""
    vendor = next((one.vendor for one in box.facts.accelerators), box.other_runtime)
    if vendor is None and box.says(r"(?i)\bnpu\b|ascend"):
        vendor = "ascend"
    for line, match in box.told(_FREE, ("free memory on device",)):
        free, total = float(match["free"]), float(match["total"])
        tool = _TOOLS.get(vendor or "", "the vendor's tool (nvidia-smi, npu-smi info, rocm-smi)")
        yield finding(
            "VA1706",
            [quoted(line)],
            f"{total - free:.1f} of {total:.1f} GiB of the device (an accelerator of any kind: "
            f"the message says GPU for all) are held by another process",
            f"find the process with {tool} and end it, or lower --gpu-memory-utilization below "
            f"{int(free / total * 100) / 100:.2f}"
            if total
            else f"find the process with {tool}",
        )


def _out_of_memory(box: Box) -> Iterator[Finding]:
    found: dict[tuple[str, str], list[re.Match[str]]] = {}
    evidence: dict[tuple[str, str], list[Evidence]] = {}
    for line, match in box.told(_FULL, ("out of memory",)):
        key = (match["device"], match["size"] or "")
        found.setdefault(key, []).append(match)
        evidence.setdefault(key, []).append(quoted(line))
    for (device, size), matches in found.items():
        text = matches[0].string
        total, used = re.search(_TOTAL, text), re.search(_USED, text)
        told = ", ".join(
            f"{word} {one['one'] or one['two']}"
            for word, one in (("capacity seen", total), ("in use by this program", used))
            if one
        )
        yield finding(
            "VA1705",
            evidence[device, size][:3],
            f"the {device} device has no {size or 'memory'} left" + (f" ({told})" if told else ""),
            "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or spread the "
            "model over more devices; the runtime keeps a part of the nominal memory for itself",
        )


RULES: Final = (
    Rule("VA1706", _free_memory),
    Rule("VA1705", _out_of_memory),
    TextRule(
        "VA1712",
        ("no available memory for the cache blocks", "can be stored in kv cache",
         "kv cache is needed, which is larger than", "to serve at least one request"),
        r"No available memory for the cache blocks"
        r"|larger than the maximum number of tokens that can be stored in KV cache"
        r"|KV cache is needed, which is larger than the available KV cache memory"
        r"|To serve at least one request with the models's max seq len",
        "weights and activations leave too little of the device's memory for the KV cache of one "
        "request of the model's full length",
        "lower --max-model-len, or raise --gpu-memory-utilization where nothing else is on the "
        "device; --kv-cache-dtype fp8, a quantised checkpoint or more devices otherwise",
    ),
    TextRule(
        "VA1404",
        ("/dev/shm", "shared memory", "psm_", "bus error"),
        r"(?i)/dev/shm[^\n]*(?:no space left|too small)|no space left[^\n]*/dev/shm"
        r"|(?:unable to|error while|failed to|could not) (?:open|allocat\w*|creat\w*|resiz\w*|"
        r"extend\w*) (?:a )?shared memory|insufficient shared memory|bus error[^\n]*shm"
        r"|creating shared memory segment /dev/shm|/dev/shm[^\n]*(?:has only|is only) \d+"
        r"|the object store is using /tmp instead of /dev/shm",
        "the shared memory of this container is used up",
    ),
    TextRule(
        "VA1405",
        ("ibv_reg_mr", "rlimit_memlock", "memlock", "mlock"),
        r"(?i)ibv_reg_mr\w*[^\n]*(?:fail|error)[^\n]*(?:Cannot allocate memory|memlock)"
        r"|RLIMIT_MEMLOCK[^\n]*(?:small|low|limit)|failed to mlock|mlock\w* failed",
        "the process may not lock as much memory as RDMA or pinned buffers need",
    ),
    TextRule(
        "VA1711",
        ("out of memory: killed process", "oom-kill", "oomkilled", "exitcode: -9",
         "exit code: 137", "exit code 137", "signal 9", "std::bad_alloc",
         "defaultcpuallocator"),
        r"(?i)Out of memory: Killed process \d+ \((?P<who>[^)]+)\)|oom-kill:|\bOOMKilled\b"
        r"|exit(?:ed with)? ?code:? ?137\b|exitcode\s*: -9\b|died with <Signals\.SIGKILL: 9>"
        r"|DefaultCPUAllocator: can't allocate memory|std::bad_alloc",
        "the host (or the container's limit) ran out of memory and the process was ended {who}",
        "give the container more memory, load with fewer workers at once "
        "(--max-parallel-loading-workers), lower --swap-space, --cpu-offload-gb and "
        "VLLM_CPU_KVCACHE_SPACE",
    ),
)  # fmt: skip
