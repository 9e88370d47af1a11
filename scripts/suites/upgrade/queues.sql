-- A queue of every kind, whose tables, indexes and triggers an upgrade has to keep.
select fetchq.queue_create(name) from unnest('{plain,dumped,dead,ordered,limited,notified}'::text[]) name;
select fetchq.queue_create('kept', '{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}, "dead_letter": "dead"}');
select fetchq.queue_configure('ordered', '{"ordered": true, "max_active": 5}');
select fetchq.queue_configure('limited', '{"rate": {"picks": 4, "per": "1 hour"}}');
select fetchq.queue_enable_notify('notified');
select fetchq.doc_push('dumped', 'kept');
