"""51 ways to forge a certificate or to tamper with what earns one, and who must refuse each.

Written before the code that refuses them, and frozen (`frozen.sha256`). `test_forgeries.py` does
each; a forgery that gets through is answered in the suite, or disputed in README.md.

A line is (id, who must refuse, a word of the refusal, what is done). Who:

    verify      `verify FILE`
    key         `verify FILE --key PUBLIC`, of a file that was signed before it was forged
    installed   `verify FILE --against-installed`
    replay      `verify FILE --replay N`, on a machine whose device differs or not, as the
                line says
    grade       `certify` of an installed wheel that was tampered with: grade development, no
                badge, and the certificate names what was changed

"Recomputed" is: whatever the file derives (counts, coverage, level, headline, badge) and its
digest are computed anew, with the suite's own functions.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = (
    # the file
    ("level", "verify", "edited", "level_reached raised; the digest stays"),
    ("level_recomputed", "verify", "level_reached", "level and badge raised, digest recomputed"),
    ("badge", "verify", "badge", "a development grade gets a badge, digest recomputed"),
    ("grade", "verify", "grade", "development becomes release with a badge, all recomputed"),
    ("future", "verify", "future", "created ten years from now, recomputed"),
    ("key_twice", "verify", "twice", "a second level_reached before the first one"),
    ("no_files", "verify", "loaded", "the list of loaded files is emptied, recomputed"),
    ("no_distributions", "verify", "distributions", "the distributions are left out, recomputed"),
    ("rule_dropped", "verify", "level_reached", "a failed rule is left out whole, recomputed"),
    ("emulated", "verify", "emulated", "an emulated device becomes a real one, recomputed"),
    # signatures
    ("signed_then_edited", "key", "signature", "signed, then the level raised, recomputed"),
    ("signed_reason", "key", "signature", "signed, then one message changed, recomputed"),
    ("signed_seed", "key", "signature", "signed, then another seed, recomputed"),
    ("signature_gone", "key", "unsigned", "signed, then the signature's file is removed"),
    ("signature_of_another", "key", "signature", "the signature of another sound certificate"),
    ("another_key", "key", "key", "edited, then signed with a key of the forger's"),
    ("payload", "key", "signature", "the statement inside the envelope names the forged file"),
    ("payload_type", "key", "payload", "the envelope's type is another, its signature is right"),
    ("empty_signatures", "key", "signature", "an envelope without any signature"),
    ("predicate", "key", "predicate", "signed rightly, by the key, over another predicate type"),
    # what is installed
    ("version", "installed", "not installed", "the adapter's version is one that isn't installed"),
    ("library", "installed", "differs", "the digest of a loaded shared library, recomputed"),
    ("kernel", "installed", "differs", "the digest of a loaded kernel's file, recomputed"),
    ("contract", "installed", "contract", "another contract version, recomputed"),
    ("record_rewritten", "installed", "differs", "a wheel changed with its RECORD: release there"),
    # a replay
    ("failure_deleted", "replay", "lacks", "a failing case is left out, recomputed"),
    ("failure_passed", "replay", "fail", "a failing case says pass, recomputed"),
    ("case_added", "replay", "no such case", "an invented case that passed, recomputed"),
    ("not_declared_moved", "replay", "lacks", "a failing case says not declared, recomputed"),
    ("h200", "replay", "H200", "the device is renamed to H200, recomputed"),
    ("torch_type", "replay", "cuda", "the torch device becomes cuda:0, recomputed"),
    ("memory", "replay", "memory", "the device's memory is another, recomputed"),
    ("driver", "replay", "driver", "another driver, recomputed"),
    ("torch_version", "replay", "torch", "another torch version, recomputed"),
    ("old_format", "replay", "1.0", "the tag says format 1.0, what that lacks is left out"),
    # tampered wheels
    ("adapter_source", "grade", "plugin.py", "a line is added to a source of the adapter"),
    ("suite_source", "grade", "tolerance.py", "the suite's tolerance is made 1e9"),
    ("schemas_data", "grade", "certificate-", "a JSON Schema is changed"),
    ("vendors_file_gone", "grade", "nvidia.json", "a data file of vendors is deleted"),
    ("pyc_swapped", "grade", "tolerance", "a .pyc of the suite is another's, source untouched"),
    ("pyc_unchecked", "grade", "tolerance", "the same with an unchecked-hash header"),
    ("pyc_sourceless", "grade", "extra.pyc", "a sourceless extra.pyc beside the suite's modules"),
    ("extra_module", "grade", "extra.py", "a module of no RECORD inside of core's package"),
    ("hash_removed", "grade", "plugin.py", "a source changed, its line in RECORD has no hash"),
    ("library_swapped", "grade", "libextra.so", "a shared library in the adapter is replaced"),
    ("kernel_elsewhere", "grade", "other_kernels", "a kernel in another package is changed"),
    ("sitecustomize", "grade", "sitecustomize", "a sitecustomize.py that patches the tolerance"),
    ("pth_hook", "grade", "hook.pth", "a .pth of no RECORD that imports code"),
    ("shadowed_suite", "grade", "vllm_adapter_conformance", "PYTHONPATH has a copy of the suite"),
    ("not_editable", "grade", "RECORD", "an editable install whose direct_url.json is removed"),
    ("changed_and_back", "grade", "plugin.py", "changed while the run lasts, then as it was"),
)
