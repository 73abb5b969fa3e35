-- Queries that the model did not rank at all, including those that killed an engine. query_id | num_offending: 1
select query_id, 1 as num_offending
from rankings
where run_id = $run_id and (status = 'fallback' or (status = 'quarantined' and num_candidates > 0))
order by query_id;
