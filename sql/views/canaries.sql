-- Each canary against the same one of the last seven published nights that had the same recipe.
create or replace view canary_bands as
with nights as (
    select canaries.run_id, canaries.pair, canaries.margin, canaries.recipe_digest, runs.name, runs.night
    from canaries
    join runs using (run_id)
    where runs.status = 'published'
    qualify row_number() over (
        partition by runs.name, runs.night, canaries.recipe_digest, canaries.pair order by runs.publication_no desc
    ) = 1
),

earlier as (
    select asked.run_id, asked.pair, nights.margin
    from canaries as asked
    join runs using (run_id)
    join nights
        on nights.name = runs.name
        and nights.night < runs.night
        and nights.pair = asked.pair
        and nights.recipe_digest = asked.recipe_digest
    qualify row_number() over (partition by asked.run_id, asked.pair order by nights.night desc) <= 7
)

select
    asked.run_id,
    asked.pair,
    any_value(asked.margin) as margin,
    median(earlier.margin) as usual_margin,
    any_value(asked.margin) - median(earlier.margin) as drift,
    count(earlier.margin) as num_nights
from canaries as asked
left join earlier using (run_id, pair)
group by asked.run_id, asked.pair;

comment on view canary_bands is 'Each canary of a run against the same one of earlier published nights of its series with the same recipe. Key: run_id, pair.';
comment on column canary_bands.run_id is 'Run';
comment on column canary_bands.pair is 'Decode mode and name of the pair';
comment on column canary_bands.margin is 'See canaries.margin';
comment on column canary_bands.usual_margin is 'Median margin of the last seven such nights; null if there is none';
comment on column canary_bands.drift is 'margin less usual_margin: log-probability where the decode mode has one, else 1 for every two places; null if there is no such night';
comment on column canary_bands.num_nights is 'Nights that usual_margin is over, 7 at the most';

-- A run's canaries by decode mode: five that pass in one mode must not hide four that fail in the other.
create or replace view canary_modes as
with modes as (
    select
        run_id,
        split_part(pair, '/', 1) as decode_mode,
        count(*) as num_pairs,
        count(*) filter (not passed) as num_missed,
        avg(margin) as mean_margin
    from canaries
    group by run_id, decode_mode
)

select
    *,
    case when mean_margin <= 0 and 2 * num_missed < num_pairs then 1 else num_missed / num_pairs end as missed_share,
    row_number() over (partition by run_id order by missed_share desc, decode_mode) = 1 as is_worst
from modes;

comment on view canary_modes is 'The canaries of a run by decode mode. Key: run_id, decode_mode.';
comment on column canary_modes.run_id is 'Run';
comment on column canary_modes.decode_mode is 'How they were asked; in a cascade the point-wise step has one, and the strategy another';
comment on column canary_modes.num_pairs is 'Pairs asked';
comment on column canary_modes.num_missed is 'Of these, pairs whose irrelevant passage was above the relevant one, or level with it';
comment on column canary_modes.mean_margin is 'Mean of canaries.margin';
comment on column canary_modes.missed_share is 'num_missed / num_pairs; 1 where fewer than half were missed, but by so much that the mean margin is not above 0';
comment on column canary_modes.is_worst is 'Whether it is the mode that the check canary_margins looks at';
