"""Containers and permissions: nodes that are not there, or may not be opened."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

from vllm_adapter.doctor.finding import Evidence, Finding
from vllm_adapter.doctor.rule import Box, Rule, finding
from vllm_adapter.doctor.rules._where import ascend, cuda_known
from vllm_adapter.doctor.text_rule import TextRule
from vllm_adapter.known_vendors import adapters_for

_NODES: Final = {
    "cuda": ("/dev/nvidiactl", "/dev/nvidia[0-9]*", "/dev/nvidia-uvm"),
    "rocm": ("/dev/kfd", "/dev/dri/renderD*"),
    "xpu": ("/dev/dri/renderD*",),
    "ascend": ("/dev/davinci_manager", "/dev/davinci[0-9]*", "/dev/devmm_svm", "/dev/hisi_hdc"),
    "gaudi": ("/dev/accel/accel[0-9]*",),
    "musa": ("/dev/mtgpu*",),
}
"""Nodes that a vendor's stack opens; sources: docs/hardware facts of each adapter."""
_OLD_NAMES: Final = {"/dev/accel/accel[0-9]*": "/dev/hl[0-9]*"}


def _absent_nodes(box: Box) -> Iterator[Finding]:
    """A device that the PCI bus shows, and whose node is not there: on this machine only."""
    if not box.live or box.facts.os.name != "Linux" or "wsl2" in box.facts.os.environment:
        return
    for adapter, (vendor, device) in adapters_for(box.facts.pci).items():
        missing = [
            pattern
            for pattern in _NODES.get(adapter, ())
            if not _any(box, pattern) and not _any(box, _OLD_NAMES.get(pattern, pattern))
        ]
        if missing:
            inside = "container" in box.facts.os.environment
            yield finding(
                "VA1401",
                [Evidence(str(device), "PCI"), Evidence(f"no {', no '.join(missing)}", "/dev")],
                f"a {vendor} device is on this host, and its device nodes are "
                + ("not passed through to this container" if inside else "not there"),
                "start the container with the flags of `vllm-adapter container`"
                if inside
                else "install or load the vendor's kernel driver",
            )


def _any(box: Box, pattern: str) -> bool:
    return any(fnmatchcase(node.path, pattern) for node in box.facts.nodes)


def _closed_nodes(box: Box) -> Iterator[Finding]:
    """A compute node that is there and may not be opened; display nodes do not count."""
    patterns = {pattern for group in _NODES.values() for pattern in group}
    closed = [
        node
        for node in box.facts.nodes
        if node.kind == "char"
        and any(fnmatchcase(node.path, pattern) for pattern in patterns)
        and not (node.readable and node.writable)
    ]
    if closed and box.live:
        yield finding(
            "VA1402",
            [Evidence(f"{node.path} may not be opened", "/dev") for node in closed[:5]],
            "the device nodes belong to a group that this process is not in",
            "add the node's group by its number: `ls -ln` shows it, `docker run --group-add "
            "NUMBER` or `usermod -aG GROUP USER` gives it",
        )


def _npu(box: Box) -> bool:
    torch = box.facts.torch
    return ascend(box) and not cuda_known(box) and not (torch and (torch.hip or torch.xpu))


def _no_npu(box: Box) -> bool:
    return not _npu(box)


_OPEN: Final = (
    r"(?i)(?:unable|failed|cannot|could not|can't|error)[^\n]*?(?:open|access)\w*:?[^\n]*?"
    r"(?P<node>/dev/(?:kfd|dri|nvidia|davinci|accel|hl|mtgpu|mxcd|cambricon|hisi|devmm|mkfd|neuron|"
    r"vfio|xpu|iluvatar)[\w./-]*)"
)
_WORDS: Final = tuple(
    f"/dev/{name}"
    for name in "kfd dri nvidia davinci accel hl mtgpu mxcd cambricon hisi devmm mkfd neuron vfio "
    "xpu iluvatar".split()
)

