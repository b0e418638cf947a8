"""A pytest plugin for tests: one rule's cases may take 6 s, and COMPILE_S seconds to compile."""

import os

from vllm_adapter_conformance.rules import registered
from vllm_adapter_conformance.run import limits

object.__setattr__(registered()["L2.rms_norm.correct"], "seconds", 6.0)
limits.COMPILE_S = float(os.environ["COMPILE_S"])
