-- Queries with two rows, and one row for all queries that have none. query_id: null for the missing | num_offending
select query_id, count(*) - 1 as num_offending
from rankings
where run_id = $run_id
group by query_id
having count(*) > 1

union all

select null, runs.num_queries - (select count(distinct query_id) from rankings where run_id = $run_id)
from runs
where
    runs.run_id = $run_id
    and runs.num_queries > (select count(distinct query_id) from rankings where run_id = $run_id);
