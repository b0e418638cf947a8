"""What starts containers: runtimes, toolkits, Kubernetes; and kernels that forbid a device."""

from __future__ import annotations

from typing import Final

from vllm_adapter.doctor.finding import Severity
from vllm_adapter.doctor.text_rule import TextRule

RULES: Final = (
    TextRule(
        "VA1407",
        ("could not select device driver", "unknown or invalid runtime name", "cdi device",
         "failed to discover gpu vendor"),
        r"could not select device driver \"?(?P<driver>[\w.-]*)\"? with capabilities: \[\[gpu\]\]"
        r"|failed to discover GPU vendor from CDI",
        "this Docker has no NVIDIA runtime, so that `--gpus` means nothing to it",
        "install nvidia-container-toolkit, `sudo nvidia-ctk runtime configure --runtime=docker`, "
        "`sudo systemctl restart docker`; other vendors' devices are given with --device",
    ),
    TextRule(
        "VA1407",
        ("unknown or invalid runtime name",),
        r"[Uu]nknown or invalid runtime name:? (?P<runtime>[\w-]+)",
        "the container runtime {runtime} is not registered with Docker",
        "install the vendor's container toolkit (nvidia-container-toolkit, habanalabs-container-"
        "runtime, Ascend-docker-runtime), register it in /etc/docker/daemon.json, restart docker",
    ),
    TextRule(
        "VA1407",
        ("unresolvable cdi devices",),
        r"unresolvable CDI devices (?P<names>\S+)",
        "no CDI specification on this host describes {names}",
        "`sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` (again after each driver "
        "upgrade); `nvidia-ctk cdi list` shows the names",
    ),
    TextRule(
        "VA1407",
        ("nvidia-container-cli", "nvidia-container-runtime"),
        r"nvidia-container-cli: (?P<what>(?:initialization|detection|mount|requirement|device|"
        r"container|ldcache|input)[ \w]*error: (?!driver rpc error: timed out)[^\n]*?)"
        r"(?=: unknown|$|\\n)",
        "NVIDIA's container toolkit cannot prepare the container: {what}",
        "make `nvidia-smi` work on the host first; 'unsatisfied condition: cuda>=X' means that "
        "the image needs a newer driver; 'no such file' that the toolkit's cache is old "
        "(restart docker); 'unknown device' that NVIDIA_VISIBLE_DEVICES names none",
    ),
    TextRule(
        "VA1407",
        ("driver rpc error: timed out",),
        r"nvidia-container-cli: initialization error: driver rpc error: timed out",
        "the driver took too long to answer the container toolkit: a GPU hangs, or each start "
        "initialises all of them anew",
        "switch persistence on (`systemctl enable --now nvidia-persistenced`); look for Xid in "
        "the kernel's log",
    ),
    TextRule(
        "VA1408",
        ("insufficient ",),
        r"Insufficient (?P<resource>nvidia\.com/[\w.-]+|amd\.com/gpu|gpu\.intel\.com/\w+|"
        r"habana\.ai/gaudi|huawei\.com/\w+|google\.com/tpu|aws\.amazon\.com/neuron\w*|"
        r"mthreads\.com/\w+|cambricon\.com/\w+|metax-tech\.com/\w+)",
        "no node has enough free {resource}: all are taken, or the vendor's device plug-in does "
        "not run on the nodes",
        "`kubectl describe node | grep -A8 Allocatable`; check the device plug-in's pods, taints "
        "and the name of the resource (with MIG it is nvidia.com/mig-...)",
    ),
    TextRule(
        "VA1408",
        ("unexpectedadmissionerror", "allocate failed due to"),
        r"Allocate failed due to (?P<what>[^\n]{1,160})",
        "the node's device plug-in could not give the device: {what}",
        "read the plug-in's log on that node; restart it after a driver upgrade",
    ),
    TextRule(
        "VA1409",
        ("failed to initialize nvml: unknown error", "nvmlerror_unknown"),
        r"Failed to initialize NVML: Unknown Error|NVMLError_Unknown: Unknown Error",
        "this container had its GPUs and has lost the right to open them: systemd reloaded its "
        "units and the container's device rules with them (or the user may not open the nodes)",
        "restart the container; to end it for good give the nodes with --device (/dev/nvidia0, "
        "/dev/nvidiactl, /dev/nvidia-uvm), or let Docker use the cgroupfs driver",
    ),
    TextRule(
        "VA1409",
        ("avc:  denied", "avc: denied", "apparmor=\"denied\""),
        r"avc: +denied[^\n]*(?:nvidia|kfd|dri|davinci|accel|container_t|/dev/)[^\n]*"
        r"|apparmor=\"DENIED\"[^\n]*(?:nvidia|kfd|dri|davinci|accel)[^\n]*",
        "SELinux or AppArmor forbids the container to open the device",
        "`setsebool -P container_use_devices on`, or start with `--security-opt label=disable` "
        "(AppArmor: `--security-opt apparmor=unconfined`)",
    ),
    TextRule(
        "VA1410",
        ("cudaipc", "cuda ipc", "ncclcumem", "cumemimport"),
        r"(?i)(?:cudaIpc(?:Open|Get)MemHandle|cuMemImportFromShareableHandle|CUDA IPC)[^\n]*"
        r"(?:fail|error|invalid|denied|not permitted)",
        "processes cannot share device memory here: they are in different containers or IPC "
        "namespaces, the allocator is one that cannot be shared (expandable segments), or the "
        "devices have no peer access",
        "start all workers in one container with `--ipc=host`; unset PYTORCH_CUDA_ALLOC_CONF="
        "expandable_segments; --disable-custom-all-reduce",
    ),
    TextRule(
        "VA1411",
        ("exec format error",),
        r"exec format error",
        "the image or program is built for another processor (x86-64 against aarch64)",
        "take the image of this machine's processor (`docker pull --platform linux/arm64` or "
        "linux/amd64; `uname -m` tells which)",
    ),
    TextRule(
        "VA1411",
        ("does not match the detected host platform",),
        r"requested image's platform \((?P<image>[\w/]+)\) does not match the detected host "
        r"platform \((?P<host>[\w/]+)\)",
        "the image is for {image} and the host is {host}: it runs emulated and without its device",
        "take the image for {host}",
        Severity.WARNING,
    ),
)  # fmt: skip
