-- One row a run: what it did and what it took.
create or replace view run_summary as
with query_counts as (
    select
        run_id,
        count(*) filter (status = 'ranked') as num_ranked_queries,
        count(*) filter (status = 'single') as num_single_queries,
        count(*) filter (status = 'partial') as num_partial_queries,
        count(*) filter (status = 'fallback') as num_fallback_queries,
        count(*) filter (status = 'reused') as num_reused_queries,
        count(*) filter (status in ('no_candidates', 'quarantined')) as num_unranked_queries
    from rankings
    group by run_id
),

quarantine_counts as (
    select run_id, count(*) filter (source = 'candidates') as num_quarantined_candidates
    from quarantine
    group by run_id
),

window_counts as (
    select
        run_id,
        count(*) as num_windows,
        sum(len(docs))::bigint as num_passages,
        sum(truncated_passages)::bigint as truncated_passages,
        sum(truncated_tokens)::bigint as truncated_tokens,
        count(*) filter (attempt > 0) as num_repeated_windows
    from windows
    group by run_id
),

id_masses as (
    select run_id, min(mean_id_mass) as mean_id_mass
    from (
        select run_id, decode_mode, avg(id_mass) as mean_id_mass
        from windows
        group by run_id, decode_mode
    )
    group by run_id
),

batch_counts as (
    select
        run_id,
        count(*) filter (num_prompts > 0) as num_batches,
        sum(prompt_tokens)::bigint as prompt_tokens,
        sum(cached_tokens)::bigint as cached_tokens,
        sum(output_tokens)::bigint as output_tokens,
        sum(num_preemptions)::bigint as num_preemptions,
        sum(engine_s) as engine_s
    from batches
    group by run_id
)

select
    runs.run_id,
    runs.name,
    runs.night,
    runs.status,
    runs.is_limited,
    runs.published_at,
    runs.is_degraded,
    runs.started_at,
    runs.finished_at,
    runs.elapsed_s,
    runs.model,
    runs.strategy,
    runs.decode_mode,
    coalesce(array_to_string(runs.stages, ', then '), runs.strategy || ' by ' || runs.decode_mode) as ranked_by,
    runs.device,
    runs.input_partition,
    runs.num_queries,
    coalesce(query_counts.num_ranked_queries, 0) as num_ranked_queries,
    coalesce(query_counts.num_single_queries, 0) as num_single_queries,
    coalesce(query_counts.num_partial_queries, 0) as num_partial_queries,
    coalesce(query_counts.num_fallback_queries, 0) as num_fallback_queries,
    coalesce(query_counts.num_reused_queries, 0) as num_reused_queries,
    coalesce(query_counts.num_unranked_queries, 0) as num_unranked_queries,
    runs.num_candidates,
    coalesce(quarantine_counts.num_quarantined_candidates, 0) as num_quarantined_candidates,
    coalesce(window_counts.num_windows, 0) as num_windows,
    coalesce(window_counts.num_repeated_windows, 0) as num_repeated_windows,
    id_masses.mean_id_mass,
    coalesce(window_counts.num_passages, 0) as num_passages,
    coalesce(window_counts.truncated_passages, 0) as truncated_passages,
    coalesce(window_counts.truncated_tokens, 0) as truncated_tokens,
    coalesce(batch_counts.num_batches, 0) as num_batches,
    coalesce(batch_counts.prompt_tokens, 0) as prompt_tokens,
    coalesce(batch_counts.cached_tokens, 0) as cached_tokens,
    coalesce(batch_counts.output_tokens, 0) as output_tokens,
    coalesce(batch_counts.num_preemptions, 0) as num_preemptions,
    coalesce(batch_counts.engine_s, 0) as engine_s,
    forecasts.low_s as forecast_low_s,
    forecasts.high_s as forecast_high_s,
    forecasts.actual_s,
    runs.error,
    runs.input_warnings
from runs
left join query_counts using (run_id)
left join quarantine_counts using (run_id)
left join window_counts using (run_id)
left join id_masses using (run_id)
left join batch_counts using (run_id)
left join forecasts using (run_id);

comment on view run_summary is 'One row a run: what it did and what it took.';
comment on column run_summary.run_id is 'Run';
comment on column run_summary.name is 'Series';
comment on column run_summary.night is 'Logical date';
comment on column run_summary.status is 'See runs.status';
comment on column run_summary.is_limited is 'Whether it is a trial, see runs.is_limited';
comment on column run_summary.published_at is 'UTC; null if never';
comment on column run_summary.is_degraded is 'Whether a check failed';
comment on column run_summary.started_at is 'First start, UTC';
comment on column run_summary.finished_at is 'Last end, UTC';
comment on column run_summary.elapsed_s is 'First start to last end, seconds';
comment on column run_summary.model is 'Model, as in the settings';
comment on column run_summary.strategy is 'Strategy, of the last step';
comment on column run_summary.decode_mode is 'Decode mode, of the last step';
comment on column run_summary.ranked_by is 'The whole strategy in words, see runs.stages';
comment on column run_summary.device is 'Device, as vLLM names it';
comment on column run_summary.input_partition is 'Hive partition read';
comment on column run_summary.num_queries is 'Queries';
comment on column run_summary.num_ranked_queries is 'Queries ranked by the model in every window';
comment on column run_summary.num_single_queries is 'Queries with one candidate, no call needed';
comment on column run_summary.num_partial_queries is 'Queries with some windows that fell back';
comment on column run_summary.num_fallback_queries is 'Queries whose windows all fell back';
comment on column run_summary.num_reused_queries is 'Queries whose scores are an earlier run''s';
comment on column run_summary.num_unranked_queries is 'Queries without candidates, or set aside';
comment on column run_summary.num_candidates is 'Candidates with a score';
comment on column run_summary.num_quarantined_candidates is 'Candidate rows set aside';
comment on column run_summary.num_windows is 'Windows asked, one prompt each';
comment on column run_summary.num_repeated_windows is 'Of these, windows asked again because too little was named';
comment on column run_summary.mean_id_mass is 'Mean probability at the first token of all identifiers, or spellings of the verdict, in the decode mode where it is lowest; below 0.5 the prompt does not fit the model; null where nothing was asked so';
comment on column run_summary.num_passages is 'Passages shown, over all windows';
comment on column run_summary.truncated_passages is 'Passages cut, of those shown';
comment on column run_summary.truncated_tokens is 'Passage tokens left out';
comment on column run_summary.num_batches is 'Engine calls';
comment on column run_summary.prompt_tokens is 'Prompt tokens';
comment on column run_summary.cached_tokens is 'Prompt tokens found in the prefix cache';
comment on column run_summary.output_tokens is 'Tokens generated';
comment on column run_summary.num_preemptions is 'Preemptions';
comment on column run_summary.engine_s is 'Time inside engine calls, seconds, summed over shards';
comment on column run_summary.forecast_low_s is 'Lower end of the engine time that was expected, seconds; null where no rates were known';
comment on column run_summary.forecast_high_s is 'Upper end of it, seconds';
comment on column run_summary.actual_s is 'Time in which a batch was in the engine, seconds; null without a forecast, and until the run is ranked';
comment on column run_summary.error is 'Why it failed';
comment on column run_summary.input_warnings is 'See runs.input_warnings';
