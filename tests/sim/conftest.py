"""Tests against the simulated accelerator's C library, which is built here with a C compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import sim_library

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config, items):
    if shutil.which(sim_library.COMPILER):
        return
    left_out = [item for item in items if HERE in item.path.parents]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


def pytest_terminal_summary(terminalreporter):
    if not shutil.which(sim_library.COMPILER):
        terminalreporter.write_line(
            f"The tests in tests/sim were left out: there is no C compiler {sim_library.COMPILER}."
        )


@pytest.fixture(scope="session")
def c_folder(request):
    """Where the libraries of the tests are kept from one session to the next."""
    return request.config.cache.mkdir("clib")


@pytest.fixture(scope="session")
def sim_path(c_folder):
    """The simulated accelerator's library."""
    return sim_library.build_sim(c_folder)


@pytest.fixture(scope="session")
def faulty(c_folder):
    """faulty("NAME") builds the library of `faulty.c` with that fault; without a name, none."""

    def build(fault="NONE"):
        flag, name = f"-DFAULT_{fault}", f"lib{fault.lower()}"
        return sim_library.build(c_folder, [HERE / "faulty.c"], flag, name=name)

    return build


@pytest.fixture(scope="session")
def sim(sim_path):
    """The library, loaded."""
    from vllm_adapter.c_abi.library import Library

    return Library(sim_path)


@pytest.fixture(scope="session")
def runtime(sim):
    """The library's runtime; its device is torch's `sim` for the rest of the process."""
    from vllm_adapter.engine.runtime.c_library import CLibraryRuntime
    from vllm_adapter.engine.runtime.device_from_clib import enable

    return CLibraryRuntime(sim, "sim", enable("sim", sim).streams)


@pytest.fixture
def backend(runtime):
    """The backend of torch's `sim`: nothing counted yet, and the host may run anything."""
    from vllm_adapter.engine.runtime.device_from_clib import enabled
    from vllm_adapter.settings import Fallback

    backend = enabled()
    before, backend.policy = backend.policy, Fallback.ALLOW
    backend.coverage.reset()
    yield backend
    backend.policy = before
