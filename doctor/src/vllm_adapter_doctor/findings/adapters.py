"""Findings of installed adapters: their hook `diagnose`, each asked alone, behind its guard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from vllm_adapter.contract.codes import CODES
from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import AdapterError
from vllm_adapter.files import PACKAGE_BYTES, read_bounded
from vllm_adapter.hostfacts.facts import HostFacts
from vllm_adapter.hostfacts.match import match


def ask(
    records: Iterable[AdapterRecord], facts: HostFacts
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """(findings, a sentence for each adapter that could not be asked).

    Asked are adapters whose manifest is in order, declares a plug-in class, and matches the
    facts: the code of another vendor's adapter is never imported. Nor is a plug-in imported in
    whose file the hook's name does not stand.
    """
    findings: list[Finding] = []
    failed: list[str] = []
    for record in records:
        manifest = record.manifest
        if record.status is not None or manifest is None or manifest.plugin is None:
            continue
        if match(manifest.match, facts) is None or not _names_the_hook(record):
            continue
        from vllm_adapter.discovery.adapter import Adapter

        try:
            answer = Adapter(record).call("diagnose", host=facts)
        except AdapterError as error:
            failed.append(f"{error.message}; {error.hint}")
            continue
        fault = _fault(answer)
        if fault:
            failed.append(f"adapter {record.name}: its hook `diagnose` {fault}")
        else:
            findings += answer or ()
    return tuple(findings), tuple(failed)


def _names_the_hook(record: AdapterRecord) -> bool:
    assert record.manifest is not None and record.manifest.plugin is not None
    module = record.manifest.plugin.partition(":")[0]
    if record.path is None or not module.startswith(f"{record.package}."):
        return True
    parts = module.removeprefix(f"{record.package}.").split(".")
    try:
        file = record.path.joinpath(*parts).with_suffix(".py")
        return b"diagnose" in read_bounded(file, PACKAGE_BYTES)
    except OSError:
        return True  # a package, or compiled


def _fault(answer: Any) -> str:
    """What is wrong with what the hook gave; empty where it can be used whole."""
    if answer is None:
        return ""
    if not isinstance(answer, Sequence) or isinstance(answer, str):
        return f"gave a {type(answer).__name__}, and not a sequence of findings"
    for one in answer:
        if not isinstance(one, Finding):
            return f"gave a {type(one).__name__} among its findings"
        if one.code not in CODES:
            return f"gave the code {one.code!r}, which is not in the register of codes"
        whole = (
            isinstance(one.severity, Severity)
            and isinstance(one.evidence, tuple)
            and all(isinstance(each, Evidence) for each in one.evidence)
            and isinstance(one.cause, str)
            and isinstance(one.action, str)
            and one.evidence
            and one.cause
            and one.action
        )
        if not whole:
            return f"gave {one.code} without evidence, cause or action"
    return ""
