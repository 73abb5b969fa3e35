-- Queries with four or more ranked documents that kept the first stage's order. query_id | num_offending: 1
select query_id, 1 as num_offending
from scores
where run_id = $run_id and status = 'ranked'
group by query_id
having count(*) >= 4 and bool_and(rank = first_stage_rank)
order by query_id;
