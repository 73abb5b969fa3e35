-- Queries with passages that were cut. query_id | num_offending: passages cut, over all windows
select query_id, truncated_passages as num_offending
from truncations
where run_id = $run_id
order by query_id;
