-- A restored backup may be older than its spool: what it lacks is computed again, and the gap says so.
comment on column batches.driver is 'generate: one LLM.generate call; none: queries that needed no call, and the rows set aside; lost: a batch that a restored backup lacked, what it had was computed again';
