"""Refuses answers that make no adapter, before any file is written.

It runs wherever cookiecutter does, so it needs nothing but Python. What it says of a name is what
`vllm_adapter.contract.manifest.check_name` says; a test of vllm-adapter holds them together.
"""

import keyword
import re
import sys

VENDOR = {{ '%r' | format(cookiecutter.vendor) }}
NAME = {{ '%r' | format(cookiecutter.__name) }}
RESERVED = {"core", "conformance", "schemas", "template"}
RESERVED |= {"op", "overloads", "default", "out", "selected", "torch"}
TORCHS_OWN = set(
    "cpu cuda ipu xpu mkldnn opengl opencl ideep hip ve fpga maia xla lazy vulkan mps meta hpu mtia "
    "privateuseone".split()
)
ANSWERS = [
    (
        "torch_type",
        {{ '%r' | format(cookiecutter.torch_type) }},
        r"[a-z][a-z_]*",
        "torch reads a device type as lower-case letters and _",
    ),
    (
        "torch_module",
        {{ '%r' | format(cookiecutter.torch_module) }},
        r"|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*",
        "write a Python module's name, or nothing",
    ),
    (
        "pci_vendor",
        {{ '%r' | format(cookiecutter.pci_vendor) }},
        r"|[0-9a-f]{4}",
        "write four lower-case hexadecimal digits, or nothing",
    ),
    (
        "arch",
        {{ '%r' | format(cookiecutter.arch) }},
        r"[A-Za-z0-9_][A-Za-z0-9_.-]*",
        "an arch is letters, digits, _, . and -, as it names a file",
    ),
]


def fault():
    """The first answer that cannot be used, as a sentence; None if all can."""
    if not VENDOR.isprintable() or set(VENDOR) & set('"\\{}'):
        return f'the vendor {VENDOR!r} holds one of " \\ {% raw %}{{ }}{% endraw %} or a control character'
    made = f"the adapter's name, made of the vendor {VENDOR!r}, is {NAME!r}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", NAME):
        return f"{made}; a name is lower-case letters, digits and _, a letter first"
    if len(NAME) > 64:
        return f"{made[:160]}...; a name has at most 64 characters, and not {len(NAME)}"
    if keyword.iskeyword(NAME) or NAME in RESERVED:
        return f"{made}, a name that Python, torch or vllm-adapter keeps for itself"
    if NAME in TORCHS_OWN and {{ '%r' | format(cookiecutter.torch_type) }} != NAME:
        return f"{made}, a device type of torch's own: only the adapter of that device is called so"
    for key, answer, pattern, rule in ANSWERS:
        if not re.fullmatch(pattern, answer, re.ASCII):
            return f"the {key} is {answer!r}; {rule}"
    return None


problem = fault()
if problem:
    sys.exit(f"error: {problem}")
