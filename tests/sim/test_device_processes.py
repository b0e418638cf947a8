"""One name a process; what spawned and forked processes get."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.sim
HEAD = """
import os, sys
from pathlib import Path
import torch
from vllm_adapter.c_abi.library import Library
from vllm_adapter.engine.runtime.device_from_clib import enable, enabled
from vllm_adapter.errors import VllmAdapterError
def refused(*given):
    try:
        enable(*given)
    except VllmAdapterError as error:
        return str(error)
    raise AssertionError(given)
"""


@pytest.fixture
def run(sim_path, tmp_path):
    """run(code) runs it in a process of its own, with the library's path as `PATH`."""

    def program(code, **variables):
        file = tmp_path / "program.py"
        file.write_text(f"{HEAD}PATH = {str(sim_path)!r}\n{textwrap.dedent(code)}")
        done = subprocess.run(
            [sys.executable, "-W", "error", str(file)],
            capture_output=True, text=True, timeout=300, env=variables or None,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done

    return program


@pytest.mark.parametrize("name", ["npu", "hpu", "musa"])
def test_another_vendors_name(run, name):
    run(
        f"""
        name = {name!r}
        assert enabled() is None
        backend = enable(name, Library(Path(PATH)))
        assert enabled() is backend
        module = getattr(torch, name)
        x = torch.arange(4.0).to(f"{{name}}:1")
        assert (x * 2).tolist() == [0, 2, 4, 6]
        assert getattr(x, f"is_{{name}}") and x.device == torch.device(name, 1)
        assert getattr(torch.ones(1), name)(0).device == torch.device(name, 0)
        assert torch.nn.Linear(1, 1).to(f"{{name}}:0").weight.device.type == name
        with module.stream(module.Stream()) as s:
            s.record_event().synchronize()
        module.set_device(1)
        assert module.current_device() == 1 and module.mem_get_info()[1] > 0
        module.empty_cache(); module.synchronize()
        assert __import__(f"torch.{{name}}")
        """
    )


def test_what_enable_refuses(run):
    run(
        """
        library = Library(Path(PATH))
        for name in ("cpu", "cuda", "xpu", "mtia", "hip", "meta", "Sim", "sim2", "", "a-b"):
            assert refused(name, library).startswith("the torch device type of "), name
        backend = enable("sim", library)
        assert enable("sim", library) is backend is enable("sim", Library(Path(PATH)))
        assert "use another process" in refused("npu", library)
        """
    )


def test_the_place_may_be_taken_and_torch_too_old(run):
    run(
        """
        import torch.utils.backend_registration as registration
        library = Library(Path(PATH))
        kept = registration._setup_privateuseone_for_python_backend
        del registration._setup_privateuseone_for_python_backend
        assert "install torch 2.13" in refused("sim", library)
        registration._setup_privateuseone_for_python_backend = kept
        torch.utils.rename_privateuse1_backend("npu")
        assert "taken by npu" in refused("sim", library)
        """
    )


def test_a_fork_before_the_first_tensor_is_fine_and_after_it_refused(run):
    run(
        """
        import warnings
        warnings.simplefilter("ignore")  # of forking with threads
        enable("sim", Library(Path(PATH)))
        def child(work):
            pid = os.fork()
            if not pid:
                try:
                    work()
                except RuntimeError as error:
                    os._exit(3 if "before this process was forked" in str(error) else 4)
                except BaseException:
                    os._exit(5)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        def use():
            assert (torch.ones(2, device="sim:0") + 1).tolist() == [2, 2]
        assert child(use) == 0
        x = torch.ones(2, device="sim:0")
        assert child(use) == 3
        assert child(lambda: x + 1) == 3
        assert child(lambda: x.cpu()) == 3
        assert child(lambda: x.sort()) == 3
        assert child(torch.sim.init) == 3
        assert child(lambda: torch.sim.is_available() and os._exit(6)) == 0
        use()
        """
    )


def test_spawned_workers_get_tensors_and_the_device(run):
    run(
        """
        import torch.multiprocessing as mp
        def work(inbox, outbox):
            if enabled() is not None:
                raise AssertionError("too early")
            x, weight, row = inbox.get()
            assert x.device == torch.device("sim:1") and isinstance(weight, torch.nn.Parameter)
            outbox.put((x * 2, x + row, weight))  # and ends, before anybody reads them
            outbox.close(); outbox.join_thread()
        def main():
            enable("sim", Library(Path(PATH)))
            context = mp.get_context("spawn")
            inbox, outbox = context.Queue(), context.Queue()
            worker = context.Process(target=work, args=(inbox, outbox))
            worker.start()
            x = torch.arange(6.0, device="sim:1").view(2, 3)
            inbox.put((x, torch.nn.Parameter(x.clone()), x[1]))
            worker.join(120)
            doubled, moved, weight = outbox.get(timeout=120)
            assert doubled.tolist() == [[0, 2, 4], [6, 8, 10]]
            assert moved.device == torch.device("sim:1")
            assert moved.tolist() == [[3, 5, 7], [6, 8, 10]]
            assert weight.requires_grad
            assert worker.exitcode == 0
        if __name__ == "__main__":
            main()
        """
    )


def test_dynamo_may_be_imported_before(run):
    run(
        """
        import torch._dynamo
        enable("sim", Library(Path(PATH)))
        f = torch.compile(lambda x: x * 2 + 1, backend=lambda g, _: g.forward, fullgraph=True)
        assert f(torch.ones(2, device="sim:1")).tolist() == [3, 3]
        """
    )


def test_the_policy_is_that_of_the_environment(run):
    import os

    run(
        """
        from vllm_adapter.errors import UnsupportedCase
        enable("sim", Library(Path(PATH)))
        try:
            torch.ones(3, device="sim:0").sort()
        except UnsupportedCase as error:
            assert "aten::sort" in str(error)
        else:
            raise AssertionError
        """,
        **os.environ | {"VA_FALLBACK": "error"},
    )
