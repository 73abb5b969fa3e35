-- What a run's canaries answered. pair | margin | passed
select pair, margin, passed from canaries where run_id = $run_id order by pair;
