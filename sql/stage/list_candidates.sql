-- The staged candidates, query by query, best first. doc_index | first_stage_score (NaN: none)
select documents.doc_index, coalesce(ordered.given_score, 'nan'::double) as first_stage_score
from ordered
join documents using (doc_order)
anti join bad_documents using (doc_order)
order by ordered.query_index, ordered.place;
