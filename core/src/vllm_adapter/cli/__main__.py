"""`python -m vllm_adapter.cli`: the command line where its script is not on the path."""

from __future__ import annotations

import sys

from vllm_adapter.cli.main import main

sys.exit(main())
