-- How far a run is. num_rankings: queries with a row
select count(*) as num_rankings from rankings where run_id = $run_id;
