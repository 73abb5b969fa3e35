-- Queries with some windows that fell back. query_id | num_offending: 1
select query_id, 1 as num_offending
from rankings
where run_id = $run_id and status = 'partial'
order by query_id;
