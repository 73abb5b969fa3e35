-- Remembers which files of sql/schema were applied to this database.
create table if not exists schema_files (
    file_name varchar primary key,
    applied_at timestamptz not null
);

comment on table schema_files is 'The schema files that made this database, in order.';
comment on column schema_files.file_name is 'File of sql/schema';
comment on column schema_files.applied_at is 'When it was applied, UTC';
