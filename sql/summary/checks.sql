-- What the checks found. check_name | num_offending | share | max_share | passed | skip_reason
select check_name, num_offending, share, max_share, passed, skip_reason
from check_results
where run_id = $run_id
order by check_name;
