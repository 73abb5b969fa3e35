-- What the canaries of a run answered.

-- name: delete_canaries
-- Makes room for canaries that are asked again.
delete from canaries where run_id = $run_id;

-- name: list_canaries
-- What a run's canaries answered. pair | margin | passed
select pair, margin, passed from canaries where run_id = $run_id order by pair;
