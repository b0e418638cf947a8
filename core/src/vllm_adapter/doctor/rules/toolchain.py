"""Compilers at run time: Triton, torch.compile and just-in-time extensions."""

from __future__ import annotations

from typing import Final

from vllm_adapter.doctor.text_rule import TextRule

RULES: Final = (
    TextRule(
        "VA1217",
        ("failed to find c compiler", "no working c++ compiler", "invalidcxxcompiler",
         "cannot find cc", "cannot find a compiler"),
        r"Failed to find C compiler|InvalidCxxCompiler|No working C\+\+ compiler found"
        r"|Cannot find CC\b|Cannot find a compiler",
        "a kernel is compiled when it is first used (Triton, torch.compile), and there is no C "
        "compiler in this environment",
        "install one (`apt-get install build-essential`), or set CC and CXX; --enforce-eager "
        "does without torch.compile, not without Triton",
    ),
    TextRule(
        "VA1217",
        ("fatal error:",),
        r"fatal error: (?P<file>Python\.h|'?omp\.h'?|cuda\.h|cuda_runtime\.h|cuda_bf16\.h|"
        r"level_zero/ze_api\.h|hip/hip_runtime\.h|numa\.h)'?(?:: No such file| file not found)",
        "the header {file} is not installed, and a kernel is compiled when it is first used",
        "Python.h: `apt-get install python3-dev` of this Python; omp.h on macOS: `brew install "
        "libomp` and point CPATH at it; cuda.h: the CUDA toolkit's headers; ze_api.h: "
        "level-zero-dev; numa.h: libnuma-dev",
    ),
    TextRule(
        "VA1217",
        ("could not find nvcc", "nvcc", "cuda_home environment variable", "ninja is required",
         "ninja"),
        r"CUDA_HOME environment variable is not set|[Cc]ould not find nvcc"
        r"|nvcc: (?:command )?not found|No such file or directory: '[^']*\bn(?:vcc|inja)'"
        r"|Ninja is required to load C\+\+ extensions",
        "an extension or FlashInfer is compiled when it is first used, and the CUDA toolkit's "
        "compiler (or ninja) is not here",
        "install the CUDA toolkit of torch's version and set CUDA_HOME, `pip install ninja`; or "
        "use a wheel with the kernels compiled in (for FlashInfer: flashinfer-jit-cache)",
    ),
    TextRule(
        "VA1218",
        ("gpu-name", "unsupported gpu architecture", "unsupported .version", "gpu arch",
         "not a recognized processor", "unsupported ptx version"),
        r"ptxas fatal\s*: Value '(?P<arch>sm_\w+)' is not defined for option 'gpu-name'",
        "the ptxas that Triton calls does not know {arch}: it is older than this GPU",
        "upgrade Triton with torch (its own ptxas), or set TRITON_PTXAS_PATH to the ptxas of a "
        "CUDA toolkit that knows {arch} (12.8 for sm_100 and sm_120, 13.0 for sm_121)",
    ),
    TextRule(
        "VA1218",
        ("unsupported gpu architecture",),
        r"nvcc fatal\s*: Unsupported gpu architecture '(?P<arch>\w+)'",
        "this CUDA toolkit's nvcc cannot compile for {arch}: the toolkit is older than the GPU, "
        "or so new that it has dropped the architecture",
        "use a toolkit that knows it (12.8 to 13 for compute_120; below 13 for compute_70 and "
        "older), or set TORCH_CUDA_ARCH_LIST",
    ),
    TextRule(
        "VA1218",
        ("not a recognized processor", "unsupported .version", "cannot select"),
        r"'(?P<arch>gfx\w+|sm_\w+)' is not a recognized processor"
        r"|ptxas[^\n]*Unsupported \.version (?P<ptx>[\d.]+)",
        "the compiler in this environment is older than what it is asked to compile for {arch}",
        "upgrade Triton and torch together; keep one toolkit on PATH",
    ),
    TextRule(
        "VA1219",
        ("out of resource",),
        r"out of resources?: (?P<what>shared memory|registers|threads), Required: (?P<need>\d+), "
        r"Hardware limit: (?P<limit>\d+)",
        "a Triton kernel wants {need} of {what}, and a block of this device has {limit}: its tile "
        "sizes were chosen for a larger device",
        "use another attention backend (--attention-backend), a smaller block (num_stages, "
        "BLOCK sizes; head sizes above 128 suffer first), or a newer Triton",
    ),
    TextRule(
        "VA1108",
        ("too old to be supported by the triton",),
        r"Found (?P<name>.{1,80}?) which is too old to be supported by the triton GPU compiler"
        r"[^\n]*",
        "{name} is older than Triton's oldest architecture (compute capability 7.0)",
        "take another device: vLLM's kernels need 7.0, most of them 7.5 or later",
    ),
    TextRule(
        "VA1507",
        ("active driver",),
        r"(?P<count>\d+) active driver\(?s?\)? ?(?:\(\[(?P<names>[^\]]*)\]\)\. "
        r"There should only be one|found \(expected 1\)\. Disabling Triton)",
        "Triton counts {count} drivers ({names}) where one should be: with none it sees no GPU, "
        "with two a CPU backend of Triton is installed beside the GPU's",
        "0: make the GPU visible first (the other findings); 2: uninstall the second backend "
        "(triton-cpu), or set TRITON_DEFAULT_BACKEND",
        only=r"There should only be one|\b[2-9]\d* active driver",
    ),
)  # fmt: skip
