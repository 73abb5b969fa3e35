"""How long a run takes and what it needs, before it starts."""
