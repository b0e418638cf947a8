"""Codes VA17 health and memory; VA18 topology; VA19 system and network."""

from __future__ import annotations

from typing import Final

from vllm_adapter._code import Code

STATE_CODES: Final = (
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
        "a device is not usable, or not healthy",
        "The kernel driver found the device and could not start it, or the vendor's tool gives "
        "an alarm for it.",
        "leave it out (visible-devices variable); reload the driver or power-cycle the box; if "
        "it stays, have the card checked.",
        "'Failed to initialize hl2. Device is NOT usable !'; 'Alarm' in npu-smi",
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
        "VA1708",
        "another process holds the device, which serves one at a time",
        "A device in exclusive mode, a Gaudi, a TPU or an NPU's communication serves one "
        "process; that process may be left over from a crash.",
        "find the holder with the vendor's tool and end it, or take another device.",
        "'CUDA-capable device(s) is/are busy or unavailable'; 'Device already acquired'; "
        "'TPU is already in use'",
    ),
    Code(
        "VA1709",
        "a device hung or needs a reset",
        "The driver stopped work on the device; programs on it are lost.",
        "end its programs, reset it with the vendor's tool, else reboot; upgrade driver "
        "and firmware where it returns.",
        "Xid 119, 62, 109; 'GPU reset begin!'; 'GPU HANG'; UR_RESULT_ERROR_DEVICE_LOST",
    ),
    Code(
        "VA1710",
        "a program's own error is in the kernel's log",
        "An access out of bounds or the end of a program: the device is in order.",
        "look for that program's error.",
        "Xid 13, 31, 43, 45",
    ),
    Code(
        "VA1711",
        "the host's memory ran out",
        "The kernel (or the container's limit) ended a process.",
        "give more memory, or load with fewer workers at once.",
        "'Out of memory: Killed process'; exit code 137; exitcode -9",
    ),
    Code(
        "VA1712",
        "no memory is left for the KV cache",
        "Weights and activations fill the device.",
        "lower --max-model-len, use a smaller checkpoint or more devices.",
        "'No available memory for the cache blocks'",
    ),
    Code(
        "VA1714",
        "a sensor of a device cannot be read",
        "One value of many is missing: older cards do not have every sensor.",
        "nothing; if work on the device fails as well, look at the kernel's log (`dmesg`).",
        "'ERR!' for the power or the fan in nvidia-smi's table",
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
        "Either all devices hang on one socket, or a container's CPU set hides the rest. It is "
        "a note where nothing hints at such a set.",
        "trust it for binding, and check with `lscpu` on the host if that was not meant.",
        "one CPU affinity for all rows on a two-socket host",
    ),
    Code(
        "VA1808",
        "the NVSwitch fabric is not ready, or not healthy",
        "GPUs joined by NVSwitch start only after the fabric manager has set the switches "
        "up; it must be of the driver's exact version.",
        "start nvidia-fabricmanager of the driver's version.",
        "error 802: 'system not yet initialized'; 'Unhealthy' below Fabric in nvidia-smi -q",
    ),
    Code(
        "VA1809",
        "an NVLink has errors",
        "The kernel's log names errors of a link.",
        "`nvidia-smi nvlink -e`; reseat or replace bridge or board if they grow.",
        "Xid 74",
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
    Code(
        "VA1908",
        "a library uses instructions that this CPU lacks",
        "Wheels and images for the CPU are compiled for AVX-512 or AVX2; older CPUs and "
        "many virtual machines do not have them.",
        "build here for this CPU, or pass the host's CPU through.",
        "'Illegal instruction (core dumped)'",
    ),
    Code(
        "VA1909",
        "a port is taken",
        "Another program listens on the port of the server or of its workers.",
        "take another port, or end that program (`ss -ltnp`).",
        "'address already in use'; EADDRINUSE 29500",
    ),
    Code(
        "VA1910",
        "a limit of the process is reached",
        "Threads, processes or open files.",
        "raise the limits (`--pids-limit`, `--ulimit nofile`).",
        "\"can't start new thread\"; 'Too many open files'",
    ),
    Code(
        "VA1912",
        "binding to CPUs or memory is not allowed, or not possible",
        "A container may not bind by default; numactl may be missing; a binding may name "
        "what the cpuset leaves out.",
        "`--cap-add SYS_NICE`, install numactl, bind within the cpuset.",
        "'set_mempolicy: Operation not permitted'; 'numactl: command not found'",
    ),
    Code(
        "VA1913",
        "pinned memory is off under WSL",
        "vLLM does not pin host memory there.",
        "nothing; a Linux host has the full rate.",
        "\"Using 'pin_memory=False' as WSL is detected\"",
    ),
    Code(
        "VA1914",
        "a collective waited for other ranks in vain",
        "One rank died, started late or is not reachable; all others time out.",
        "find the first error of all ranks; check links; raise the timeout where loading is slow.",
        "HCCL EI0002, EI0006; 'Watchdog caught collective operation timeout'",
    ),
    Code(
        "VA1915",
        "the collective library failed",
        "NCCL or RCCL gives a general error; its own log has the reason.",
        "run again with NCCL_DEBUG=INFO; check /dev/shm and memlock.",
        "'NCCL error: unhandled system error'",
    ),
    Code(
        "VA1916",
        "vLLM has no build for Windows",
        "vLLM runs on Linux and macOS; on Windows inside WSL 2.",
        "install WSL 2 with a Linux distribution, and vLLM in it.",
        "'Microsoft Windows' in the report",
    ),
    Code(
        "VA1917",
        "a disk is full",
        "Models, caches and compiled kernels need room.",
        "point the caches at a larger disk.",
        "'No space left on device'",
    ),
)
