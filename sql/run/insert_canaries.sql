-- Adds what a run's canaries answered.
insert into canaries by name
select * from incoming;
