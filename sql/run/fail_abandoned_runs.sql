-- Runs still marked running while nobody holds the run lock were killed.
update runs
set status = 'failed', finished_at = now(), error = 'killed: its process ended without a word'
where status = 'running' and run_id <> $run_id;
