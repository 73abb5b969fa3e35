-- The database's file itself, and which schema made it.

-- name: list_tables
-- Tables and views that somebody made. table_name
select table_name from information_schema.tables where table_schema not in ('information_schema', 'pg_catalog');

-- name: create_schema_version
-- Which schema made this database: one row.
create table schema_version (
    number integer not null,
    made_at timestamptz not null
);

comment on table schema_version is 'The schema that made this database, one row.';
comment on column schema_version.number is 'Number of the schema; packrank opens databases of its own number only';
comment on column schema_version.made_at is 'When the database was made, UTC';

-- name: note_schema
-- Notes the schema that makes this database.
insert into schema_version values ($number, now());

-- name: find_schema
-- The schema that made this database. number
select number from schema_version;

-- name: find_migration
-- The last migration of a database from before schema_version: '031_inside_an_engine_step' is 31. number
select coalesce(max(left(file_name, 3)::integer), 0) as number from schema_files;

-- name: list_metadata_blocks
-- The blocks of the database's file that hold metadata: a checkpoint may write into them. block_id, block_size_bytes
with file as (
    select block_size as block_size_bytes from pragma_database_size() where database_name = current_database()
)

select block_id, block_size_bytes
from pragma_metadata_info(), file
where block_id < 4611686018427388000  -- from there on: in memory only
order by block_id;

-- name: measure_file
-- How long the database's file must be at least: three headers of 4 KiB and the blocks in use. num_bytes
select 3 * 4096 + used_blocks * block_size as num_bytes from pragma_database_size();

-- name: checkpoint
-- Moves everything out of the write-ahead log into the database's file, and waits until that is on the disk.
checkpoint;
