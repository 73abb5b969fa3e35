-- Queries that the model did not rank at all. query_id | num_offending: 1
select query_id, 1 as num_offending
from rankings
where run_id = $run_id and status = 'fallback'
order by query_id;
