-- A run and its repetitions. The columns of runs
select *
from runs
where run_id = $base_run_id or starts_with(run_id, $base_run_id || '-r');
