-- Takes a published run back: latest_scores shows the one before it.
update runs
set status = 'complete', published_at = null
where run_id = $run_id and status = 'published';
