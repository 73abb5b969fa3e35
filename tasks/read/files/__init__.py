"""Other people's files, before their columns mean anything: where they lie, and that reading them is safe."""
