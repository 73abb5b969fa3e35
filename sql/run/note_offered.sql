-- All that follows the publication of a run is done.
update runs set offered_at = now() where run_id = $run_id and status = 'published';
