"""What adapters declare, and who runs a case by it: torch-free."""
