-- What changed since the last published night, by query.
create or replace view churn as
with published as (
    select
        run_id,
        name,
        night,
        lag(run_id) over (partition by name order by night, published_at) as previous_run_id
    from runs
    where status = 'published'
),

ranks as (
    select rankings.run_id, scores.query_id, scores.doc_id, scores.rank
    from rankings
    join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
),

pairs as (
    select
        published.run_id,
        published.previous_run_id,
        ranks.query_id,
        ranks.rank,
        earlier.rank as previous_rank,
        count(*) over (partition by published.run_id, ranks.query_id) as num_candidates
    from published
    join ranks using (run_id)
    left join ranks as earlier
        on earlier.run_id = published.previous_run_id
        and earlier.query_id = ranks.query_id
        and earlier.doc_id = ranks.doc_id
    where published.previous_run_id is not null
)

select
    run_id,
    previous_run_id,
    query_id,
    any_value(num_candidates) as num_candidates,
    count(*) filter (rank <= 10 and previous_rank <= 10) / least(10, any_value(num_candidates)) as overlap_at_10,
    count(*) filter (rank is distinct from previous_rank) as num_moved,
    coalesce(bool_or(rank = 1 and previous_rank is distinct from 1), false) as has_new_first
from pairs
group by run_id, previous_run_id, query_id;

comment on view churn is 'What changed between a published run and the published run before it in its series. Key: run_id, query_id.';
comment on column churn.run_id is 'Published run';
comment on column churn.previous_run_id is 'Published run before it';
comment on column churn.query_id is 'Query';
comment on column churn.num_candidates is 'Candidates of the query in run_id';
comment on column churn.overlap_at_10 is 'Share of the first ten that were among the first ten before';
comment on column churn.num_moved is 'Candidates whose rank changed, new ones included';
comment on column churn.has_new_first is 'Whether another document is first now';
