-- Queries whose ranks are not 1, 2, ..., n. query_id | num_offending: 1
select query_id, 1 as num_offending
from scores
where run_id = $run_id
group by query_id
having min(rank) <> 1 or max(rank) <> count(*) or count(distinct rank) <> count(*)
order by query_id;
