-- How long the database's file must be at least: three headers of 4 KiB and the blocks in use. num_bytes
select 3 * 4096 + used_blocks * block_size as num_bytes from pragma_database_size();
