"""What is wrong with a box: findings with evidence, cause and action."""
