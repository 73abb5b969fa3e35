-- Everything set aside, and the queries that are left without a candidate.
select source, query_id, doc_id, reason, detail
from quarantine
union all
select 'queries', query_id, null, 'no candidates', null
from staged_queries
where status = 'no_candidates'
order by source, query_id, doc_id;
