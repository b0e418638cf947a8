"""Codes VA14 to VA19: what is wrong with a box that has the right drivers and packages.

VA14 containers and permissions; VA15 the choice of platform and operators; VA16 visible devices;
VA17 health and memory; VA18 topology; VA19 system and network.
"""

from __future__ import annotations

from typing import Final

from vllm_adapter._code import Code

BOX_CODES: Final = (
    Code(
        "VA1401",
        "the device node is not in the container",
        "The kernel driver is loaded, and its device node is not there: the container was "
        "started without it.",
        "start the container with the device's nodes: `vllm-adapter container` prints the flags.",
        "'Unable to open /dev/kfd read-write: No such file or directory'",
    ),
    Code(
        "VA1402",
        "the device node may not be opened by this user",
        "The node belongs to a group that this process is not in. Groups count by number: the "
        "same name may have another number in a container.",
        "add the group by its number (`--group-add NUMBER`, or `usermod -aG` on the host).",
        "'/dev/dri/...: Permission denied'",
    ),
    Code(
        "VA1403",
        "the device node is there, and opening it fails",
        "Nodes and groups are fine; the kernel refuses the call: kernel driver and user space do "
        "not fit, or a nested container's seccomp profile or user namespace forbids it.",
        "check the kernel driver against ROCm's release; in containers try `--security-opt "
        "seccomp=unconfined`, and no nested user namespace.",
        "'Unable to open /dev/kfd read-write: Invalid argument'",
    ),
    Code(
        "VA1404",
        "shared memory is too small",
        "Workers and collectives exchange data through /dev/shm, which is 64 MiB in a container "
        "by default.",
        "start the container with `--ipc=host` or `--shm-size=16g`.",
        "'No space left on device' or 'Bus error' under /dev/shm; NCCL 'unhandled system error'",
    ),
    Code(
        "VA1405",
        "memory may not be locked",
        "RDMA and pinned memory need an unlimited memlock limit.",
        "start with `--ulimit memlock=-1` (or set it for the service).",
        "'ibv_reg_mr failed: Cannot allocate memory'",
    ),
    Code(
        "VA1406",
        "no Ascend device is visible",
        "torch_npu counts no device: the davinci nodes are not mounted, the visible-devices "
        "variable hides all, or the driver folder is not mounted.",
        "check /dev/davinci*, /dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc, "
        "ASCEND_RT_VISIBLE_DEVICES, and /usr/local/Ascend/driver in the container.",
        "'local_world_size (8) must be less than or equal to the number of visible devices (0)'",
    ),
    Code(
        "VA1501",
        "two platforms are active",
        "vLLM allows one active platform and refuses to start with two.",
        "upgrade vLLM (older releases counted the CPU build as a second one); uninstall one of "
        "the two, or name the device at installation with VLLM_TARGET_DEVICE.",
        "'Only one platform plugin can be activated, but got: [...]'",
    ),
    Code(
        "VA1502",
        "a platform plug-in was found, and another platform serves",
        "vLLM listed a plug-in of the platform group and then went on without it: it raised, or "
        "said no. vLLM shows that at level DEBUG only.",
        "import the plug-in by hand and read its error: `vllm-adapter doctor --vllm` does so for "
        "each; upgrade or reinstall it.",
        "'Available plugins for group vllm.platform_plugins', then device_config=cpu",
    ),
    Code(
        "VA1503",
        "the CPU serves, and nobody asked for it",
        "An accelerator is here, and vLLM or torch runs on the CPU.",
        "follow the other findings; VA_REQUIRE_DEVICE makes such a start fail at once.",
        "a server that is very slow",
    ),
    Code(
        "VA1504",
        "the device speaks through another vendor's tools",
        "torch's cuda device, nvidia-smi, xpu-smi or rocm-smi answer here, and the silicon is "
        "another vendor's.",
        "install the adapter of the vendor that the finding names.",
        "torch.cuda.is_available() is True on a MetaX, Hygon or T-Head device",
    ),
    Code(
        "VA1505",
        "an operator of vLLM has no implementation for this device",
        "A custom operator of vLLM runs into the CPU fallback: the platform's plug-in is not "
        "active in this process, or its communicator is not registered.",
        "check that the plug-in loads in every process (`vllm-adapter doctor --vllm`), and that "
        "VLLM_PLUGINS names it.",
        "\"Could not run 'vllm::all_reduce' with arguments from the 'CPU' backend\"",
    ),
    Code(
        "VA1506",
        "an operator falls back to the CPU",
        "The device has no kernel for an operator and computes it on the CPU, with copies both "
        "ways. Results are right; it costs time.",
        "nothing, if it is rare; else upgrade the device's torch package, or report the operator.",
        "'... is not currently supported on the NPU backend and will fall back to run on the CPU'",
    ),
    Code(
        "VA1601",
        "visible-devices variables filter twice",
        "Two variables of the same vendor are set (or Ray sets one): the second counts within "
        "what the first left over, so that an index points past the end.",
        "set one of them only; under Ray set RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES=1 (or "
        "the vendor's).",
        "'HIP error: invalid device ordinal'",
    ),
    Code(
        "VA1602",
        "torch sees fewer devices than the box has",
        "Rows of the driver's tool and torch's indices are not the same numbers here.",
        "match devices by UUID or bus id before using a row of the tool; check the "
        "visible-devices variable.",
        "three GPUs in torch, four rows in the topology",
    ),
    Code(
        "VA1701",
        "a device fell off the bus or is lost",
        "The kernel driver lost contact with the device.",
        "drain the box and power-cycle it; if it returns, have the card, its power and its slot "
        "checked.",
        "'GPU is lost'; Xid 79; 'has fallen off the bus'",
    ),
    Code(
        "VA1702",
        "a device is throttled",
        "Its clock is held down by temperature or by a power cap.",
        "check cooling and the power cap of the finding; expect lower rates until then.",
        "an active thermal or power throttle reason; power at its cap with low clocks",
    ),
    Code(
        "VA1703",
        "another program holds the device",
        "Memory of the device is in use by a process that is not ours.",
        "end that process, choose another device, or lower --gpu-memory-utilization.",
        "memory in use on one device of many, before anything was started",
    ),
    Code(
        "VA1704",
        "a device could not be initialised",
        "The kernel driver found the device and could not start it.",
        "leave it out (visible-devices variable); reload the driver or power-cycle the box; if "
        "it stays, have the card checked.",
        "'Failed to initialize hl2. Device is NOT usable !'",
    ),
    Code(
        "VA1705",
        "out of device memory",
        "An allocation failed while nearly all of the device was taken.",
        "lower --gpu-memory-utilization, --max-model-len or --max-num-seqs, or use more devices.",
        "'... out of memory. Tried to allocate ...'",
    ),
    Code(
        "VA1706",
        "less device memory is free than was asked for",
        "vLLM asks at start for a share of the whole memory, and another process holds too much "
        "of it.",
        "find the process that holds the memory with the vendor's tool and end it, or lower "
        "--gpu-memory-utilization.",
        "'Free memory on device ... is less than desired GPU memory utilization'",
    ),
    Code(
        "VA1707",
        "the device's memory has uncorrectable errors",
        "The driver counts uncorrectable memory errors, or waits to retire pages or rows.",
        "drain and reset the device; replace it if the count grows.",
        "Xid 48, 63, 64, 94, 95; uncorrectable ECC errors above 0",
    ),
    Code(
        "VA1801",
        "a link is weaker than its siblings",
        "Pairs of the same fabric have different numbers of lanes.",
        "check bridges and cables of the pairs in the finding; keep tensor parallel groups on "
        "the strong pairs.",
        "NV17 beside NV18; NV4 beside NV8",
    ),
    Code(
        "VA1802",
        "a link is not the same in both directions",
        "The matrix names another link from A to B than from B to A: usually a broken link.",
        "check the fabric's state with the vendor's tool, and its log.",
        "an asymmetric link matrix",
    ),
    Code(
        "VA1803",
        "devices made for a fabric show no fabric link",
        "SXM or OAM modules are always wired to a fabric. None of these shows a link: the fabric "
        "manager is not running, or a virtual machine was given devices without it.",
        "start nvidia-fabricmanager (same version as the driver); in a virtual machine ask for "
        "the whole fabric partition.",
        "A100-SXM4 with SYS and PXB only",
    ),
    Code(
        "VA1804",
        "a device's NUMA node is unknown",
        "The tool printed nothing for it, or its text was cut. It is not guessed.",
        "read /sys/bus/pci/devices/BDF/numa_node on the box (`vllm-adapter facts` does).",
        "a blank or N/A affinity cell",
    ),
    Code(
        "VA1805",
        "the network card is on another socket than the device",
        "RDMA then crosses the link between the sockets.",
        "use a card on the device's own node, or put the job on the other socket's device.",
        "SYS between GPU and NIC",
    ),
    Code(
        "VA1806",
        "devices cannot reach each other's memory",
        "Peer access is not supported between them.",
        "switch peer access off (NCCL_P2P_DISABLE=1, --disable-custom-all-reduce); prefer "
        "pipeline or data parallel.",
        "GNS or CNS in `nvidia-smi topo -p2p`",
    ),
    Code(
        "VA1807",
        "all devices name the same CPUs on a machine of several sockets",
        "Either all devices hang on one socket, or a container's CPU set hides the rest.",
        "trust it for binding, and check with `lscpu` on the host if that was not meant.",
        "one CPU affinity for all rows on a two-socket host",
    ),
    Code(
        "VA1901",
        "a port of the collective library is taken",
        "Another job on this host holds the port that the library listens on.",
        "set HCCL_IF_BASE_PORT (and HCCL_NPU_SOCKET_PORT_RANGE) to a free range, or end the "
        "other job.",
        "EJ0003 'Failed to bind the IP port'; EI0019",
    ),
    Code(
        "VA1902",
        "a collective could not set up its network",
        "The collective library found no usable RDMA device, link or address.",
        "check the link state and the interface variables (NCCL_SOCKET_IFNAME, NCCL_IB_HCA, "
        "HCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME).",
        "connection timed out in NCCL, RCCL or HCCL at start",
    ),
    Code(
        "VA1903",
        "Android without device nodes",
        "An Android or Termux system shows applications no accelerator node; vendors' stacks do "
        "not run there.",
        "run on the CPU (VA_FALLBACK=allow), or on a Linux system of the same chip.",
        "Termux or Android in the report",
    ),
    Code(
        "VA1904",
        "CPUs are offline",
        "Some CPUs of the box are switched off: bindings that name them fail.",
        "bind to online CPUs only, or switch them on.",
        "'Off-line CPU(s) list' in lscpu",
    ),
    Code(
        "VA1905",
        "this CPU is slow in bfloat16",
        "Without AVX-512 BF16 or AMX the CPU emulates bfloat16 and cannot use the matrix "
        "routines.",
        "use float32 on this CPU, or a CPU with AVX-512 BF16 or AMX.",
        "a CPU build on a CPU with AVX2 only",
    ),
    Code(
        "VA1906",
        "the device shares the host's memory",
        "CPU and device use the same memory: what one takes, the other lacks.",
        "count the memory once; leave room for the host when setting --gpu-memory-utilization.",
        "MI300A, Grace, an integrated GPU",
    ),
    Code(
        "VA1907",
        "only an integrated GPU is here",
        "It uses system memory and is not taken for an accelerator unless asked.",
        "run on the CPU, or ask for it by name with `vllm-adapter devices --role main=...`.",
        "a laptop without a discrete GPU",
    ),
)
