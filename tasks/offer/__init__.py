"""What follows a publication: an export, a copy for tools that keep a connection open, and the end of old nights."""
