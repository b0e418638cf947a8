"""`vllm-adapter validate`: every fault of a manifest, descriptor, certificate or package."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from vllm_adapter.cli.output import clean, colour, emit_json, error_line, warn
from vllm_adapter.errors import InputError, VllmAdapterError

if TYPE_CHECKING:
    from vllm_adapter.cli.checks import FileCheck

HELP: Final = "check manifests, descriptors, certificates and adapter packages"
EXAMPLE: Final = """\
example:
  vllm-adapter validate src/vllm_adapter_acme
  vllm-adapter validate --convert old.capability.json --output capabilities/acme1.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        nargs="+",
        help="a file, an adapter's package folder, or the name of an installed adapter",
    )
    parser.add_argument(
        "--convert",
        action="store_true",
        help="print a descriptor of the older format (device_type, fp16) in the present one",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="with --convert: write to this file, and not to stdout"
    )


def run(args: argparse.Namespace) -> int:
    """0 if every file is good, 1 if a fault was found, 2 if a file could not be checked."""
    if args.convert:
        return _convert(args)
    if args.output is not None:
        raise InputError("--output needs --convert", hint="add --convert, or redirect stdout")
    results, refused = _check(args.paths)
    good = not refused and not any(result.faults for result in results)
    if args.json:
        unread = [{"message": e.message, "code": e.code, "hint": e.hint} for e in refused]
        files = [result.as_json() for result in results]
        emit_json({"ok": good, "files": files, "not_checked": unread})
    else:
        for result in results:
            _report(result)
    for error in refused:
        if args.debug:
            traceback.print_exception(error)
        error_line(error.message, error.code, error.hint)
    return 2 if refused else 0 if good else 1


def _check(paths: Sequence[str]) -> tuple[list[FileCheck], list[VllmAdapterError]]:
    """The files that were checked, and for each path or file that could not be, why."""
    from vllm_adapter.cli.check_paths import check_file_and_paths
    from vllm_adapter.cli.packages import resolve

    files: list[Path] = []
    results: list[FileCheck] = []
    refused: list[VllmAdapterError] = []
    for text in paths:
        try:
            files += _files(resolve(text))
        except VllmAdapterError as error:
            refused.append(error)
    for file in dict.fromkeys(files):
        try:
            results.append(check_file_and_paths(file))
        except VllmAdapterError as error:
            refused.append(error)
    return results, refused


def _files(path: Path) -> Iterator[Path]:
    """A file itself; of a package folder the manifest and all its descriptors."""
    if not path.is_dir():
        yield path
        return
    from vllm_adapter.cli.packages import manifest_in
    from vllm_adapter.contract.manifest import read_manifest
    from vllm_adapter.errors import ManifestError

    manifest = manifest_in(path)
    yield manifest
    try:
        descriptors = read_manifest(manifest).capability_files()
    except ManifestError:  # reported with the manifest itself; check what the default names
        descriptors = sorted(path.glob("capabilities/*.json"))
    if not descriptors:
        warn(f"{manifest} has no capability descriptors")
    yield from descriptors


def _report(result: FileCheck) -> None:
    """Prints one `FileCheck`."""
    count = len(result.faults)
    faults = "1 fault" if count == 1 else f"{count} faults"
    verdict = colour(faults, "red") if count else colour("ok", "green")
    schema_only = result.kind == "certificate" and not count
    more = "; schema only: `vllm-adapter verify` judges its claims" if schema_only else ""
    print(f"{clean(result.path)}: {result.kind}, {verdict}{more}")
    for pointer in result.ignored:
        warn(f"{result.path}: {pointer} is of a newer minor version, and ignored")
    for note in result.notes:
        warn(f"{result.path}: {note}")
    for fault in result.faults:
        print(f"  {clean(fault)}")
        if fault.description:
            print(
                textwrap.fill(
                    fault.description, 90, initial_indent="    ", subsequent_indent="    "
                )
            )


def _refuse_another_file(path: Path) -> None:
    """Only a descriptor of the present format is replaced: anything else is somebody's work."""
    from vllm_adapter.contract.capability import SCHEMA_NAME
    from vllm_adapter.files import read_json, schema_version

    if not os.path.lexists(path):
        return
    try:
        raw = read_json(path, "the file to be replaced")
    except InputError as error:
        raise InputError(
            f"{path} is there already, and is no descriptor: {error.message}",
            hint="name another file with --output, or remove this one",
        ) from None
    tag = raw.get("schema") if isinstance(raw, dict) else None
    if schema_version(tag, SCHEMA_NAME) is None:
        raise InputError(
            f"{path} is there already, and is no descriptor of the present format",
            hint="name another file with --output, or remove this one",
        )


def _convert(args: argparse.Namespace) -> int:
    from vllm_adapter.cli.checks import check_document
    from vllm_adapter.cli.convert import convert
    from vllm_adapter.files import read_json, write_atomic

    if len(args.paths) != 1:
        raise InputError("--convert takes one file", hint="convert the files one by one")
    path = Path(args.paths[0])
    if args.output is not None:
        _refuse_another_file(Path(args.output))
    descriptor, lost = convert(read_json(path, "the older descriptor"), path.name)
    result = check_document(descriptor, f"{path} (converted)")
    for pointer in lost:
        warn(f"{path}: {pointer} has no place in the present format; it was not converted")
    if result.faults:
        if args.json:
            emit_json({"ok": False, "files": [result.as_json()]})
        else:
            _report(result)
        return 1
    text = json.dumps(descriptor, indent=2) + "\n"
    if args.output is not None:
        write_atomic(Path(args.output), text)
    if args.json:
        emit_json({"descriptor": descriptor, "not_converted": lost, "output": args.output})
    elif args.output is None:
        sys.stdout.write(text)
    else:
        print(f"wrote {clean(args.output)}; every figure is marked assumed")
    return 0
