-- Canaries whose margin moved: further than max_drift from the median of at least three earlier nights.
-- pair | num_offending: 1
select pair, 1 as num_offending
from canary_bands
where run_id = $run_id and num_nights >= 3 and abs(drift) > $max_drift
order by pair;
