"""`vllm-adapter verify`: checks a certificate, here or against what is installed."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vllm_adapter.errors import InputError

HELP: Final = "check a certificate: whole, signed, true to its own rules, and of what is installed"
EXAMPLE: Final = """\
example:
  vllm-adapter verify certificates/cpu-L2.json
  vllm-adapter verify certificates/cpu-L2.json --key vendor.pub
  vllm-adapter verify certificates/cpu-L2.json --against-installed --replay 20

An edited file is caught: digest, levels, counts and headline are computed anew. A file that was
edited and given a new digest is caught only by a signature, or by --replay on such a device.
Exit code 0: sound; 1: a fault was found; 2: the file, a key or the adapter cannot be read.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("file", metavar="FILE", type=Path, help="a certificate")
    parser.add_argument(
        "--against-installed",
        action="store_true",
        help="compare what was tested with the adapter, core and kernels that are installed here",
    )
    parser.add_argument(
        "--replay",
        metavar="N",
        type=int,
        default=0,
        help="run N cases of our own, by a new seed, on a device that must be the same; implies "
        "--against-installed",
    )
    parser.add_argument(
        "--device", type=int, default=0, metavar="N", help="device index for --replay (0)"
    )
    parser.add_argument(
        "--key", type=Path, metavar="PUBLIC", help="the Ed25519 key that must have signed FILE.sig"
    )
    parser.add_argument(
        "--identity", metavar="WHO", help="who must have signed FILE.sigstore.json, as an e-mail"
    )
    parser.add_argument("--issuer", metavar="URL", help="who vouches for --identity")
    parser.add_argument(
        "--trust-root",
        type=Path,
        metavar="FILE",
        help="Sigstore's root of trust; without it the one that is kept on this machine",
    )


@dataclass
class _Verdict:
    """What was found. `signer` is who has signed it; None: nobody that was asked for."""

    faults: list[str]
    notes: list[str] = field(default_factory=list)
    signer: str | None = None
    signed: str = "unsigned"
    replayed: list[str] = field(default_factory=list)
    doubt: str = ""

    @property
    def sentence(self) -> str:
        word = "not sound" if self.faults else "sound"
        return f"{word}, {self.signed}{self.doubt}"


def run(args: argparse.Namespace) -> int:
    """0 if nothing is wrong with it."""
    from vllm_adapter.cli.output import clean, colour, emit_json
    from vllm_adapter_conformance.certificate import claims

    document, found = _judged(args)
    faults = found.faults
    if args.json:
        emit_json(
            {
                "ok": not faults,
                "verdict": found.sentence,
                "signer": found.signer,
                "faults": faults,
                "notes": found.notes,
                "replayed": found.replayed,
            }
        )
        return 1 if faults else 0
    print(f"{clean(args.file)}: {colour(clean(found.sentence), 'red' if faults else 'green')}")
    for fault in faults:
        print(f"  {clean(fault)}")
    for note in found.notes:
        print(f"  note: {clean(note)}")
    for id in found.replayed:
        print(f"  replayed {clean(id)}")
    if not faults:
        print(clean(claims.headline(document)))  # derived here: the file's own is prose
    return 1 if faults else 0


def _judged(args: argparse.Namespace) -> tuple[Mapping[str, Any], _Verdict]:
    """The certificate, and all that is found: each step only where those before found no fault."""
    from vllm_adapter_conformance.certificate import against, verification

    if args.replay < 0:
        raise InputError("--replay takes a number from zero up", hint="try --replay 20")
    document = verification.load(args.file)
    found = _Verdict(verification.form_faults(document))
    if found.faults:
        return document, found
    found.faults += verification.content_faults(document)
    _look_at_signatures(args, document, found)
    if found.faults:
        return document, found
    found.notes += verification.notes(document)
    found.doubt = verification.doubt(document)
    if (args.against_installed or args.replay) and not found.faults:
        faults, notes = against.against_installed(document)
        found.faults += faults
        found.notes += notes
    if args.replay and not found.faults:
        _replay(args, document, found)
    return document, found


def _look_at_signatures(
    args: argparse.Namespace, document: Mapping[str, Any], found: _Verdict
) -> None:
    """Holds the signatures that were asked for against their files."""
    from vllm_adapter_conformance.certificate import signing, signing_sigstore

    envelope = signing.signature_file(args.file)
    bundle = signing_sigstore.bundle_file(args.file)
    there = [path.name for path in (envelope, bundle) if path.exists()]
    if there:
        found.signed = f"with {' and '.join(there)}, unchecked: --key or --identity checks it"
    else:
        found.signed = "unsigned: whoever edits it can compute its digest anew"
    if args.key is None and args.identity is None:
        if args.issuer or args.trust_root:
            raise InputError(
                "--issuer and --trust-root say who vouches for whom",
                hint="add --identity, whose signature is looked for",
            )
        return
    if args.identity is not None and args.issuer is None:
        raise InputError(
            "--identity is a name that some issuer vouches for",
            hint="add --issuer, such as https://github.com/login/oauth",
        )
    signers = []
    faults = []
    if args.key is not None:
        key = signing.public_key(args.key)
        faults += signing.signature_faults(args.file, document, key)
        signers.append(f"the key {signing.fingerprint(key)}")
    if args.identity is not None:
        faults += signing_sigstore.bundle_faults(
            args.file, document, args.identity, args.issuer, args.trust_root
        )
        signers.append(args.identity)
    found.faults += faults
    if faults:
        found.signed = "wrongly signed" if there else "unsigned"
    else:
        found.signer = " and ".join(signers)
        found.signed = f"signed by {found.signer}"


def _replay(args: argparse.Namespace, document: Mapping[str, Any], found: _Verdict) -> None:
    """Runs cases of our own on the device, if that is the certificate's."""
    from vllm_adapter_conformance.certificate import replay
    from vllm_adapter_conformance.judge.journal import ran
    from vllm_adapter_conformance.run.runner import RunRequest, run_suite

    planned = replay.prepare(document, args.replay, args.device)
    found.faults += planned.faults
    found.notes += planned.notes
    if found.faults:
        return
    target, level = planned.target, document["level_asked"]
    order = RunRequest(
        target.record.name,
        level,
        args.device,
        target.seed,
        cases=planned.items,
        emulate=planned.emulate,
        budget=target.budget,
    )
    done = run_suite(order, lambda event: None)
    results = done.results
    outcomes = {id: results[id].outcome if id in results else None for id in planned.items}
    found.faults += replay.outcome_faults(document, outcomes)
    found.faults += replay.ran_faults(document, target.record, ran(done.events))
    found.replayed = [*planned.items]
    found.notes.append(f"replayed with seed {target.seed}")
