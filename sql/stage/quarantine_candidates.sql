-- Sets aside candidate rows without id, query or document, and those of a query that was set aside.
-- Rows of queries beyond limit_queries are not part of the run: neither ranked nor set aside.
insert into quarantine by name
select
    'candidates' as source,
    candidates.query_id,
    candidates.doc_id,
    case
        when candidates.query_id is null then 'null query_id'
        when candidates.doc_id is null then 'null doc_id'
        when known.query_id is null then 'query not found'
        when queries.reason is not null then queries.reason
        else 'document not found'
    end as reason,
    case
        when queries.reason = 'query too long'
            then queries.num_tokens || ' tokens, max_query_tokens = ' || $max_query_tokens::integer
    end as detail
from candidate_rows as candidates
left join (select distinct query_id from query_rows) as known using (query_id)
left join queries using (query_id)
left join named_documents using (doc_key)
where
    candidates.query_id is null
    or candidates.doc_id is null
    or known.query_id is null
    or queries.reason is not null
    or (queries.query_id is not null and named_documents.doc_key is null);
