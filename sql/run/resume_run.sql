-- Takes an unfinished run up again.
update runs
set
    status = 'running',
    finished_at = null,
    error = null,
    is_limited = $is_limited::boolean,
    versions = $versions::json,
    git_commit = $git_commit,
    host = $host,
    flow_run_id = $flow_run_id
where run_id = $run_id;
