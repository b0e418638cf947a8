"""Codes VA10, VA11 and VA13: the report itself; drivers; data types."""

from __future__ import annotations

from typing import Final

from vllm_adapter._code import Code

BUILD_CODES: Final = (
    Code(
        "VA1001",
        "the collector of the report crashed itself",
        "The tool that should describe the environment raised an error before it was done, so "
        "that the report is not whole. The rest was read.",
        "mend what its traceback names, and run it again; or run `vllm-adapter facts` on the box.",
        "a traceback of collect_env.py inside a report",
    ),
    Code(
        "VA1002",
        "the report is cut or was not printed whole",
        "A table in the report lacks rows or says that it shows only a part. What is missing is "
        "left unknown, or completed from the symmetric cell where that is said.",
        "run the tool again and paste all of its output; or run `vllm-adapter facts` on the box.",
        "a matrix with fewer rows than columns; 'only displaying N'",
    ),
    Code(
        "VA1101",
        "driver too old for the runtime",
        "The NVIDIA driver is older than the minimum of the runtime's major version that torch "
        "was built with (13.x: 580, 12.x: 525, 11.x: 450). Within one major version any driver "
        "above that minimum works; the toolkit's own driver is not the minimum.",
        "upgrade the driver to the major version's minimum, or install a torch build for an "
        "older major version.",
        "'The NVIDIA driver on your system is too old (found version ...)'",
    ),
    Code(
        "VA1102",
        "no driver can be reached",
        "The runtime finds no NVIDIA driver at all: no libcuda.so.1, no device node. CUDA error "
        "35 has the same text as for an old driver. Usual cause: a container that was started "
        "without its GPUs, or a machine without the driver.",
        "check /dev/nvidiactl and libcuda.so.1 first; start the container with `--gpus all` (see "
        "`vllm-adapter container`), or install the driver on the host.",
        "'CUDA driver version is insufficient for CUDA runtime version'; 'libcuda.so.1: cannot "
        "open shared object file'",
    ),
    Code(
        "VA1103",
        "kernel module and user-space driver differ",
        "The NVIDIA libraries were upgraded (often unattended), while the old kernel module is "
        "still loaded. Running jobs go on; no new one starts.",
        "reboot, or stop all GPU programs and reload the nvidia modules.",
        "'Failed to initialize NVML: Driver/library version mismatch'; error 803",
    ),
    Code(
        "VA1104",
        "forward-compatibility package on hardware that may not use it",
        "A cuda-compat libcuda comes first on the loader's path, and this GPU is not one of the "
        "data-centre GPUs that may use it.",
        "take the compat folder out of LD_LIBRARY_PATH (and run ldconfig); a newer driver also "
        "ends it.",
        "error 804: 'forward compatibility was attempted on non supported HW'",
    ),
    Code(
        "VA1105",
        "driver older than the toolkit of this build, within one major version",
        "Minor-version compatibility covers this: programs start and run. Code that is compiled "
        "from PTX at run time, and the newest features, may still want the newer driver.",
        "nothing, unless an error speaks of PTX or 'unsupported toolchain': then upgrade the "
        "driver to the one that the toolkit ships.",
        "CUDA works although the driver's CUDA version is below torch's",
    ),
    Code(
        "VA1106",
        "WSL has no working CUDA from Windows",
        "The driver's stub answers with version 0, ERR! or not at all: Windows gives this WSL no "
        "GPU. It needs a Windows build with CUDA support in WSL 2 and NVIDIA's Windows driver; "
        "a Linux driver inside WSL breaks it.",
        "upgrade Windows (build 20145 or later) and the NVIDIA driver on Windows, run `wsl "
        "--update`, remove NVIDIA driver packages from inside WSL.",
        "'Driver Version: 0' or 'CUDA Version: ERR!' in WSL",
    ),
    Code(
        "VA1107",
        "a newer libcuda than the kernel driver is in play",
        "nvidia-smi reports a CUDA version that this driver branch does not have: a "
        "forward-compatibility package is loaded. It is the library's version, not the driver's.",
        "judge by the driver version; on GeForce cards remove the package.",
        "driver 535 beside 'CUDA Version: 12.5'",
    ),
    Code(
        "VA1108",
        "driver or device too old for any supported runtime",
        "The driver's branch, or the device's architecture, ended before the oldest runtime that "
        "vLLM's builds need (CUDA 11.8: driver 450 or later).",
        "upgrade the driver; where the device's last driver is older, take another device.",
        "an NVIDIA driver below 450; compute capability 2.x, 3.x",
    ),
    Code(
        "VA1109",
        "ROCm's kernel driver and its libraries do not go together",
        "The kernel driver is outside the range of releases that this ROCm user space supports.",
        "install a kernel driver and a ROCm of the same year; see AMD's compatibility matrix.",
        "hangs or 'invalid argument' from ROCm with healthy device nodes",
    ),
    Code(
        "VA1110",
        "the kernel driver is not loaded",
        "The vendor's kernel module is not in the running kernel: not installed, not "
        "built for this kernel after an upgrade, refused by Secure Boot, or blacklisted. "
        "A container uses the host's.",
        "load it on the host (`modprobe nvidia`, amdgpu, habanalabs, neuron); where that "
        "fails, reinstall the driver for `uname -r`.",
        "'NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver'; "
        "'ROCk module is NOT loaded'; 'habanalabs driver is not loaded'",
    ),
    Code(
        "VA1111",
        "the runtime counts no device",
        "The vendor's runtime was loaded and finds no device in this process: the nodes "
        "are not in the container or may not be opened, the user-space driver is missing, "
        "or a visible-devices variable hides all.",
        "make the vendor's tool show a device in the same place first (`vllm-adapter "
        "container` prints the flags), then unset the visible-devices variables.",
        "'No HIP GPUs are available'; 'XPU device count is zero'; 'no MUSA-capable device "
        "is detected'; 'No CUDA GPUs are available' beside a working nvidia-smi",
    ),
    Code(
        "VA1112",
        "Ascend's driver and CANN do not go together",
        "The host's driver or firmware is older than the CANN of this environment needs "
        "(or far newer). It also shows as a hang at the first call.",
        "compare the versions with the table of CANN's release; upgrade driver, then "
        "firmware, on the host.",
        "'error code is 507008' or 507899 of aclInit or SetDevice",
    ),
    Code(
        "VA1113",
        "a stub of libcuda is loaded",
        "The CUDA toolkit has a libcuda for linking only. The loader found it before the "
        "driver's.",
        "take the stubs folder out of LD_LIBRARY_PATH.",
        "error 34: 'CUDA driver is a stub library'",
    ),
    Code(
        "VA1114",
        "CUDA cannot be initialised",
        "A driver answers, and its first call fails without a reason: nvidia-uvm is not "
        "loaded or hangs (often after sleep), its node is missing, or the environment was "
        "changed too late.",
        "reload nvidia_uvm or reboot; check /dev/nvidia-uvm.",
        "'CUDA unknown error - this may be due to an incorrectly set up environment'; error 999",
    ),
    Code(
        "VA1115",
        "the loaded driver does not support this device",
        "The driver's branch has dropped the device, does not know it yet, or is of the "
        "wrong kind: Blackwell works with the open kernel modules only.",
        "install the branch that lists the device; for Blackwell nvidia-open.",
        "'NVRM: The NVIDIA GPU ... is not supported by the ... driver release'",
    ),
    Code(
        "VA1116",
        "nvidia-smi finds no libcuda",
        "The driver answers NVML, and no libcuda.so.1 answers: the container was given "
        "the tools without the compute libraries.",
        "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility (or all), "
        "and run ldconfig.",
        "'CUDA Version: N/A' or 'ERR!' in nvidia-smi outside of WSL",
    ),
    Code(
        "VA1117",
        "Gaudi's driver and software are of different releases",
        "The vendor pairs both by their number.",
        "install the driver of the software's release on the host, or take the image of "
        "the driver's release.",
        "habana-torch-plugin 1.20 beside driver 1.19",
    ),
    Code(
        "VA1301",
        "the device has no bfloat16",
        "bfloat16 needs compute capability 8.0 on NVIDIA; 310P and others lack it as well.",
        "use `--dtype float16` (half).",
        "'Bfloat16 is only supported on GPUs with compute capability of at least 8.0'",
    ),
    Code(
        "VA1302",
        "the device has no native FP8 of this kind",
        "Native FP8 (e4m3) needs compute capability 8.9 on NVIDIA, gfx94 or gfx95 or gfx12 on "
        "AMD; weight-only FP8 works from 8.0 through Marlin.",
        "use weight-only FP8 (W8A16, Marlin), INT8 or FP16; the memory doubles where FP8 "
        "weights become FP16.",
        "'type fp8e4nv not supported in this architecture'",
    ),
    Code(
        "VA1303",
        "FP8 of the other flavour",
        "gfx942 computes in e4m3fnuz (largest value 240), a checkpoint holds e4m3fn (448): the "
        "same bits mean half the value.",
        "convert with scales times two, or use a release that does so by itself.",
        "garbage output of an FP8 checkpoint on MI300",
    ),
    Code(
        "VA1304",
        "this quantisation has no kernel on this platform",
        "The checkpoint's quantisation needs kernels that the platform's build does not hold.",
        "use an unquantised (bfloat16) or INT8 checkpoint on this platform.",
        "\"object has no attribute 'gptq_marlin_repack'\" on a CPU",
    ),
)
