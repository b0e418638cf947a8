"""A pytest plugin for tests: the check of one rule calls pytest.skip."""

import pytest

from vllm_adapter_conformance.rules import registered

object.__setattr__(
    registered()["L0.manifest.name"], "check", lambda bench, case: pytest.skip("not today")
)
