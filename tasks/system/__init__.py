"""Machine-level code that knows nothing of ranking: paths, files, the database connection, errors."""
