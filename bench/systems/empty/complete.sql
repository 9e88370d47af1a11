select pg_logical_emit_message(true, :subject, repeat('x', 100));
