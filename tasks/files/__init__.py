"""How bytes reach the disk: files that are whole or not there, and what a checkpoint overwrites."""
