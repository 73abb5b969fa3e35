-- What the shares are of, for checks that need several documents or earlier nights; 0 where there is nothing to check.
-- scored_queries: with four numbers of the model | ranked_queries: with four ranked documents | canaries
-- banded_canaries: with three earlier nights | steady_places: of the first tens of queries that nothing changed for
with documents as (
    select
        query_id,
        count(model_score) filter (score_kind in ('reciprocal_rank', 'p_yes', 'query_likelihood')) as num_scored,
        count(*) filter (status = 'ranked') as num_ranked
    from scores
    where run_id = $run_id
    group by query_id
),

steady as (
    select count(*) as num_queries, sum(least(10, num_candidates))::bigint as num_places
    from churn
    where run_id = $run_id and change in ('moved', 'unchanged')
)

select
    (select count(*) from documents where num_scored >= 4) as scored_queries,
    (select count(*) from documents where num_ranked >= 4) as ranked_queries,
    (select count(*) from canaries where run_id = $run_id) as canaries,
    (select count(*) from canary_bands where run_id = $run_id and num_nights >= 3) as banded_canaries,
    (select num_places from steady where num_queries >= 20) as steady_places;
