-- Cancelling a document.
-- Hot: no search_path is set, see bootstrap.sql.

create function fetchq.doc_cancel(
    queue text, subject text,
    out was_cancelled boolean, out status text
)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_cancel_wrapper';
comment on function fetchq.doc_cancel(text, text) is
    'Kills a document that is planned, pending or active, and returns its previous status; the worker of an active document loses its lease, and doc_extend() reports that';
