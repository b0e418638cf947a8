"""Installed adapters that cannot be used, whatever the hardware: findings of this machine."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from vllm_adapter.contract.finding import Evidence, Finding, Severity
from vllm_adapter.discovery.entry_files import AUTOLOAD, Unreadable
from vllm_adapter.discovery.records import AdapterRecord, Status

CODE: Final = "VA0401"
PACKAGE_CODE: Final = "VA0403"
_SEVERITIES: Final = {
    Status.BROKEN: Severity.ERROR,
    Status.INCOMPATIBLE: Severity.ERROR,
    Status.SHADOWED: Severity.WARNING,
}
"""An adapter that is absent or blocked is as somebody wanted it."""
_CAUSES: Final = {
    Status.BROKEN: "is broken: vLLM and every command go on without it",
    Status.INCOMPATIBLE: "is for another release of what it needs: everything goes on without it",
    Status.SHADOWED: "is not used: another package has an adapter of the same name",
}


def findings(records: Iterable[AdapterRecord]) -> tuple[Finding, ...]:
    """One for each record that can be used nowhere, as its files or its last probe have it."""
    return tuple(_finding(record) for record in records if record.status in _SEVERITIES)


def of_packages(packages: Iterable[Unreadable]) -> tuple[Finding, ...]:
    """One for each distribution, of whomever, that takes `import torch` down with it."""
    return tuple(
        Finding(
            PACKAGE_CODE,
            Severity.ERROR,
            (Evidence(str(one), str(one.file)),),
            f"the package {one.distribution} is damaged: `import torch`, vLLM and whatever else "
            "lists entry points fail or hang in every program of this Python; the commands of "
            "vllm-adapter import torch without that search, and go on",
            f"run `pip install --force-reinstall {one.distribution}`, or remove "
            f"{shlex.quote(str(one.file.parent))}; until then set {AUTOLOAD}=0 for your own "
            "programs, of which vLLM will still fail",
        )
        for one in packages
    )


def _finding(record: AdapterRecord) -> Finding:
    assert record.status is not None
    who = f"adapter {record.name} ({record.distribution} {record.version})"
    place = record.path or record.package or f"package {record.distribution}"
    printed = [line for line in record.evidence if line.startswith("stderr: ")]
    return Finding(
        CODE,
        _SEVERITIES[record.status],
        (
            Evidence(f"{who}: {record.reason}", str(place)),
            *(Evidence(line.removeprefix("stderr: "), "its last probe") for line in printed[-2:]),
        ),
        f"the {who} {_CAUSES[record.status]}",
        f"run `{record.next_step or 'vllm-adapter list --probe'}`",
    )
