-- A query's windows, in the run that asked them. docs: doc_ids in prompt order | tokens | seconds
select
    windows.round,
    windows.window_no as window_no,
    windows.attempt,
    windows.batch_no,
    (
        select string_agg(scores.doc_id, ' ' order by shown.place)
        from (select unnest(windows.docs) as doc, generate_subscripts(windows.docs, 1) as place) as shown
        join scores
            on scores.run_id = rankings.scores_run_id
            and scores.query_id = windows.query_id
            and scores.first_stage_rank = shown.doc + 1
    ) as docs,
    windows.prompt_tokens,
    windows.cached_tokens,
    windows.output_tokens,
    windows.truncated_passages,
    windows.truncated_tokens,
    windows.decode_mode,
    windows.parse_status,
    windows.num_listed,
    windows.num_missing,
    windows.id_mass,
    windows.ttft_s
from rankings
join windows on windows.run_id = rankings.scores_run_id and windows.query_id = rankings.query_id
where rankings.run_id = $run_id and rankings.query_id = $query_id
order by windows.round, windows.window_no, windows.attempt;
