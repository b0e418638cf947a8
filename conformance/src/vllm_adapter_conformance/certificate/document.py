"""Builds a run's certificate and writes it whole. Its schema documents every field."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from vllm_adapter.broker.vllm_install import DISTRIBUTIONS
from vllm_adapter.contract.manifest import API_VERSION
from vllm_adapter.errors import InputError
from vllm_adapter.files import read_json, write_atomic
from vllm_adapter.settings import VARIABLES
from vllm_adapter_conformance.base.rule import MODELS, OPERATORS_LEVEL, SERVING, Counters, Rule
from vllm_adapter_conformance.base.target import Target
from vllm_adapter_conformance.certificate import claims, format, mustpass
from vllm_adapter_conformance.certificate.fingerprint import Fingerprint
from vllm_adapter_conformance.certificate.machine import device_of
from vllm_adapter_conformance.certificate.parts import CORE, suite_version
from vllm_adapter_conformance.judge.outcome import Result
from vllm_adapter_conformance.ops.space import sampling
from vllm_adapter_conformance.performance.section import performance
from vllm_adapter_conformance.plan.suite import SuitePlan

IDENTITY: Final = "L1.device.identity[adapter]"
"""The item that saw what is behind the device."""


def build(
    target: Target,
    level: str,
    plan: SuitePlan,
    results: Mapping[str, Result],
    fingerprint: Fingerprint,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The certificate of a run whose items all have a result.

    `facts` are what the device's process said of the device.
    """
    record = target.record
    rules = [_rule(rule, plan, results) for rule in plan.rules]
    document: dict[str, Any] = {
        "schema": format.TAG,
        "adapter": {
            "name": record.name,
            "dist": record.distribution,
            "version": record.version,
            "files": dict(fingerprint.adapter),
            "editable": record.editable,
            "emulated": target.emulated,
            **_tested_on(target),
        },
        "level_asked": level,
        "level_reached": claims.level_reached(rules, level, mustpass.committed()),
        "grade": "development" if fingerprint.changed else "release",
        "emulated": False,
        "created": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "suite": {
            "version": suite_version(),
            "files_sha256": fingerprint.suite_sha256,
            "mustpass_sha256": mustpass.committed_sha256(),
        },
        "contract": ".".join(map(str, API_VERSION)),
        "distributions": {
            name: {
                key: value
                for key, value in (
                    ("version", one.version),
                    ("files_sha256", one.files_sha256),
                    ("loaded", dict(one.loaded)),
                )
                if value is not None
            }
            for name, one in fingerprint.distributions.items()
        },
        "outside": dict(fingerprint.outside),
        "changed": list(fingerprint.changed),
        "start_up": list(fingerprint.start_up),
        "core": {"version": _version(CORE), "files_sha256": fingerprint.core_sha256},
        "descriptor": None
        if fingerprint.descriptor is None
        else dict(zip(("path", "sha256"), fingerprint.descriptor, strict=True)),
        "host": _host(target),
        "device": device_of(target, facts, _seen(results)),
        "environment": _environment(target, level),
        "settings": _settings(),
        "seed": target.seed,
        "coverage": claims.coverage(rules),
        "counts": claims.counts(rules),
        "rules": rules,
    }
    if level >= OPERATORS_LEVEL and target.capability is not None:
        document["sampling"] = sampling(target.capability, target.seed, target.budget)
    measured = [result.figures for result in results.values() if result.figures]
    section = performance(target, measured)
    if section is not None:
        document["performance"] = section
    counters = _counters(results)
    if counters:
        document["counters"] = counters
    document["emulated"] = claims.emulated(document)
    document["badge"] = claims.badge(document)
    document["headline"] = claims.headline(document)
    document["digest"] = digest(document)
    return document


