-- Adds the engine's steps of loaded batches.
insert into engine_steps by name
select * from incoming;
