select pg_logical_emit_message(true, 'push', left('@payload@', 100));
