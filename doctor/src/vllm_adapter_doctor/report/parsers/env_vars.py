"""Environment variables that matter to a device: of a dump's last part, or of commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.known_vendors import variable_heads
from vllm_adapter_doctor.report.secrets import MASK, is_secret
from vllm_adapter_doctor.report.text import Report

_COMMON: Final = (
    "FLASHINFER_ GLOO_ GOMP_ KMP_ LD_ MKL_ OMP_ PYTORCH_ RAY_ SGLANG_ SGL_ TORCH TRITON_ UCX_ VA_ "
    "VLLM_"
).split()
"""What variables begin with that are no vendor's own."""
_LEFT_OUT: Final = re.compile(r"_(?:IP|ADDR|ADDRESS|HOST|HOSTNAME|URL|URI|ENDPOINT|USER|UUID)$")
_PLACES: Final = (  # an assignment in a command, in YAML, in Python
    re.compile(
        r"(?:^|[\s;&])(?:export |declare -x |set |ENV |env |-e |--env[ =])?['\"]?"
        r"(?P<name>[A-Z][A-Z0-9_]{2,})=(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&'\"]*)"
    ),
    re.compile(
        r"environ\[['\"](?P<name>[A-Z][A-Z0-9_]+)['\"]\]\s*=\s*(?P<value>\"[^\"]*\"|'[^']*')"
    ),
)
_BARE: Final = re.compile(r"^\s*(?P<name>[A-Z][A-Z0-9_]{2,})=(?P<value>\S.*|)$")
_YAML: Final = re.compile(r"^\s*- name: (?P<name>[A-Z][A-Z0-9_]+)$")
_YAML_VALUE: Final = re.compile(r"^\s*value: (?P<value>\S.*)$")


def parse(report: Report) -> HostFacts:
    """(name, value) of each variable, sorted. A bare `NAME=value` line, as a dump prints it,
    counts more than a command that somebody ran; where those contradict, nothing is said.

    Secrets, addresses and names of hosts are left out, and values that were cut.
    """
    report = report.settled
    printed: dict[str, set[str]] = {}
    ran: dict[str, set[str]] = {}
    for position, line in enumerate(report.lines):
        bare = _BARE.match(line.text)
        if bare and " " not in bare["value"].strip():
            printed.setdefault(bare["name"], set()).add(_unquoted(bare["value"]))
            continue
        if bare and not re.search(r" (?:[A-Z_]{3,}=|vllm\b|python|docker|sglang\b)", line.text):
            printed.setdefault(bare["name"], set()).add(_unquoted(bare["value"]))
            continue
        for name, value in _assigned(report, position):
            ran.setdefault(name, set()).add(_unquoted(value))
    found = {**ran, **printed}
    return HostFacts(
        environment=tuple(
            (name, next(iter(values)))
            for name, values in sorted(found.items())
            if len(values) == 1 and _matters(name) and _whole(next(iter(values)))
        )
    )


def _assigned(report: Report, position: int) -> Iterator[tuple[str, str]]:
    text = report.lines[position].text
    yaml = _YAML.match(text)
    if yaml and position + 1 < len(report.lines):
        value = _YAML_VALUE.match(report.lines[position + 1].text)
        if value:
            yield yaml["name"], value["value"]
        return
    if "=" not in text:
        return
    for place in _PLACES:
        for found in place.finditer(text):
            yield found["name"], found["value"]


def _unquoted(value: str) -> str:
    value = value.strip()
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value


def _matters(name: str) -> bool:
    ours = name.startswith((*_COMMON, *variable_heads()))
    return ours and not is_secret(name) and not _LEFT_OUT.search(name)


def _whole(value: str) -> bool:
    return not value.endswith(("...", "…")) and MASK not in value and "$" not in value
