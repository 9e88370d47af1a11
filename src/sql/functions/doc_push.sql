create function fetchq.doc_push(queue text, subject text, payload jsonb default '{}', next_iteration timestamptz default pg_catalog.now(), out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_wrapper';
comment on function fetchq.doc_push(text, text, jsonb, timestamptz) is 'Plans a document with a unique subject; 0 when the subject exists';

create function fetchq.doc_push(queue text, subject text, version int, priority int, next_iteration timestamptz, payload jsonb, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_full_wrapper';
comment on function fetchq.doc_push(text, text, int, int, timestamptz, jsonb) is 'Plans a document with a unique subject; 0 when the subject exists';

create function fetchq.doc_push(queue text, version int, next_iteration timestamptz, documents text, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_list_wrapper';
comment on function fetchq.doc_push(text, int, timestamptz, text) is 'Plans a list of documents, written as (''subject'', priority, ''json'', {DATA}), ...; says how many were new';

create function fetchq.doc_push(queue text, subject text, payload text, next_iteration text, out queued_docs int)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_push_untyped_wrapper';
comment on function fetchq.doc_push(text, text, text, text) is 'The four-argument forms, for arguments without a type: a document, or a list when the last one starts with a parenthesis';

create function fetchq.doc_append(queue text, payload jsonb, version int default 0, priority int default 0, out subject varchar)
language c volatile parallel unsafe
as 'MODULE_PATHNAME', 'doc_append_wrapper';
comment on function fetchq.doc_append(text, jsonb, int, int) is 'Adds a document to be processed now, first in, first out; gives the subject made for it';
