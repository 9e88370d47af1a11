-- Why a document does not run. Not hot.

create type fetchq.doc_reason as (
    reason text,
    since timestamptz,
    until timestamptz,
    detail text,
    hint text
);
comment on type fetchq.doc_reason is 'A row of fetchq.doc_explain()';

create function fetchq.doc_explain(queue text, subject text)
returns setof fetchq.doc_reason
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
set intervalstyle = postgres
as 'MODULE_PATHNAME', 'doc_explain_wrapper';
comment on function fetchq.doc_explain(text, text) is
    'Explains why a document does not run: a row for each reason that currently applies, with what to do about it';
