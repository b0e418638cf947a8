"""Codes VA12: builds and packages that do not fit the box or each other."""

from __future__ import annotations

from typing import Final

from vllm_adapter._code import Code

PACKAGE_CODES: Final = (
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
        "VA1215",
        "a vendor's toolkit is not installed, or its environment was not set up",
        "A library of the vendor's toolkit is not on the loader's path. Most toolkits "
        "want their set-up file sourced in every shell.",
        "source the toolkit's file (CANN set_env.sh, oneAPI setvars.sh), or install the "
        "toolkit of this torch.",
        "'libhccl.so', 'libascendcl.so', 'libsycl.so.8', 'libamdhip64.so.6': cannot open "
        "shared object file",
    ),
    Code(
        "VA1216",
        "a package was compiled for another NumPy",
        "NumPy 2 changed its binary interface.",
        "`pip install 'numpy<2'`, or upgrade the package in the traceback.",
        "'A module that was compiled using NumPy 1.x cannot be run in NumPy 2'; "
        "'numpy.dtype size changed'",
    ),
    Code(
        "VA1217",
        "a compiler or a header is missing for kernels compiled at run time",
        "Triton, torch.compile and some extensions compile when they are first used. They "
        "need a C compiler, Python's headers, or the vendor's toolkit.",
        "install the compiler or header that the finding names, in the image itself.",
        "'Failed to find C compiler'; \"fatal error: 'omp.h' file not found\"; 'Python.h: "
        "No such file or directory'",
    ),
    Code(
        "VA1218",
        "a compiler does not know the device's architecture",
        "ptxas, nvcc or LLVM in this environment is older than the device, or has dropped it.",
        "upgrade Triton and torch together, or point at a toolkit that knows the architecture.",
        "\"ptxas fatal: Value 'sm_120' is not defined for option 'gpu-name'\"",
    ),
    Code(
        "VA1219",
        "a kernel needs more than a block of this device has",
        "A kernel's tile sizes were chosen for a device with more shared memory.",
        "use another attention backend or smaller blocks.",
        "'out of resource: shared memory, Required: ..., Hardware limit: ...'",
    ),
    Code(
        "VA1220",
        "torch and a package built for it are of different releases",
        "torch_npu, torchvision and torchaudio are compiled for one torch release. "
        "Another package has replaced torch.",
        "install torch and its companions in one command from one index, then `pip check`.",
        "'operator torchvision::nms does not exist'; torch_npu 2.5 beside torch 2.7",
    ),
    Code(
        "VA1221",
        "two Python packages are of different releases",
        "A name that one package imports is not in the installed release of the other.",
        "install the release that the importing package names; `pip check`.",
        "'cannot import name ... from transformers...'",
    ),
    Code(
        "VA1222",
        "code of another architecture is forced onto the device",
        "HSA_OVERRIDE_GFX_VERSION makes ROCm load another architecture's code, and it "
        "faults on this one.",
        "unset the variable and install builds that hold code for the device.",
        "'Memory access fault by GPU' with HSA_OVERRIDE_GFX_VERSION set",
    ),
    Code(
        "VA1223",
        "a package is for another Python",
        "The package's range of Python releases does not hold the one of this environment.",
        "make an environment with a Python in its range.",
        "'requires a different Python'",
    ),
    Code(
        "VA1224",
        "an extension is compiled with another CUDA than torch's",
        "The toolkit that compiles and the one that torch was built with are of different "
        "major versions.",
        "point CUDA_HOME at a toolkit of torch's version.",
        "'The detected CUDA version mismatches the version that was used to compile PyTorch'",
    ),
)