RULES: Final = (
    Rule("VA1401", _absent_nodes),
    Rule("VA1402", _closed_nodes),
    TextRule(
        "VA1401",
        _WORDS,
        _OPEN + r"[^\n]*(?:no such file|no such device)",
        "{node} is not there: the container was started without it, or the kernel driver is not "
        "loaded",
        "start the container with it (ROCm: `--device /dev/kfd --device /dev/dri`); "
        "`vllm-adapter container` prints all flags",
    ),
    TextRule(
        "VA1401",
        ("error gathering device information", "no such file or directory"),
        r"(?i)(?:gathering device information while adding custom device|device node)[^\n]*?"
        r"(?P<node>/dev/[\w./-]+)[^\n]*no such file",
        "the host itself has no {node}: its kernel driver is not loaded",
        "load the vendor's kernel driver on the host, then start the container again",
    ),
    TextRule(
        "VA1403",
        _WORDS,
        _OPEN + r"[^\n]*(?:invalid argument|input/output error)",
        "{node} is there and its groups are fine; the kernel refuses to open it: the kernel "
        "driver and this user space do not fit, or a nested container (seccomp, user namespace) "
        "forbids it",
        "compare the kernel driver's release with the user space's; start the container with "
        "`--security-opt seccomp=unconfined` and without a user namespace of its own",
    ),
    TextRule(
        "VA1409",
        _WORDS,
        _OPEN + r"[^\n]*operation not permitted",
        "the container's device rules (cgroup) forbid {node}, although the file is there: it was "
        "mounted as a volume",
        "give it with `--device {node}` (a volume is not enough); with LXC add a "
        "lxc.cgroup2.devices.allow line",
    ),
    TextRule(
        "VA1402",
        _WORDS,
        r"(?i)(?P<node>/dev/(?:dri/renderD\d+|dri/card\d+|kfd|nvidia[\w-]*|davinci\w*|"
        r"accel[\w/]*|hl\d+|mtgpu[\w.]*|mxcd|cambricon\w*))\W{1,4}permission denied"
        r"(?:[^\n]*?:(?P<group>\w+)\((?P<number>\d+)\))?",
        "this user is not in the group that owns {node} ({group})",
        "add the user to the node's group by its number (`--group-add {number}`; groups video "
        "and render): for computing, /dev/dri/renderD* and /dev/kfd count, and card* does not",
    ),
    TextRule(
        "VA1402",
        _WORDS,
        _OPEN + r"[^\n]*permission denied",
        "this user may not open {node}",
        "add the user to the node's group by its number (`ls -ln {node}`)",
    ),
    TextRule(
        "VA1402",
        ("not a member of", "render group", "video group"),
        r"(?i)(?:user|\w+) is not (?:a )?member of (?:the )?[\"']?(?P<group>render|video)[\"']? "
        r"group",
        "this user is not in the group {group}, which owns the device nodes",
        "`sudo usermod -aG render,video $USER` and log in again; in a container `--group-add` "
        "with the host's number",
        unless=(r"(?i)Unable to open /dev/kfd read-write: Invalid argument",),
    ),
    TextRule(
        "VA1406",
        ("visible devices (0)",),
        r"(?i)visible devices \(0\)",
        "torch_npu counts no device in this process",
        "in this order: /dev/davinci*, /dev/davinci_manager, /dev/devmm_svm and /dev/hisi_hdc in "
        "the container; ASCEND_RT_VISIBLE_DEVICES (inside, numbers start at 0 again); the mounts "
        "of /usr/local/Ascend/driver and npu-smi; `npu-smi info`",
        on=_npu,
    ),
    TextRule(
        "VA1111",
        ("visible devices (0)",),
        r"(?i)visible devices \(0\)",
        "the runtime counts no device in this process, and workers were asked for",
        "make the vendor's tool show a device here first; unset the visible-devices variable",
        on=_no_npu,
    ),
    TextRule(
        "VA1402",
        _WORDS,
        r"(?i)permission denied\W{1,4}(?P<node>/dev/(?:kfd|dri|nvidia|davinci|accel|hl|mtgpu|mxcd|"
        r"cambricon)[\w./-]*)",
        "this user may not open {node}",
        "add the user to the node's group by its number (`ls -ln {node}`)",
    ),
    TextRule(
        "VA1401",
        _WORDS,
        r"(?i)(?:no such file or directory|not found|does not exist)\W{1,4}"
        r"(?P<node>/dev/(?:kfd|dri|nvidia|davinci|accel|hl|mtgpu|mxcd|cambricon)[\w./-]*)"
        r"|stat (?P<other>/dev/(?:kfd|dri|nvidia|davinci|accel|hl)[\w./-]*): no such file",
        "{node}{other} is not there: the container was started without it, or the kernel driver "
        "is not loaded",
        "start the container with it; `vllm-adapter container` prints all flags",
    ),
    TextRule(
        "VA1409",
        _WORDS,
        r"(?i)(?P<node>/dev/(?:kfd|dri|nvidia|davinci|accel|hl|mtgpu|mxcd|cambricon)[\w./-]*)"
        r"\W{1,4}operation not permitted|operation not permitted\W{1,4}(?P<other>/dev/(?:kfd|dri|"
        r"nvidia|davinci|accel|hl)[\w./-]*)",
        "the container's device rules (cgroup) forbid {node}{other}, although the file is there: "
        "it was mounted as a volume",
        "give it with --device (a volume is not enough); with LXC add a "
        "lxc.cgroup2.devices.allow line",
    ),
)
