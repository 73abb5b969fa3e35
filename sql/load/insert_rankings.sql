-- Moves the rankings of committed batches from the spool; columns are matched by name.
insert into rankings by name
select * from incoming;
