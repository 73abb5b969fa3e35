-- How many queries and candidates a run has, against the median of the last seven earlier published nights of its series.
create or replace view volumes as
with nights as (
    select runs.name, runs.night, runs.num_queries, runs.num_candidates
    from published_nights
    join runs using (run_id)
),

earlier as (
    select runs.run_id, nights.num_queries, nights.num_candidates
    from runs
    join nights on nights.name = runs.name and nights.night < runs.night
    where not coalesce(runs.is_limited, false)
    qualify row_number() over (partition by runs.run_id order by nights.night desc) <= 7
),

usual as (
    select
        run_id,
        median(num_queries) as usual_queries,
        median(num_candidates) as usual_candidates,
        count(*) as num_nights
    from earlier
    group by run_id
),

counted as (
    select run_id, 'queries' as quantity, runs.num_queries as number, usual_queries as usual_number, num_nights
    from runs
    join usual using (run_id)

    union all

    select run_id, 'candidates', runs.num_candidates, usual_candidates, num_nights
    from runs
    join usual using (run_id)
)

select run_id, quantity, number, usual_number, number / usual_number - 1 as change, num_nights
from counted
where number is not null and usual_number > 0;

comment on view volumes is 'How large a run is against earlier published nights of its series; no row for a trial, nor where there is no such night. Key: run_id, quantity.';
comment on column volumes.run_id is 'Run';
comment on column volumes.quantity is 'queries, candidates: what is counted, as in runs.num_queries and runs.num_candidates';
comment on column volumes.number is 'How many the run has';
comment on column volumes.usual_number is 'Median of the last seven earlier published nights';
comment on column volumes.change is 'number / usual_number - 1: -0.5 is half of the usual, 1 is twice as many';
comment on column volumes.num_nights is 'Nights that usual_number is over, 7 at the most';
