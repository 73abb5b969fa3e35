-- Takes an unfinished run up again; it goes on looking at the run that it looked at for reuse, unless told not to.
update runs
set
    status = 'running',
    finished_at = null,
    error = null,
    is_limited = $is_limited::boolean,
    versions = $versions::json,
    git_commit = $git_commit,
    host = $host,
    flow_run_id = $flow_run_id,
    reuse_run_id = case when $reuses then reuse_run_id end
where run_id = $run_id;
