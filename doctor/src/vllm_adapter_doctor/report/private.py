"""Takes out of facts what names a person or a machine, before they are printed and mailed.

Host names, user names, home folders, serial numbers and addresses of networks; secrets were taken
out when the facts were read. Versions and bus addresses look like addresses and stay.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from vllm_adapter.hostfacts.facts import Accelerator, HostFacts, Line
from vllm_adapter_doctor.report.secrets import MASK, hidden, is_secret

_HOME: Final = re.compile(r"/(?:home|Users)/[^/\s:;,'\"|]+")
_SERIAL: Final = re.compile(
    r"(?i)(?P<head>\bserial(?:[ _-]?(?:number|no|num))?\b['\"\])]*\s*[:=|]?\s*['\"]?)"
    r"(?P<value>(?=[\w-]*\d)[\w-]{6,})"
)
_IPV4: Final = re.compile(
    r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}"
    r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?![\w.]|-\w)"
)
_IPV6: Final = re.compile(
    r"(?<![\w:.])(?=[0-9a-fA-F:]*[0-9a-fA-F]{3})[0-9a-fA-F]{1,4}(?:::?[0-9a-fA-F]{1,4}){3,7}"
    r"(?![\w:.])"
)
_MAC: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_VERSION: Final = re.compile(
    r"(?i)version|driver|firmware|vbios|\brev\b|==|>=|~=|\[(?:pip3?|conda)\]|pypi|\bnvidia-c|-cu1\d"
)
_COMMON: Final = frozenset(
    {
        *("root", "user", "admin", "ubuntu", "debian", "centos", "localhost", "docker", "nobody"),
        *("vllm", "cuda", "rocm", "nvidia", "intel", "amd", "ascend", "huawei", "torch", "ray"),
        *("python", "server", "node", "host", "worker", "master", "main", "test", "linux"),
        *("device", "driver", "model", "default", "jovyan", "container", "hwhiaiuser"),
    }
)
"""Names that say nothing of anybody, and are words of what we print."""
_SHORTEST: Final = 3


def own_names(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The names of this machine and of this process's user, the longest first."""
    names = {environ.get(key, "") for key in ("HOSTNAME", "USER", "LOGNAME", "SUDO_USER")}
    if hasattr(os, "uname"):
        names.add(os.uname().nodename)
    names |= {name.partition(".")[0] for name in names}
    kept = {n for n in names if len(n) >= _SHORTEST and n.lower() not in _COMMON}
    return tuple(sorted(kept, key=lambda name: (-len(name), name)))


def masker(names: Iterable[str], home: str = "") -> Callable[[str], str]:
    """A function that masks one text: `names` as whole words, and `home`, the user's folder."""
    words = "|".join(re.escape(name) for name in names)
    own = re.compile(rf"(?<![\w-])(?:{words})(?![\w-])") if words else None
    folder = home.rstrip("/") if home.count("/") > 1 else ""

    def mask(text: str) -> str:
        if folder:
            text = re.sub(rf"{re.escape(folder)}(?![\w.-])", "~", text)
        text = _HOME.sub("~", text)
        text = _SERIAL.sub(rf"\g<head>{MASK}", text)
        text = _MAC.sub(MASK, text)
        if not _VERSION.search(text):
            text = _IPV6.sub(MASK, _IPV4.sub(MASK, text))
        return own.sub(MASK, text) if own else text

    return mask


def public(facts: HostFacts, mask: Callable[[str], str] | None = None) -> HostFacts:
    """The facts without names; `mask` is by default one for this process's names and home."""
    mask = mask or masker(own_names(), os.environ.get("HOME", ""))
    return replace(
        facts,
        accelerators=tuple(_device(one, mask) for one in facts.accelerators),
        environment=tuple(
            (name, hidden(mask(value))) for name, value in facts.environment if not is_secret(name)
        ),
        unknown=tuple((field, mask(place)) for field, place in facts.unknown),
        drivers=tuple(replace(one, source=mask(one.source)) for one in facts.drivers),
        report=tuple(Line(line.number, hidden(mask(line.text))) for line in facts.report),
    )


def _device(one: Accelerator, mask: Callable[[str], str]) -> Accelerator:
    processes = tuple(
        replace(process, name=mask(process.name) if process.name else process.name)
        for process in one.processes
    )
    errors = tuple(map(mask, one.health.errors))
    return replace(one, processes=processes, health=replace(one.health, errors=errors))


def public_json(value: Any, mask: Callable[[str], str]) -> Any:
    """JSON values with every text masked, keys as they are."""
    if isinstance(value, str):
        return hidden(mask(value))
    if isinstance(value, list):
        return [public_json(item, mask) for item in value]
    if isinstance(value, dict):
        return {key: public_json(item, mask) for key, item in value.items()}
    return value
