"""Errors of CUDA, NVML and nvidia-smi that name their fault. Numbers are cudaError_t's."""

from __future__ import annotations

from typing import Final

from vllm_adapter.doctor.finding import Severity
from vllm_adapter.doctor.rule import Box
from vllm_adapter.doctor.rules._where import cuda
from vllm_adapter.doctor.rules.health import FABRIC
from vllm_adapter.doctor.text_rule import TextRule


def _untold(box: Box) -> bool:
    """Whether no device of the facts is throttled: the lines are not below a device's head."""
    return not any(one.health.throttle_reasons for one in box.facts.accelerators)


def _fabric_untold(box: Box) -> bool:
    """Whether no device of the facts has an error of the fabric."""
    return not any(
        FABRIC in error for one in box.facts.accelerators for error in one.health.errors
    )


RULES: Final = (
    TextRule(
        "VA1104",
        ("forward compatibility was",),
        r"(?i)forward compatibility was attempted on non supported HW",
        "a cuda-compat libcuda is first on the loader's path, and this GPU may not use it "
        "(only data-centre GPUs may)",
    ),
    TextRule(
        "VA1105",
        ("unsupported toolchain", "ptx jit", "unsupported_ptx_version"),
        r"(?i)provided PTX was compiled with an unsupported toolchain|a PTX JIT compilation failed"
        r"|CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        "the driver is too old to compile this program's PTX, although it starts programs of this "
        "CUDA major version",
        "upgrade the driver to the one that the toolkit of this program ships, or use a build "
        "that holds machine code for this GPU",
    ),
    TextRule(
        "VA1110",
        ("nvml", "nvidia-smi has failed", "rminitadapter", "modprobe"),
        r"(?i)NVIDIA-SMI has failed because it couldn.t communicate with the NVIDIA driver"
        r"|NVML: Driver Not Loaded|NVMLError_DriverNotLoaded|modprobe: (?:FATAL|ERROR): .*nvidia",
        "the NVIDIA kernel module is not loaded on this host: it was not installed, not built for "
        "this kernel after an upgrade (DKMS), refused by Secure Boot, or blacklisted for nouveau",
        "`dkms status`, `modprobe nvidia` and `dmesg | grep -i nvrm` say why; reinstall the "
        "driver for the running kernel (`uname -r`), or sign the module, then load it",
        unless=(r"(?i)microsoft-standard-WSL2",),
    ),
    TextRule(
        "VA1113",
        ("stub library",),
        r"(?i)CUDA driver is a stub library",
        "the loader found the toolkit's stub of libcuda (made for linking only) before the "
        "driver's own",
        "take .../lib64/stubs out of LD_LIBRARY_PATH, and look at `ldconfig -p | grep libcuda`",
    ),
    TextRule(
        "VA1114",
        ("cuda unknown error", "error 999", "cuda_error_unknown", "error 304", "os call failed"),
        r"(?i)CUDA unknown error - this may be due to an incorrectly set ?up environment"
        r"|CUDA_ERROR_UNKNOWN\b|\bError 999: unknown error"
        r"|OS call failed or operation not supported on this OS",
        "CUDA could not be initialised although a driver answers: nvidia-uvm is not loaded or "
        "hangs (often after sleep), its node is not in this container, or CUDA_VISIBLE_DEVICES "
        "was changed after the program's start",
        "reload it (`rmmod nvidia_uvm; modprobe nvidia_uvm`) or reboot; check /dev/nvidia-uvm in "
        "the container; run `nvidia-modprobe -u -c=0` on the host",
        on=cuda,
    ),
    TextRule(
        "VA1203",
        ("kernel image is invalid", "cudaerrorinvalidkernelimage", "cuda_error_invalid_image"),
        r"(?i)device kernel image is invalid|cudaErrorInvalidKernelImage|CUDA_ERROR_INVALID_IMAGE",
        "the driver cannot read the machine code of a kernel: it was built by a newer toolkit "
        "than this driver knows, for another architecture, or its file is damaged",
        "upgrade the driver or use the build of an older CUDA; clear the caches of Triton and "
        "torch (~/.triton/cache, /tmp/torchinductor_*)",
    ),
    TextRule(
        "VA1707",
        ("uncorrectable ecc", "cudaerroreccuncorrectable"),
        r"(?i)uncorrectable ECC error encountered|cudaErrorECCUncorrectable",
        "a computation met an uncorrectable error of the device's memory",
        "drain the device, read `nvidia-smi -q -d ECC,ROW_REMAPPER`, reset it (`nvidia-smi "
        "--gpu-reset -i N`), and have it replaced if the count grows",
    ),
    TextRule(
        "VA1708",
        ("busy or unavailable", "cudaerrordevicesunavailable"),
        r"(?i)CUDA-capable device\(s\) is/are busy or unavailable|cudaErrorDevicesUnavailable",
        "the driver gives out no context on the device: another process holds it in compute mode "
        "EXCLUSIVE_PROCESS, MIG is on and no instance was made, or the device hangs",
        "`nvidia-smi -q -d COMPUTE` shows the mode (`nvidia-smi -c DEFAULT` ends it), "
        "`nvidia-smi -L` the MIG instances; end the other process, or reset the device",
    ),
    TextRule(
        "VA1808",
        ("system not yet initialized", "system_not_ready", "systemnotready"),
        r"(?i)system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        "these GPUs are joined by NVSwitch, and the fabric manager has not made them ready: it "
        "does not run, or is not of the driver's version",
        "install nvidia-fabricmanager of exactly the driver's version and start it "
        "(`systemctl enable --now nvidia-fabricmanager`); on a virtual machine the host must "
        "run it; B200 and later need nvlsm as well",
    ),
    TextRule(
        "VA1709",
        ("gpu requires reset", "reset required", "gpu recovery action"),
        r"(?i)GPU requires reset|Reset required\s*:\s*Yes"
        r"|GPU reset required\b|GPU Recovery Action\s*:\s*(?!None)\S.*",
        "the driver says that the GPU works again only after a reset",
        "end all programs on it, `nvidia-smi --gpu-reset -i N`; if that fails, reboot the host",
    ),
    TextRule(
        "VA1510",
        ("re-initialize cuda", "re-initialize hpu", "re-initialize xpu", "re-initialize npu"),
        r"(?i)Cannot re-initialize (?P<device>CUDA|XPU|NPU|HPU|MUSA) in forked subprocess",
        "a worker was forked after its parent had opened the {device} device, which no driver "
        "survives",
    ),
    TextRule(
        "VA1913",
        ("wsl is detected",),
        r"Using 'pin_memory=False' as WSL is detected",
        "vLLM does not pin memory under WSL: copies between host and device are slower",
        "nothing; a Linux host has the full rate",
        Severity.NOTE,
    ),
    TextRule(
        "VA1808",
        ("fabric manager", "fabricmanager", "in progress"),
        r"(?i)fabric ?manager[^\n]*(?:don't match|do not match|version mismatch|failed to start|"
        r"is not running)|^\s*State\s*:\s*In Progress\s*$|<state>In Progress</state>",
        "the fabric manager of these NVSwitch GPUs does not run, or is of another version",
        "install nvidia-fabricmanager of exactly the driver's version and start it",
        only=r"(?i)fabric",
        on=_fabric_untold,
    ),
    TextRule(
        "VA1606",
        ("no mig devices found",),
        r"No MIG devices found",
        "MIG is on for a GPU, and no instance of it was made: CUDA finds no device there",
        "make one (`nvidia-smi mig -cgi PROFILE -C`), or end MIG (`nvidia-smi -i N -mig 0`)",
    ),
    TextRule(
        "VA1702",
        ("slowdown",),
        r"^\s*(?P<what>(?:HW|SW) Thermal Slowdown|"
        r"HW Power Brake Slowdown|HW Slowdown)\s*:\s*Active",
        "a GPU is held down: {what}",
        severity=Severity.WARNING,
        on=_untold,
    ),
    TextRule(
        "VA1114",
        ("mps client failed", "mps server", "cuda_error_mps"),
        r"MPS client failed to connect|MPS server is not ready|CUDA_ERROR_MPS_\w+",
        "CUDA goes through the multi-process service (MPS), which does not answer",
        "`echo quit | nvidia-cuda-mps-control` and start it anew as the same user, or unset "
        "CUDA_MPS_PIPE_DIRECTORY",
    ),
    TextRule(
        "VA1705",
        ("cublas_status_alloc_failed", "cublascreate(handle)"),
        r"CUBLAS_STATUS_ALLOC_FAILED|CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
        "cuBLAS got no memory for its workspace: the device is full (seldom: cuBLAS is of another "
        "CUDA than torch)",
        "lower --gpu-memory-utilization; unset LD_LIBRARY_PATH where it points at another CUDA",
    ),
    TextRule(
        "VA1203",
        ("cublas_status_arch_mismatch",),
        r"CUBLAS_STATUS_ARCH_MISMATCH",
        "the cuBLAS that is loaded has no code for this GPU's architecture",
        "install a torch build for a CUDA that lists the GPU (12.8 or newer for sm_100 and "
        "sm_120; cu126 or older below sm_75)",
    ),
)
