-- How long the database's file should be, by its header. num_bytes: three headers of 4 KiB and the blocks
select 3 * 4096 + total_blocks * block_size as num_bytes from pragma_database_size();
