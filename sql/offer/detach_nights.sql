-- Lets go of the other database, for others to write.
detach nights;
