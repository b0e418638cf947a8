"""Codes VA14 containers and permissions; VA15 the choice of platform and operators; VA16 visible
devices.
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
        "VA1407",
        "the container runtime gives no device",
        "Docker or another runtime cannot give the container its device: the vendor's "
        "toolkit is not installed or not registered, or it failed on the host.",
        "make the vendor's tool work on the host first; install and register its "
        "container toolkit; restart the runtime.",
        "'could not select device driver \"\" with capabilities: [[gpu]]'; 'nvidia- "
        "container-cli: initialization error'",
    ),
    Code(
        "VA1408",
        "Kubernetes gives no device",
        "No node has the resource free, or the vendor's device plug-in does not run there.",
        "`kubectl describe node`: look at Allocatable; check the device plug-in's pods.",
        "'0/3 nodes are available: 3 Insufficient nvidia.com/gpu'",
    ),
    Code(
        "VA1409",
        "the container may not open its device any more",
        "Nodes are there, and the kernel's device rules (cgroup), SELinux or AppArmor "
        "forbid them: often after systemd reloaded its units under a running container.",
        "restart the container; give nodes with --device, not as volumes; relax the label.",
        "'Failed to initialize NVML: Unknown Error'; 'avc: denied'; '/dev/...: Operation "
        "not permitted'",
    ),
    Code(
        "VA1410",
        "processes cannot share device memory",
        "Handles of device memory cannot cross from one process to another: separate IPC "
        "namespaces, a seccomp profile, or an allocator that cannot share.",
        "start all workers in one container with --ipc=host (and SYS_PTRACE for AMD and Intel).",
        "'cudaIpcOpenMemHandle failed'; 'hipIpcOpenMemHandle'; '/dev/dri/by-path' in oneCCL",
    ),
    Code(
        "VA1411",
        "the image is for another processor",
        "Container images and programs are built for one kind of processor; another runs "
        "them emulated or not at all.",
        "take the image of this machine's processor.",
        "'exec format error'; 'does not match the detected host platform'",
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
        "VA1507",
        "Triton counts another number of drivers than one",
        "With no driver Triton sees no GPU; with two a second backend is installed. vLLM "
        "then switches Triton off and fails later with unrelated errors.",
        "make the GPU visible, or uninstall the second backend (triton-cpu).",
        "'0 active drivers ([]). There should only be one.'; 'Triton is installed but 2 "
        "active driver(s) found'",
    ),
    Code(
        "VA1508",
        "vLLM found no platform",
        "Each platform of vLLM said no. What each said is logged at level DEBUG only.",
        "`vllm-adapter doctor --vllm`, or VLLM_LOGGING_LEVEL=DEBUG; follow the other findings.",
        "'Failed to infer device type'; 'UnspecifiedPlatform'",
    ),
    Code(
        "VA1509",
        "the attention backend does not run on this device",
        "Backends need certain architectures, head sizes and data types.",
        "leave the backend to vLLM's own choice.",
        "'FlashAttention only supports Ampere GPUs or newer'",
    ),
    Code(
        "VA1510",
        "a worker was forked after the device was opened",
        "Threads and mappings of a driver do not survive a fork.",
        "set VLLM_WORKER_MULTIPROC_METHOD=spawn, and guard the script with `if __name__ "
        "== '__main__':`.",
        "'Cannot re-initialize CUDA in forked subprocess'",
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
        "VA1603",
        "a visible-devices variable hides every device, or names one that is not here",
        "The variable is empty, or counts devices that this process was not given.",
        "unset it, or list the numbers that the vendor's tool shows in the same place.",
        "CUDA_VISIBLE_DEVICES='' or 7 in a container of one GPU",
    ),
    Code(
        "VA1604",
        "a visible-devices variable holds a UUID where numbers are read",
        "Some releases of vLLM and of its tools read numbers only.",
        "upgrade, or give numbers.",
        "\"invalid literal for int() with base 10: 'MIG-...'\"",
    ),
    Code(
        "VA1605",
        "more devices were asked for than are visible",
        "Tensor and pipeline parallel sizes together need that many devices in this "
        "process (or Ray cluster).",
        "lower the sizes, or make more devices visible.",
        "'World size (8) is larger than the number of available GPUs (4)'",
    ),
    Code(
        "VA1606",
        "MIG is on, and no instance was made",
        "A GPU in MIG mode gives out no device until an instance is made.",
        "make an instance, or switch MIG off.",
        "'No MIG devices found'",
    ),
)
