-- Remembers an applied schema file.
insert into schema_files (file_name, applied_at) values ($file_name, now());
