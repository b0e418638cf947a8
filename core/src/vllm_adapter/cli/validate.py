"""`vllm-adapter validate`: every fault of a manifest, descriptor, certificate or package."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from vllm_adapter.cli.output import clean, colour, emit_json, warn
from vllm_adapter.errors import InputError

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
    """0 if every file is good, 1 if a fault was found."""
    if args.convert:
        return _convert(args)
    if args.output is not None:
        raise InputError("--output needs --convert", hint="add --convert, or redirect stdout")
    from vllm_adapter.cli.checks import check_file
    from vllm_adapter.cli.packages import resolve

    files = [file for text in args.paths for file in _files(resolve(text))]
    results = [check_file(file) for file in dict.fromkeys(files)]
    good = not any(result.faults for result in results)
    if args.json:
        emit_json({"ok": good, "files": [result.as_json() for result in results]})
    else:
        for result in results:
            _report(result)
    return 0 if good else 1


def _files(path: Path) -> Iterator[Path]:
    """A file itself; of a package folder the manifest and all its descriptors."""
    if not path.is_dir():
        yield path
        return
    from vllm_adapter.cli.packages import manifest_in
    from vllm_adapter.errors import ManifestError
    from vllm_adapter.manifest import read_manifest

    manifest = manifest_in(path)
    yield manifest
    try:
        descriptors = read_manifest(manifest).capability_files()
    except ManifestError:  # reported with the manifest itself; check what the default names
        descriptors = sorted(path.glob("capabilities/*.json"))
    if not descriptors:
        warn(f"{manifest} has no capability descriptors")
    yield from descriptors


def _report(result: Any) -> None:
    """Prints one `Checked`."""
    count = len(result.faults)
    faults = "1 fault" if count == 1 else f"{count} faults"
    verdict = colour(faults, "red") if count else colour("ok", "green")
    print(f"{clean(result.path)}: {result.kind}, {verdict}")
    for pointer in result.ignored:
        warn(f"{result.path}: {pointer} is of a newer minor version, and ignored")
    for fault in result.faults:
        print(f"  {clean(fault)}")
        if fault.description:
            print(
                textwrap.fill(
                    fault.description, 90, initial_indent="    ", subsequent_indent="    "
                )
            )


def _convert(args: argparse.Namespace) -> int:
    from vllm_adapter.cli.checks import check_document
    from vllm_adapter.cli.convert import convert
    from vllm_adapter.files import read_json, write_atomic

    if len(args.paths) != 1:
        raise InputError("--convert takes one file", hint="convert the files one by one")
    path = Path(args.paths[0])
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
