-- Which published run a run is compared with. A run that is complete, but not published, is compared as well: its checks
-- look here first. Trials are not.
create or replace view previous_runs as
select later.run_id, earlier.run_id as previous_run_id
from runs as later
join runs as earlier
    on earlier.name = later.name
    and earlier.run_id <> later.run_id
    and (
        earlier.night < later.night
        or (
            earlier.night = later.night
            and (later.publication_no is null or earlier.publication_no < later.publication_no)
        )
    )
where
    later.status in ('complete', 'published')
    and later.is_limited is not true
    and earlier.status = 'published'
qualify row_number() over (
    partition by later.run_id order by earlier.night desc, earlier.publication_no desc
) = 1;

comment on view previous_runs is 'The published run before each complete or published run of its series: of the newest night not after its own. No row for a trial. Key: run_id.';
comment on column previous_runs.run_id is 'Run';
comment on column previous_runs.previous_run_id is 'Published run before it';

-- What changed since the run of previous_runs, by query. Filter by run_id: all nights at once are many rows.
-- weights: at [d] the sum of 0.9^i / i for i = 1 to d, since a document in both lists agrees from its worse rank on. All
-- below depth 200 weighs 10^-9.
create or replace view churn as
with weights as (
    select list(total order by depth) as totals
    from (select depth, sum(pow(0.9, depth) / depth) over (order by depth) as total from range(1, 201) as depths(depth))
),

queries as (
    select
        previous_runs.run_id,
        previous_runs.previous_run_id,
        ours.query_id,
        ours.num_candidates,
        ours.scores_run_id,
        theirs.scores_run_id as previous_scores_run_id,
        least(ours.num_candidates, theirs.num_candidates, 200) as depth,
        case
            when theirs.query_id is null then 'new_query'
            when ours.scores_run_id <> ours.run_id then 'reused'
            when
                ours.query_digest <> theirs.query_digest
                or ours.candidates_digest <> theirs.candidates_digest
                or ours.documents_digest <> theirs.documents_digest
                then 'input_changed'
            when ours.recipe_digest <> theirs.recipe_digest then 'recipe_changed'
        end as cause
    from previous_runs
    join rankings as ours using (run_id)
    left join rankings as theirs
        on theirs.run_id = previous_runs.previous_run_id and theirs.query_id = ours.query_id
),

counted as (
    select
        queries.run_id,
        queries.previous_run_id,
        queries.query_id,
        any_value(queries.num_candidates) as num_candidates,
        any_value(queries.depth) as depth,
        any_value(queries.cause) as cause,
        count(*) filter (after.rank <= 10 and before.rank <= 10) as num_common_at_10,
        count(*) filter (after.rank is distinct from before.rank) as num_moved,
        coalesce(bool_or(after.rank = 1 and before.rank is distinct from 1), false) as has_new_first,
        count(*) filter (after.rank <= queries.depth and before.rank <= queries.depth) as num_common,
        sum(weights.totals[queries.depth] - coalesce(weights.totals[greatest(after.rank, before.rank) - 1], 0))
            filter (after.rank <= queries.depth and before.rank <= queries.depth) as agreement
    from queries
    cross join weights
    join scores as after on after.run_id = queries.scores_run_id and after.query_id = queries.query_id
    left join scores as before
        on before.run_id = queries.previous_scores_run_id
        and before.query_id = queries.query_id
        and before.doc_id = after.doc_id
    group by queries.run_id, queries.previous_run_id, queries.query_id
)

select
    run_id,
    previous_run_id,
    query_id,
    num_candidates,
    coalesce(cause, case when num_moved > 0 then 'moved' else 'unchanged' end) as change,
    num_common_at_10 / least(10, num_candidates) as overlap_at_10,
    case
        when cause = 'new_query' or depth = 0 then null
        else least(1.0, (1 - 0.9) / 0.9 * coalesce(agreement, 0) + num_common / depth * pow(0.9, depth))
    end as rbo,
    num_moved,
    has_new_first
from counted;

comment on view churn is 'What changed between a complete or published run and that of previous_runs, for queries with candidates. Trials have no row. Key: run_id, query_id.';
comment on column churn.run_id is 'Run';
comment on column churn.previous_run_id is 'See previous_runs';
comment on column churn.query_id is 'Query';
comment on column churn.num_candidates is 'Candidates of the query in run_id';
comment on column churn.change is 'Why the order may differ: new_query; reused (an earlier run''s rows); input_changed (text, candidates or documents); recipe_changed (model, prompt, strategy, sizes); else moved (nothing changed, another order all the same) or unchanged';
comment on column churn.overlap_at_10 is 'Share of the first ten that were among the first ten before';
comment on column churn.rbo is 'Rank-biased overlap of both orders to the length of the shorter, extrapolated, p = 0.9 (RBO_ext of Webber, Moffat and Zobel 2010): 1 the same, 0 nothing in common; null for a new query';
comment on column churn.num_moved is 'Candidates whose rank changed, new ones included';
comment on column churn.has_new_first is 'Whether another document is first now';
