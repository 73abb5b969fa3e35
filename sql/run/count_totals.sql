-- What the checks' shares are of. queries | candidates: those set aside included | passages: over all windows | batches
select
    (select count(*) from rankings where run_id = $run_id) as queries,
    (select num_candidates from runs where run_id = $run_id)
    + (select count(*) from quarantine where run_id = $run_id and source = 'candidates') as candidates,
    (select coalesce(sum(len(docs)), 0)::bigint from windows where run_id = $run_id) as passages,
    (select count(*) from batches where run_id = $run_id and num_prompts > 0) as batches;
