"""An adapter that works against its judge."""

from vllm_adapter_hostile.notes import note

note("import")
