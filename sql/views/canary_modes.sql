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
