"""How good a run was and what it took, for people."""
