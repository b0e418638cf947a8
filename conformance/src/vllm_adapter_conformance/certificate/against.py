"""Whether what a certificate is of is what is installed here.

A certificate is of its adapter, of one version of the contract between core and adapters, and of
every file that the device's process had loaded. Where one of these is another, it says nothing of
what is installed; a file that took no part is a note.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from vllm_adapter.contract.manifest import API_VERSION
from vllm_adapter.discovery.records import AdapterRecord
from vllm_adapter.errors import AdapterError
from vllm_adapter_conformance.certificate.parts import (
    CORE,
    SUITE,
    Files,
    Loaded,
    digests,
    over,
    packages,
)
from vllm_adapter_conformance.certificate.records import closure, normal
from vllm_adapter_conformance.certificate.verification import first, older

Document = Mapping[str, Any]


def against_installed(document: Document) -> tuple[list[str], list[str]]:
    """Faults, and notes about what took no part.

    Raises:
        AdapterError: the adapter is not installed, or its files cannot be read.
    """
    record = installed_record(document)
    try:
        return _compared(document, record)
    except OSError as problem:
        tested = document["adapter"]
        raise AdapterError(
            f"the files of adapter {tested['name']} cannot be read: {problem}",
            hint=f"pip install --force-reinstall {tested['dist']}=={tested['version']}",
        ) from None


def installed_record(document: Document) -> AdapterRecord:
    """The installed adapter of the certificate's name, whatever its status.

    Raises:
        AdapterError: there is none.
    """
    from vllm_adapter.cli.packages import find_package
    from vllm_adapter.discovery.registry import scan
    from vllm_adapter.settings import Settings

    name = document["adapter"]["name"]
    path = find_package(name)
    return next(r for r in scan(Settings()) if r.name == name and r.path == path)


def _compared(document: Document, record: AdapterRecord) -> tuple[list[str], list[str]]:
    faults = [*_adapter_faults(document, record)]
    notes: list[str] = []
    if older(document):
        core = document.get("core")
        if core is not None and core["files_sha256"] != over(digests(packages()[CORE])):
            faults.append(
                f"the core that was tested ({core['version']}) has other files than the one that "
                "is installed, and its format does not say which of them took part"
            )
        return faults, notes
    contract = ".".join(map(str, API_VERSION))
    if document["contract"] != contract:
        faults.append(
            f"it is of version {document['contract']} of the contract between core and adapters, "
            f"and {contract} is installed"
        )
    files = Files.of(record)
    needed = closure([document["adapter"]["dist"]], [])
    differing: list[str] = []
    for name, tested in document["distributions"].items():
        if name == SUITE:
            continue  # it judges again, in a replay
        folder, known = files.packages.get(name), files.environment.by_name.get(name)
        if folder is None and known is None:
            words = f"{name} {tested['version']}, whose files were loaded, is not installed"
            (faults if name in needed else notes).append(words)
            continue
        root = os.path.dirname(folder) if folder else known.root if known else ""
        unlike = [*_unlike(tested["loaded"], root, files)]
        differing += unlike
        whole = tested.get("files_sha256")
        if unlike or folder is None or whole is None:
            continue
        if whole != over(digests(folder, files.hashes)):
            notes.append(f"{name} has other files here; none of them took part")
    differing += _unlike(document["outside"], "/", files)
    faults += first("a file that took part is another one here", differing)
    return faults, notes


def _adapter_faults(document: Document, record: AdapterRecord) -> Iterator[str]:
    tested = document["adapter"]
    if normal(record.distribution) != normal(tested["dist"]):
        yield f"its adapter is of {tested['dist']}, and {record.distribution} has that name here"
    if record.version != tested["version"]:
        yield (
            f"version {tested['version']} of {tested['dist']} is not installed: "
            f"{record.version} is"
        )
    assert record.path is not None
    files, installed = tested["files"], digests(record.path)
    differing = [
        *(f"{path} is not installed" for path in sorted(files.keys() - installed.keys())),
        *(f"{path} was not tested" for path in sorted(installed.keys() - files.keys())),
        *(f"{p} differs" for p in sorted(files.keys() & installed) if files[p] != installed[p]),
    ]
    yield from first("the installed adapter is not the one that was tested", differing)


def _unlike(loaded: Mapping[str, str], root: str, files: Files) -> Iterator[str]:
    """What differs of the listed files."""
    for path, digest in loaded.items():
        try:
            if files.hashes.of(os.path.normpath(os.path.join(root, path))) != digest:
                yield f"{path} differs"
        except OSError:
            yield f"{path} is not there"


def loaded_faults(document: Document, found: Loaded, files: Files) -> list[str]:
    """How the files that a process has loaded here differ from those that the certificate lists.

    A file that only here was loaded is a fault, unless its distribution is the same file by file.
    """
    said: list[str] = list(found.changed)
    listed = document["distributions"]
    own = normal(document["adapter"]["dist"])
    for name, loaded in found.by_distribution.items():
        tested = listed.get(name, {})
        if name == SUITE:
            continue
        whole = tested.get("files_sha256")
        folder = files.packages.get(name)
        same = folder is not None and whole == over(digests(folder, files.hashes))
        known = tested.get("loaded", {})
        for path, digest in loaded.items():
            if path in known and known[path] != digest:
                said.append(f"{path} of {name} differs")
            elif path not in known and not same and name != own:
                said.append(f"{path} of {name} is loaded here, and was not there")
    for path, digest in found.outside.items():
        if document["outside"].get(path) != digest:
            word = (
                "differs" if path in document["outside"] else "is loaded here, and was not there"
            )
            said.append(f"{path} {word}")
    return first("what is loaded here is not what was tested", said)
