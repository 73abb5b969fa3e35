-- Moves the outcomes of committed batches from the spool; columns are matched by name.
insert into outcomes by name
select * from incoming;
