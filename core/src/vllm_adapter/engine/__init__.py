"""Everything that imports torch."""

from vllm_adapter.discovery.entry_files import let_torch_be_imported

let_torch_be_imported()