def canonical(document: Mapping[str, Any]) -> str:
    """Sorted keys, no spaces, UTF-8; floats as Python's repr."""
    return json.dumps(
        document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON without the digest itself."""
    rest = {key: value for key, value in document.items() if key != "digest"}
    # A stranger's file may hold half a surrogate pair: digested as it is, and never an error.
    return sha256(canonical(rest).encode("utf-8", "surrogatepass")).hexdigest()


def make_room(path: Path) -> None:
    """Makes the folder of a certificate, before a run that may take minutes.

    Raises:
        InputError: it cannot be made or written to, or the file is there and no certificate.
    """
    problem = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(path.parent, os.W_OK):
            problem = f"{path.parent} cannot be written to"
        elif path.exists() and not _is_certificate(path):
            problem = "it is there, and is no certificate"
    except OSError as error:
        problem = str(error.strerror)
    if problem is not None:
        raise InputError(
            f"cannot keep the certificate in {path}: {problem}",
            hint="give another place with --output FILE",
        )


def _is_certificate(path: Path) -> bool:
    """Whether a file is one that a new certificate may replace."""
    try:
        raw = read_json(path, "the file")
    except InputError:
        return False
    tag = raw.get("schema") if isinstance(raw, dict) else None
    return isinstance(tag, str) and tag.startswith("vllm-adapter/certificate/")


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Writes the certificate, in a folder that is made if need be.

    Raises:
        InputError: the folder or file cannot be written.
    """
    make_room(path)
    write_atomic(path, canonical(document) + "\n")


def _tested_on(target: Target) -> dict[str, list[str]]:
    manifest = target.record.manifest
    if manifest is None or manifest.tested_on is None:
        return {}
    return {"tested_on": list(manifest.tested_on)}


def _rule(rule: Rule, plan: SuitePlan, results: Mapping[str, Result]) -> dict[str, Any]:
    return {
        "rule": rule.id,
        "level": rule.level,
        "preview": rule.preview,
        "cases": [
            _case(item.case.id, item.case.pointer, results[item.id])
            for item in plan.of_rule(rule.id)
        ],
        "not_declared": [
            {"case": case.id, "pointer": _pointer(case.pointer), "reason": case.reason}
            for case in plan.not_declared.get(rule.id, ())
        ],
    }


def _case(id: str, pointer: str | None, result: Result) -> dict[str, Any]:
    share = result.share
    return {
        "case": id,
        "outcome": result.outcome,
        "seconds": result.seconds,
        "share": share if share is not None and math.isfinite(share) else None,
        "pointer": _pointer(pointer),
        "message": None if result.message is None else _encodable(result.message),
        "waiver": None if result.waiver is None else dict(result.waiver),
        "blocked_by": result.blocked_by,
    }


def _encodable(text: str) -> str:
    """The text without what UTF-8 cannot hold; a vendor's message may be anything."""
    return text.encode("utf-8", "backslashreplace").decode()


def _pointer(pointer: str | None) -> str | None:
    return pointer if pointer is not None and pointer[:1] in ("", "/") else None


def _counters(results: Mapping[str, Result]) -> dict[str, Counters]:
    """Calls by the item that counted them."""
    return {
        id: result.counters
        for id, result in sorted(results.items())
        if result.counters is not None
    }


def _host(target: Target) -> dict[str, Any]:
    host = target.host
    return {
        "machine": host.os.machine or platform.machine(),
        "os": " ".join(filter(None, (host.os.name, host.os.release))) or "unknown",
        "cpu": host.cpu.model,
        "logical_cpus": host.cpu.logical,
        "memory_bytes": host.memory.total_bytes,
        "pci": [str(device) for device in host.pci if device.class_code[:4] in ("0x03", "0x12")],
    }


def _seen(results: Mapping[str, Result]) -> Mapping[str, Any] | None:
    """What the run saw of the device; None where it was not opened."""
    found = results.get(IDENTITY)
    return None if found is None else found.facts


def _environment(target: Target, level: str) -> dict[str, str]:
    record, torch = target.record, target.host.torch
    names = [CORE, "pytest", "pytest-xdist", record.distribution]
    if level >= MODELS:
        names.append("transformers")
    if level >= SERVING:
        names += DISTRIBUTIONS
    section = record.manifest.device if record.manifest else None
    if section is not None and section.torch_module:
        names.append(section.torch_module.partition(".")[0].replace("_", "-"))
    versions = {name: _version(name) for name in names}
    core = versions.pop(CORE)
    found = {"python": platform.python_version(), "core": core} | versions
    if torch is not None and torch.version is not None:
        found["torch"] = torch.version
    return {name: version for name, version in found.items() if version != "unknown"}


def _settings() -> dict[str, str]:
    given = {name: os.environ[name] for name in VARIABLES if os.environ.get(name)}
    return given | {"VA_FALLBACK": "error"}  # whatever the caller has: the suite's own policy


def _version(distribution: str) -> str:
    import importlib_metadata

    try:
        return str(importlib_metadata.version(distribution))
    except importlib_metadata.PackageNotFoundError:
        return "unknown"
