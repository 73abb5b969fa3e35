-- Ends a run: complete, failed or cancelled.
update runs
set status = $status, finished_at = now(), error = $error
where run_id = $run_id;
