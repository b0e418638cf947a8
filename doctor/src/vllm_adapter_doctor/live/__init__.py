"""What this machine's files and its vendors' tools tell, beyond the quick facts."""
