-- A run and its repetitions. run_id | status | is_degraded | is_checked: its checks have run
select run_id, status, is_degraded, failed_checks is not null as is_checked
from runs
where run_id = $base_run_id or starts_with(run_id, $base_run_id || '-r');
