-- Ends a run: complete, failed or cancelled. What goes wrong after it was published does not undo that.
update runs
set status = $status, finished_at = now(), error = $error
where run_id = $run_id and status <> 'published';
