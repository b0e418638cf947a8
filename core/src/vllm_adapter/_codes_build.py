"""Codes VA10 to VA13: the report itself; drivers; builds and packages; data types."""

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
        "VA1201",
        "torch is a build for another device",
        "A device is on this box, and the installed torch was built without support for it: a "
        "CPU build on a GPU machine, or a build of another vendor.",
        "install the torch build of this device; inside a container start it with its devices.",
        "'Is CUDA available: False' on a machine with a GPU; torch ends in +cpu",
    ),
    Code(
        "VA1202",
        "vLLM and torch are builds for different devices",
        "The vLLM wheel holds kernels for one device, and torch was built for another: its "
        "libraries cannot be loaded.",
        "install vLLM and torch as a matching pair, in a fresh environment.",
        "'libcudart.so.12: cannot open shared object file' beside a +cpu torch",
    ),
    Code(
        "VA1203",
        "torch has no code for this device's architecture",
        "The torch build does not list the device's architecture, and no compatible one.",
        "install a torch build whose list holds it, or an older release that still did.",
        "'no kernel image is available for execution on the device'; 'invalid device function'",
    ),
    Code(
        "VA1204",
        "an extension has no code for this device's architecture",
        "The message comes from a package beside torch (flashinfer, LoRA kernels, xformers): its "
        "wheel was built without this architecture, or its kernels need a newer one.",
        "switch that feature off (another attention backend, no LoRA), or build the package for "
        "this architecture.",
        "'no kernel image is available' with the path of an extension",
    ),
    Code(
        "VA1205",
        "two packages disagree about a symbol",
        "A shared library asks another one for a symbol that it does not have: they were built "
        "against different releases, or with another C++ ABI.",
        "install the two packages of the finding as a matching pair; unset LD_LIBRARY_PATH where "
        "it points at another copy.",
        "'undefined symbol: ...'",
    ),
    Code(
        "VA1206",
        "a shared library is missing",
        "The loader does not find a system library in this environment. In a container the "
        "host's packages do not count.",
        "install the package that holds it, in the image itself.",
        "'error while loading shared libraries: libgomp.so.1'",
    ),
    Code(
        "VA1207",
        "the C library is older than a wheel needs",
        "A compiled package needs a newer glibc (or libstdc++) than this system has.",
        "use a newer system or image, or build the package here.",
        '"version `GLIBC_2.32\' not found"',
    ),
    Code(
        "VA1208",
        "torch is not installed",
        "The report says that there is no torch. The hardware may be fine.",
        "install torch (the build of this device) first, then vLLM.",
        "'PyTorch version: N/A'",
    ),
    Code(
        "VA1209",
        "vLLM's compiled kernels are missing",
        "vllm._C cannot be imported because it is not there: a source tree that was not built, "
        "a folder named vllm in the way, or a wheel for another Python.",
        "install a wheel, or build the tree; do not start Python inside the source folder.",
        "\"No module named 'vllm._C'\"",
    ),
    Code(
        "VA1210",
        "two copies of an OpenMP library, or its memory is reserved too late",
        "libgomp needs static thread-local memory and is loaded after too much else took it; "
        "often two copies are loaded (torch's own and the system's).",
        "LD_PRELOAD the libgomp of the message, or import torch first; keep one copy.",
        "'libgomp...: cannot allocate memory in static TLS block'",
    ),
    Code(
        "VA1211",
        "vLLM and its plug-in are of different releases",
        "A name that the plug-in imports is not in the installed vLLM (or the other way round). "
        "The hardware is not the cause.",
        "install the plug-in release that names this vLLM release.",
        "'cannot import name ... from vllm...' with vllm_ascend or another plug-in",
    ),
    Code(
        "VA1212",
        "a package's generated files are missing",
        "A source tree is used that was never built: its version file or compiled module is not "
        "there.",
        "install the package with pip (`pip install .` or `-e .`), or use a wheel.",
        "\"No module named '..._version'\"",
    ),
    Code(
        "VA1213",
        "the device's kernel package is not installed",
        "The toolkit has no operator binaries for this chip.",
        "install the kernels package of this chip and toolkit release.",
        "'op type ... is not found in this op store'",
    ),
    Code(
        "VA1214",
        "a Python package is missing or too old",
        "An import fails in a package that vLLM needs.",
        "install or upgrade the package that the finding names, then `pip check`.",
        "'ModuleNotFoundError: No module named ...'",
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
