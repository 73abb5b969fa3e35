-- What a window named, and how it was asked: a run may ask in two ways, and an answer may have to name only the best few.
alter table windows add column decode_mode varchar;
alter table windows add column num_listed integer;

update windows
set num_listed = len(docs) - num_missing, decode_mode = runs.decode_mode
from runs
where runs.run_id = windows.run_id;

comment on column windows.decode_mode is 'How it was asked: first_token, permutation, reasoning, select, yes_no, query_likelihood';
comment on column windows.num_listed is 'Candidates that the answer named, or gave a value to';
comment on column windows.num_missing is 'Candidates that the answer had to name and did not; they keep their order behind the others';
comment on column windows.id_mass is 'Probability of all identifiers, or spellings of the verdict, at the first token (one-token modes); below 0.5 the prompt does not fit the model';
comment on column runs.strategy is 'pointwise, single, sliding, tdpart, setwise, tourrank, jointrank, blitz, pairwise';
comment on column runs.decode_mode is 'How the strategy''s windows are asked: first_token, permutation, reasoning, select, yes_no, query_likelihood';
comment on column scores.score is 'Carries the order: strictly falls with rank as a 32-bit float, in the unit of score_kind; not comparable between queries unless that is p_yes';
comment on column scores.score_kind is 'Unit of score: reciprocal_rank (1 / rank), p_yes (probability of yes), query_likelihood (mean log-probability of a query token), points, win_rate, page_rank; first_stage_order where no model placed the document';
comment on column scores.model_score is 'The model''s own number: log-probability in the last window that showed it, log-odds against the pivot (tdpart), or the unit of score_kind; null where there is none';
