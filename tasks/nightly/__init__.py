"""The life of a run: what is asked for, what the database knows of it, and its stages."""
