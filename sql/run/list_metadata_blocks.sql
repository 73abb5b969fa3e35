-- The blocks of the database's file that hold metadata: a checkpoint may write into them. block_id, block_size_bytes
with file as (
    select block_size as block_size_bytes from pragma_database_size() where database_name = current_database()
)

select block_id, block_size_bytes
from pragma_metadata_info(), file
where block_id < 4611686018427388000  -- from there on: in memory only
order by block_id;
