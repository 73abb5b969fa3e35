-- Moves everything out of the write-ahead log into the database's file, and waits until that is on the disk.
checkpoint;
