"""Makes the schema of host facts from the dataclasses, descriptions from their docstrings."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter_doctor.report.document import FORMAT, VERSION

FILE = Path(__file__).parent.parent / "schemas/src/vllm_adapter_schemas/facts-1.0.json"
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


TEXTS = {
    "Accelerator.name": 'What the source calls it, such as "NVIDIA H200".',
    "Accelerator.uuid": "The vendor's UUID.",
    "Accelerator.memory_total_bytes": "Its own memory.",
    "Accelerator.memory_used_bytes": "What of it is in use.",
    "Accelerator.integrated": "Whether it is part of the processor.",
    "Accelerator.unified_memory": "Whether its memory is the system's.",
    "Accelerator.memory_nodes": "NUMA nodes that are its own memory.",
    "Accelerator.driver": "The kernel driver that is bound to it.",
    "Accelerator.health": "How it is now.",
    "Accelerator.processes": "Processes that hold it.",
    "CgroupLimits.memory_limit_bytes": "The tightest memory limit of this group and its parents.",
    "CgroupLimits.cpu_quota_cores": "The tightest CPU quota, in cores.",
    "CpuFacts.model": "The processor's name.",
    "CpuFacts.cores": "Physical cores of the online CPUs.",
    "CpuFacts.sockets": "Sockets of the online CPUs.",
    "CpuFacts.offline": "CPUs that are present and switched off.",
    "CpuSet.cpus": "Logical CPUs that the process may use.",
    "CpuSet.memory_nodes": "NUMA nodes whose memory the process may use.",
    "DeviceNode.path": "Its path under /dev.",
    "DeviceProcess.name": "The process's name or path.",
    "DeviceProcess.memory_bytes": "What it holds of the device's memory.",
    "Driver.version": "The version as it was printed.",
    "Driver.source": "The file, library or tool that told it.",
    "Health.temperature_c": "Degrees Celsius.",
    "Health.power_w": "Watts drawn now.",
    "Health.power_cap_w": "The power limit in watts.",
    "Health.utilization_percent": "How busy its compute units are.",
    "Health.clock_mhz": "The clock of its compute units now.",
    "Health.clock_max_mhz": "The highest clock of its compute units.",
    "Line.text": "The line, cleaned.",
    "Link.first": "The label of the row.",
    "Link.second": "The label of the column.",
    "Link.text": "The cell as it was printed.",
    "LinkMatrix.source": "The tool that printed the table.",
    "LinkMatrix.links": "The cells that could be read.",
    "MemoryFacts.total_bytes": "All memory of the host.",
    "MemoryFacts.available_bytes": "What the kernel says a program could take.",
    "NumaNode.id": "The kernel's number of the node.",
    "NumaNode.cpus": "Logical CPUs of the node.",
    "NumaNode.memory_bytes": "The node's memory.",
    "OsFacts.release": "The kernel's release.",
    "OsFacts.machine": 'The machine\'s type, such as "x86_64".',
    "TorchBuild.version": "torch's version with its local tag.",
    "TorchBuild.cuda": "The CUDA version that it was built with.",
    "TorchBuild.hip": "The HIP version that it was built with.",
    "TorchBuild.xpu": "The SYCL compiler's version that it was built with.",
    "VllmFacts.version": "vLLM's version.",
    "VllmFacts.distribution": "The distribution that it was installed from.",
    "HostFacts.os": "The operating system.",
    "HostFacts.pci": "PCI functions.",
    "HostFacts.nodes": "Accelerator nodes under /dev.",
    "HostFacts.modules": "Loaded kernel modules, sorted.",
    "HostFacts.cpuset": "What the process may use.",
    "HostFacts.cgroup": "Limits of the control group.",
    "HostFacts.cpu": "The machine's CPUs.",
    "HostFacts.memory": "Host memory.",
    "HostFacts.python": "Python's version.",
    "HostFacts.accelerators": "Devices, as tools, drivers or torch told of them.",
    "HostFacts.drivers": "Versions of drivers, firmware and toolkits, and where each was read.",
    "HostFacts.links": "Tables of links between devices.",
    "HostFacts.vllm": "The installed vLLM; null where there is none, or nothing tells.",
    "HostFacts.packages": "(name, version) of installed Python packages that matter.",
}
"""Fields whose names say all that a reader of the dataclass needs."""


def render() -> str:
    """The schema's text."""
    defs: dict[str, Any] = {}
    facts = _object(HostFacts, defs)
    major, minor = VERSION
    tag = {
        "description": "Kind and version of this file. A reader refuses another major version, "
        "and ignores the unknown keys of a newer minor one.",
        "type": "string",
        "pattern": rf"^{FORMAT}/{major}\.[0-9]{{1,4}}$(?!\n)",
        "examples": [f"{FORMAT}/{major}.{minor}"],
    }
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:vllm-adapter:facts:{major}.{minor}",
        "title": "Host facts",
        "description": "What `vllm-adapter facts` prints: one machine, collected live or read "
        "from a pasted report. A key that is left out takes its default. Sizes are bytes; what "
        "nobody could read is null or an empty list, and `unknown` says where it would have come "
        "from.",
        "type": "object",
        "properties": {"schema": tag, **facts["properties"]},
        "required": ["schema"],
        "$defs": dict(sorted(defs.items())),
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _object(kind: Any, defs: dict[str, Any]) -> dict[str, Any]:
    hints, doc = get_type_hints(kind), inspect.getdoc(kind) or ""
    properties = {
        field.name: {"description": _said(kind, doc, field.name), **_type(hints[field.name], defs)}
        for field in fields(kind)
    }
    needed = [field.name for field in fields(kind) if field.default is MISSING]
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if needed:
        schema["required"] = needed
    return schema


def _type(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    if get_origin(hint) is UnionType:
        inner = _type(get_args(hint)[0], defs)
        if "$ref" in inner:
            return {"anyOf": [inner, {"type": "null"}]}
        return {**inner, "type": [inner["type"], "null"]}
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            return {"type": "array", "items": _type(items[0], defs)}
        parts = [_type(item, defs) for item in items]
        return {"type": "array", "prefixItems": parts, "minItems": len(parts), "items": False}
    if is_dataclass(hint):
        kind: Any = hint
        if kind.__name__ not in defs:
            text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
            defs[kind.__name__] = {"description": text, **_object(kind, defs)}
        return {"$ref": f"#/$defs/{kind.__name__}"}
    return {"type": TYPES[hint]}


def _said(kind: Any, doc: str, name: str) -> str:
    """What `TEXTS` or the docstring says of a field; else its name, which has its unit."""
    if text := TEXTS.get(f"{kind.__name__}.{name}"):
        return text
    # no sentence ends after an abbreviation of one letter, nor with three dots
    text = " ".join(doc.split()).replace(" None", " null")
    sentences = re.split(r"(?<=[^.\s]{2}[.;])\s+(?=[`A-Z])", text)
    said = [sentence.rstrip(";.") for sentence in sentences if f"`{name}`" in sentence]
    return ". ".join(said) + "." if said else name.replace("_", " ").capitalize() + "."
