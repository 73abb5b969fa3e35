-- Adds a run's quality.
insert into metrics by name
select * from incoming;
