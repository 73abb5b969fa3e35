-- A run and its repetitions. run_id | status | is_degraded
select run_id, status, is_degraded
from runs
where run_id = $base_run_id or starts_with(run_id, $base_run_id || '-r');
