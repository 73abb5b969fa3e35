-- Of the decode mode that does worst, the canaries whose irrelevant passage was above the other one, or level with it; all
-- where the mode is wrong on the whole. pair | num_offending: 1
select canaries.pair, 1 as num_offending
from canaries
join canary_modes
    on canary_modes.run_id = canaries.run_id
    and canary_modes.decode_mode = split_part(canaries.pair, '/', 1)
where canaries.run_id = $run_id and canary_modes.is_worst and (not canaries.passed or canary_modes.missed_share = 1)
order by canaries.pair;
