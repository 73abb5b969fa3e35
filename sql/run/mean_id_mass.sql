-- Probability of the identifiers at the first token, over a run's windows. mean_id_mass: null where nothing was asked so
select avg(id_mass) as mean_id_mass from windows where run_id = $run_id;
