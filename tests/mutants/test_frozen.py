"""The mutants are those of the runs that are told of, and each is one."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SETS = {
    "first": ("vllm_adapter_mutant", "frozen.sha256"),
    "second": ("vllm_adapter_mutant_second", "frozen-second.sha256"),
}


@pytest.mark.static
@pytest.mark.parametrize(("package", "digests"), SETS.values(), ids=SETS)
def test_kernels_are_as_frozen(package, digests):
    lines = (HERE / digests).read_text("utf-8").splitlines()
    frozen = {name: digest for digest, name in (line.split() for line in lines)}
    found = {
        file.relative_to(HERE).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (HERE / package).glob("*.py")
    }
    assert found == frozen


@pytest.mark.slow
@pytest.mark.device
@pytest.mark.parametrize("name", SETS)
def test_each_mutant_differs_and_each_right_kernel_does_not(name):
    done = subprocess.run(
        [sys.executable, str(HERE / "differs.py"), "--set", name],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
