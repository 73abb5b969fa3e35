-- Makes room for a repeated evaluation: the same measures, and all that was measured against other judgments.
delete from metrics
where
    run_id = $run_id
    and (
        measure in (select measure from incoming)
        or qrels_digest not in (select qrels_digest from incoming)
    );
