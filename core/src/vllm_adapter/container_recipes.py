"""What a container needs for each vendor's devices: data, one recipe a vendor.

`source` is where an item is from: "vLLM docs", "vendor docs", "vendor runtime", or "public" for
run scripts of several public projects that agree. An item without a source is an assumption, and
the output says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Item:
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
class Recipe:
    """The items of one vendor. `whole`: the nodes give all devices, so a variable must choose.

    `resource` is the device plug-in's key, with "{driver}" and "{family}" filled in. It counts
    devices, or with `cards` cards.
    """

    items: tuple[Item, ...]
    resource: str = ""
    resource_source: str = ""
    whole: bool = False
    cards: bool = False
    notes: tuple[str, ...] = ()


_SHARED: Final = (
    Item(
        "ipc",
        "host",
        "processes of one model exchange tensors through shared memory",
        "vLLM docs",
        "several",
        pod=False,
    ),
    Item(
        "shm",
        "4g",
        "torch passes tensors between processes through /dev/shm, which is 64 MiB by default",
        "vLLM docs",
        "one",
        pod=False,
    ),
    Item(
        "memlock",
        "-1",
        "pinned host memory and RDMA registrations count against this limit",
        "",
        "several",
        pod=False,
    ),
)
_PTRACE: Final = Item(
    "cap",
    "SYS_PTRACE",
    "ranks read each other's memory when they exchange handles; one device needs it not",
    "vLLM docs",
    "several",
)
_SECCOMP: Final = Item(
    "security",
    "seccomp=unconfined",
    "the default filter blocks calls that place memory on NUMA nodes",
    "vLLM docs",
    "several",
    pod=False,
)
_DRI: Final = Item("device", "/dev/dri", "the render nodes of the GPUs", "vLLM docs", "native")
_RENDER: Final = Item(
    "group",
    "/dev/dri/renderD128",
    "the nodes belong to a group, and numbers differ between host and image",
    "vLLM docs",
    "native",
)

RECIPES: Final[Mapping[str, Recipe]] = {
    "cuda": Recipe(
        (
            Item(
                "gpus",
                "{index}",
                "the NVIDIA container toolkit passes nodes and driver libraries in",
                "vLLM docs",
                pod=False,
            ),
            *_SHARED,
        ),
        "nvidia.com/gpu",
        "vendor docs",
        notes=(
            "it needs the NVIDIA container toolkit on the host; podman reads the CDI file that "
            "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` writes",
        ),
    ),
    "rocm": Recipe(
        (
            Item(
                "device",
                "/dev/kfd",
                "the compute interface of all AMD GPUs",
                "vLLM docs",
                "native",
            ),
            _DRI,
            Item(
                "group",
                "/dev/kfd",
                "the node belongs to a group, and its number differs between host and image",
                "vLLM docs",
                "native",
            ),
            _RENDER,
            Item("device", "/dev/dxg", "the GPU as Windows gives it", "vendor docs", "wsl"),
            Item(
                "mount",
                "/usr/lib/wsl/lib/libdxcore.so",
                "the way from ROCm to the Windows driver",
                "vendor docs",
                "wsl",
                "/usr/lib/libdxcore.so",
            ),
            Item(
                "mount",
                "/opt/rocm/lib/librocdxg.so",
                "ROCm's part of that way, which images do not carry",
                "vendor docs",
                "wsl",
                "/usr/lib/librocdxg.so",
            ),
            Item(
                "env",
                "HSA_ENABLE_DXG_DETECTION=1",
                "releases before 7.13 look for /dev/dxg only with it",
                "vendor docs",
                "wsl",
            ),
            *_SHARED,
            _PTRACE,
            _SECCOMP,
        ),
        "amd.com/gpu",
        "vendor docs",
        whole=True,
    ),
    "xpu": Recipe(
        (
            _DRI,
            Item(
                "mount",
                "/dev/dri/by-path",
                "the collectives look devices up by their bus path",
                "vLLM docs",
                "native",
            ),
            _RENDER,
            *_SHARED,
            _PTRACE,
        ),
        "gpu.intel.com/{driver}",
        "vendor docs",
        whole=True,
        cards=True,
    ),
    "ascend": Recipe(
        (
            Item("device", "/dev/davinci{n}", "one node a device", "vLLM docs", pod=False),
            Item(
                "device",
                "/dev/davinci_manager",
                "the driver's control node",
                "vLLM docs",
                pod=False,
            ),
            Item("device", "/dev/devmm_svm", "shared virtual memory", "vLLM docs", pod=False),
            Item(
                "device",
                "/dev/hisi_hdc",
                "the channel to the device's CPU",
                "vLLM docs",
                pod=False,
            ),
            Item("mount", "/usr/local/dcmi", "the management library", "vLLM docs"),
            Item(
                "mount", "/usr/local/bin/npu-smi", "the tool that lists the devices", "vLLM docs"
            ),
            Item(
                "mount",
                "/usr/local/Ascend/driver/lib64",
                "driver libraries must be the host's, of the driver that runs",
                "vLLM docs",
            ),
            Item(
                "mount",
                "/usr/local/Ascend/driver/version.info",
                "CANN compares its release with the driver's",
                "vLLM docs",
            ),
            Item("mount", "/etc/ascend_install.info", "where the driver is", "vLLM docs"),
            Item(
                "mount",
                "/etc/hccn.conf",
                "addresses of the devices' own network ports, for HCCL",
                "public",
                "several",
            ),
            *_SHARED,
        ),
        "huawei.com/{family}",
        "public",
        notes=(
            "with the Ascend Docker Runtime installed, -e ASCEND_VISIBLE_DEVICES=N replaces "
            "nodes and mounts; numbers inside then start at 0",
        ),
    ),
    "gaudi": Recipe(
        (
            Item(
                "runtime",
                "habana",
                "it passes nodes and network ports in",
                "vendor docs",
                pod=False,
            ),
            Item(
                "env",
                "HABANA_VISIBLE_DEVICES={index}",
                "which devices the runtime passes; these numbers may change at a reboot",
                "vendor docs",
                pod=False,
            ),
            Item(
                "env",
                "OMPI_MCA_btl_vader_single_copy_mechanism=none",
                "Open MPI must not copy between processes by itself in a container",
                "vendor docs",
            ),
            Item("cap", "SYS_NICE", "the runtime binds threads and memory", "vendor docs"),
            *_SHARED,
        ),
        "habana.ai/gaudi",
        "vendor docs",
        notes=("scale-out over InfiniBand also needs /dev/infiniband/uverbs*",),
    ),
    "musa": Recipe(
        (
            Item(
                "runtime",
                "mthreads",
                "it passes nodes and driver libraries in",
                "public",
                pod=False,
            ),
            Item(
                "env",
                "MTHREADS_VISIBLE_DEVICES={index}",
                "which devices the runtime passes",
                "vendor runtime",
                pod=False,
            ),
            *_SHARED,
        ),
        "mthreads.com/gpu",
        "vendor docs",
    ),
    "metax": Recipe(
        (
            Item("device", "/dev/mxcd", "the compute interface of all MetaX GPUs", "public"),
            Item("device", "/dev/dri", "the render nodes of the GPUs", "public"),
            Item(
                "group",
                "/dev/dri/renderD128",
                "the nodes belong to a group, known by number",
                "public",
            ),
            *_SHARED,
        ),
        "metax-tech.com/gpu",
        "public",
        whole=True,
    ),
    "mlu": Recipe(
        (
            Item("device", "/dev/cambricon_dev{n}", "one node a device", "public"),
            Item("device", "/dev/cambricon_ctl", "the driver's control node", "public"),
            Item("mount", "/usr/bin/cnmon", "the tool that lists the devices", "public"),
            *_SHARED,
        ),
        "cambricon.com/mlu",
        "public",
    ),
    "hygon": Recipe(
        (
            Item("device", "/dev/kfd", "the compute interface", "public"),
            Item("device", "/dev/mkfd", "Hygon's own part of it", "public"),
            Item("device", "/dev/dri", "the render nodes of the devices", "public"),
            Item("mount", "/opt/hyhal", "the hardware layer must be the host's", "public"),
            Item("group", "/dev/kfd", "the node belongs to a group, known by number", "public"),
            *_SHARED,
            Item(
                "cap",
                "SYS_PTRACE",
                "ranks read each other's memory when they exchange handles",
                "public",
                "several",
            ),
        ),
        "hygon.com/dcu",
        "public",
        whole=True,
    ),
    "cpu": Recipe(
        (
            Item(
                "shm",
                "4g",
                "processes exchange tensors through /dev/shm, which is 64 MiB by default",
                "vLLM docs",
                pod=False,
            ),
            Item("cap", "SYS_NICE", "binding memory to NUMA nodes", "vLLM docs"),
        ),
    ),
}
"""By the adapter's name."""
