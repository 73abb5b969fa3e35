"""The life of a run: what is asked for, what the database knows of it, its stages, and its plan without an engine."""
