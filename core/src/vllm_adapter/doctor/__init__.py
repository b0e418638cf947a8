"""What is wrong with an installation, as findings with evidence, cause and action."""
