-- The checks that a run failed. check_name | num_offending | share | max_share
select check_name, num_offending, share, max_share
from check_results
where run_id = $run_id and not passed
order by check_name;
