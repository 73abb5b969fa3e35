-- Notes which checks failed.
update runs
set failed_checks = $failed_checks, is_degraded = len($failed_checks) > 0
where run_id = $run_id;
