-- A run whose flow run crashed, and which no other flow run took up since.
update runs
set status = 'failed', finished_at = now(), error = 'killed: its process ended without a word'
where status = 'running' and flow_run_id = $flow_run_id;
