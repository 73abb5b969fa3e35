"""The Prefect flows and the command line: thin, no arithmetic, no SQL."""
