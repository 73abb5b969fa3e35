-- Gives the blocks of deleted rows back to the file, for the next night's.
checkpoint;
