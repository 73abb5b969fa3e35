-- Makes a complete run the one of its night.
update runs
set status = 'published', published_at = now(), offered_at = null
where run_id = $run_id and status = 'complete';
