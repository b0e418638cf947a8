"""A second import of the package takes over the device that the first gave to torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.sim

SCRIPT = """
import io, pickle, sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
import torch

def enabled():
    from vllm_adapter.c_abi.library import Library
    from vllm_adapter.engine.runtime.device_from_clib import enable
    return enable("sim", Library(Path(sys.argv[1])))

enabled()
torch.manual_seed(0)
host = torch.randn(64, 64)
older = host.to("sim:1")
stream = torch.sim.Stream("sim:1")
with stream:
    late = older @ older  # on a queue that the second import does not know
for _ in range(2):
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm_adapter"]:
        del sys.modules[name]
    backend = enabled()
    assert enabled() is backend
    torch.testing.assert_close(late.cpu(), host @ host, rtol=1e-4, atol=1e-4)
    newer = host.to("sim:1")
    torch.testing.assert_close((older + newer).cpu(), host + host)
    assert backend.streams.Stream is torch.sim.Stream
    assert isinstance(torch.sim.current_stream("sim:1"), torch.Stream)
    assert torch.accelerator.memory_allocated(1) == torch.sim.memory_allocated(1) > 0
    file = io.BytesIO()
    torch.save(older, file)
    file.seek(0)
    assert torch.equal(torch.load(file).cpu(), host)
    assert torch.equal(pickle.loads(ForkingPickler.dumps(newer)).cpu(), host)
    compiled = torch.compile(torch.add, backend="eager")
    torch.testing.assert_close(compiled(older, newer).cpu(), host * 2)
    from vllm_adapter.errors import NoSuchDevice
    try:
        torch.empty(2, device="sim:7")
    except NoSuchDevice as error:  # of this import
        assert "no device 7" in str(error)
    else:
        raise SystemExit("no error")
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.device_from_clib import enable
del sys.modules["vllm_adapter.engine.runtime.device_from_clib.enable"]
from vllm_adapter.engine.runtime.device_from_clib.enable import enable
from vllm_adapter.errors import AdapterError
try:
    enable("sim", Library(Path(sys.argv[2])))
except AdapterError as error:
    print(error)
"""


def test_the_device_of_an_earlier_import_is_served_by_the_later(sim_path, tmp_path):
    other = tmp_path / "libother.so"
    other.write_bytes(sim_path.read_bytes())
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(sim_path), str(other)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "from an earlier import of vllm-adapter-core" in done.stdout
    assert "restart Python" in done.stdout
