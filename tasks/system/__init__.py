"""What knows the machine and no word of ranking: paths, files, the database connection, errors."""
