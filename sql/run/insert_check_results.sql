-- Adds the results of a run's checks.
insert into check_results by name
select * from incoming;
