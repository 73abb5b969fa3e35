-- Begins a run.
insert into runs by name
select
    $run_id as run_id,
    $name as name,
    $night::date as night,
    'running' as status,
    false as is_degraded,
    $is_limited::boolean as is_limited,
    $started_at::timestamptz as started_at,
    $settings::json as settings,
    $resolved::json as resolved,
    $recipe::json as recipe,
    $input_digest as input_digest,
    $input_partition as input_partition,
    $model as model,
    $model_identity as model_identity,
    $strategy as strategy,
    $decode_mode as decode_mode,
    $versions::json as versions,
    $git_commit as git_commit,
    $host as host,
    $flow_run_id as flow_run_id,
    $reuse_run_id as reuse_run_id;
