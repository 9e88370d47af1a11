//! What an owner can attach to the tables of a queue so that it runs within maintenance.

/// What a queue of mallory is attacked with: a name, the statements, and the runs that must be
/// recorded, so that no attack is tested that did not run.
pub struct Attachment {
    pub name: &'static str,
    pub sql: &'static str,
    pub runs: &'static [&'static str],
}

/// All ways to attach code to the tables of a queue. `{q}` is the name of the queue.
pub const ATTACHMENTS: &[Attachment] = &[
    Attachment {
        name: "rows",
        sql: "
            create trigger a before insert or update or delete on fetchq_data.{q}__docs
                for each row execute function lair.on_change('row');
            create trigger z after insert or update or delete on fetchq_data.{q}__docs
                for each row execute function lair.on_change('row');
            create trigger a before insert or update or delete on fetchq_data.{q}__logs
                for each row execute function lair.on_change('row');
            create trigger a before insert or update or delete on fetchq_data.{q}__metrics
                for each row execute function lair.on_change('row');
            create trigger a before insert or update or delete on fetchq_data.{q}__history
                for each row execute function lair.on_change('row');
            create trigger a before insert or update or delete on fetchq_data.{q}_dead__docs
                for each row execute function lair.on_change('row')",
        runs: &[
            "row before update rows__docs",
            "row after update rows__docs",
            "row after insert rows__docs",
            "row before delete rows__docs",
            "row before delete rows__logs",
            "row before insert rows__metrics",
            "row before delete rows__metrics",
            "row before insert rows__history",
            "row before delete rows__history",
            "row before insert rows_dead__docs",
            "row before delete rows_dead__docs",
        ],
    },
    Attachment {
        name: "statements",
        sql: "
            create trigger a before insert or update or delete on fetchq_data.{q}__docs
                for each statement execute function lair.on_change('statement');
            create trigger z after insert or update or delete on fetchq_data.{q}__docs
                for each statement execute function lair.on_change('statement');
            create trigger a before insert or update or delete on fetchq_data.{q}__logs
                for each statement execute function lair.on_change('statement');
            create trigger a before insert or update or delete on fetchq_data.{q}__metrics
                for each statement execute function lair.on_change('statement');
            create trigger a before insert or update or delete on fetchq_data.{q}__history
                for each statement execute function lair.on_change('statement')",
        runs: &[
            "statement before update statements__docs",
            "statement after insert statements__docs",
            "statement before delete statements__logs",
            "statement before insert statements__metrics",
            "statement before delete statements__history",
        ],
    },
    Attachment {
        name: "deferred",
        sql: "
            create constraint trigger z after insert or update or delete on fetchq_data.{q}__docs
                deferrable initially deferred
                for each row execute function lair.on_change('deferred');
            create constraint trigger z after delete on fetchq_data.{q}__logs
                deferrable initially deferred
                for each row execute function lair.on_change('deferred');
            create constraint trigger z after insert on fetchq_data.{q}__metrics
                deferrable initially deferred
                for each row execute function lair.on_change('deferred');
            create constraint trigger z after insert or delete on fetchq_data.{q}__history
                deferrable initially deferred
                for each row execute function lair.on_change('deferred')",
        runs: &[
            "deferred after update deferred__docs",
            "deferred after insert deferred__docs",
            "deferred after delete deferred__logs",
            "deferred after insert deferred__metrics",
            "deferred after insert deferred__history",
            "deferred after delete deferred__history",
        ],
    },
    // A trigger defers constraints again, and so leaves code for the commit.
    Attachment {
        name: "deferrer",
        sql: "
            create table lair.later (n int);
            create constraint trigger z after insert on lair.later
                deferrable initially deferred
                for each row execute function lair.on_change('deferred again');
            create function lair.defer() returns trigger language plpgsql as $$
            begin
                perform lair.attack('deferrer');
                set constraints all deferred;
                insert into lair.later values (1);
                return new;
            end $$;
            create trigger z after update on fetchq_data.{q}__docs
                for each row execute function lair.defer()",
        // The server refuses it, so the record is rolled back with the rest.
        runs: &[],
    },
    Attachment {
        name: "indexes",
        sql: "
            create index on fetchq_data.{q}__docs (lair.calculate('index expression', status));
            create index on fetchq_data.{q}__docs (version)
                where lair.calculate('index predicate', status) > -5;
            create index on fetchq_data.{q}__docs (version)
                where lair.calculate('planned predicate', true);
            create index on fetchq_data.{q}__logs (lair.calculate('index of logs', subject::text));
            create index on fetchq_data.{q}__metrics (lair.calculate('index of metrics', value));
            create index on fetchq_data.{q}__history (lair.calculate('index of history', outcome));
            truncate lair.seen",
        runs: &[
            "index expression",
            "index predicate",
            "planned predicate",
            "index of metrics",
            "index of history",
        ],
    },
    Attachment {
        name: "checks",
        sql: "
            create domain lair.checked as int check (lair.attack('domain'));
            alter table fetchq_data.{q}__docs
                add check (lair.attack('check')),
                add column a lair.checked,
                add column b int default lair.calculate('default', 1),
                add column c int generated always as (lair.calculate('generated', status)) stored;
            alter table fetchq_data.{q}__docs alter column a set default 1;
            alter table fetchq_data.{q}__metrics
                add check (lair.attack('check of metrics')),
                add column a lair.checked default 1,
                add column b bool default lair.attack('default of metrics'),
                add column c text generated always as (lair.calculate('generated of metrics', metric::text)) stored;
            alter table fetchq_data.{q}__history
                add check (lair.attack('check of history')),
                add column b bool default lair.attack('default of history');
            truncate lair.seen",
        runs: &[
            "check",
            "domain",
            "default",
            "generated",
            "check of metrics",
            "default of metrics",
            "generated of metrics",
            "check of history",
            "default of history",
        ],
    },
    Attachment {
        name: "policies",
        sql: "
            alter table fetchq_data.{q}__docs enable row level security, force row level security;
            create policy p on fetchq_data.{q}__docs
                using (lair.attack('policy')) with check (lair.attack('policy check'));
            alter table fetchq_data.{q}__logs enable row level security, force row level security;
            create policy p on fetchq_data.{q}__logs using (lair.attack('policy of logs'));
            alter table fetchq_data.{q}__metrics enable row level security, force row level security;
            create policy p on fetchq_data.{q}__metrics
                using (true) with check (lair.attack('policy of metrics'));
            alter table fetchq_data.{q}__history enable row level security, force row level security;
            create policy p on fetchq_data.{q}__history using (lair.attack('policy of history'))",
        runs: &[
            "policy",
            "policy check",
            "policy of logs",
            "policy of metrics",
            "policy of history",
        ],
    },
    Attachment {
        name: "rules",
        sql: "
            create rule r as on delete to fetchq_data.{q}__logs
                do also select lair.attack('rule of logs');
            create rule r as on insert to fetchq_data.{q}__metrics
                do also select lair.attack('rule of metrics');
            create rule r as on delete to fetchq_data.{q}__history
                do also select lair.attack('rule of history')",
        // A statement with a rule that selects is refused by the library or runs it; both is fine.
        runs: &[],
    },
    Attachment {
        name: "operators",
        sql: "
            create function public.equals(text, text) returns boolean language plpgsql as $$
            begin
                return lair.attack('operator');
            end $$;
            create operator public.= (leftarg = text, rightarg = text, function = public.equals);
            create statistics lair.statistics (dependencies) on version, status from fetchq_data.{q}__docs;
            alter role mallory set search_path = public, pg_catalog",
        runs: &[],
    },
];
