create function fetchq.doc_extend(queue text, subject text, duration interval, lease bigint default null, out next_iteration timestamptz, out stop boolean)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_extend_wrapper';
comment on function fetchq.doc_extend(text, text, interval, bigint) is 'Has a lease last for a duration from now; tells when it ends, and whether the worker should stop: with no end the document was cancelled';

create function fetchq.doc_cancel(queue text, subject text, out was_cancelled boolean, out status text)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_cancel_wrapper';
comment on function fetchq.doc_cancel(text, text) is 'Kills a document that is planned, pending or active; who holds it is told by doc_extend(), and its lease is lost. Gives the status that it had';
