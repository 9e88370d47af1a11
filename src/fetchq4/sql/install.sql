-- What old clients call to install, upgrade and remove fetchq. Not hot.

create function fetchq.init(out was_initialized boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'init_wrapper';
comment on function fetchq.init() is
    'For old clients: returns true, because nothing remains to be done once the extension exists';

create function fetchq.upgrade__310__320(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__310__320() is
    'For old clients: does nothing';

create function fetchq.upgrade__320__330(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__320__330() is
    'For old clients: does nothing';

create function fetchq.upgrade__330__400(out success boolean)
language c stable parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'upgrade_nothing_wrapper';
comment on function fetchq.upgrade__330__400() is
    'For old clients: does nothing';

create function fetchq.destroy_with_terrible_consequences(out was_destroyed boolean)
language c volatile parallel unsafe
set search_path = pg_catalog, pg_temp
as 'MODULE_PATHNAME', 'destroy_wrapper';
comment on function fetchq.destroy_with_terrible_consequences() is
    'Drops the extension with every queue; only for superusers and the owner';
