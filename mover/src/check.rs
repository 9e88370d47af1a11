//! What has to be true before a move begins. All problems are listed at once.

use fetchq_domain::names::QueueName;

use crate::failure::{Failure, Result};
use crate::names::{table_names, texts};
use crate::rest::Queue;
use crate::say::{count, list, say};
use crate::server::Server;
use crate::strangers;

const IDENTITY: &str = "select system_identifier || ' ' || (
        select oid::text from pg_database where datname = current_database())
    from pg_control_system()";

/// What tells a database from all others, also after a failover.
pub async fn identity_of(server: &Server) -> Result<String> {
    Ok(server.one(IDENTITY, &[]).await?.get(0))
}

const ROLE: &str =
    "select rolsuper, pg_is_in_recovery() from pg_roles where rolname = current_user";

const VERSIONS: &str = "select i.extension_version, i.library_version,
        to_regclass('fetchq.queue_places') is not null
    from fetchq.info() i";

const HAS_EXTENSION: &str = "select exists (select from pg_extension where extname = 'fetchq')";

// How many slots and walsenders are free.
const CAPACITY: &str = "select current_setting('wal_level'),
    current_setting('max_replication_slots')::bigint - (select count(*) from pg_replication_slots),
    current_setting('max_wal_senders')::bigint - (select count(*) from pg_stat_replication)";

const WORKERS: &str = "select current_setting('max_logical_replication_workers')::bigint
        - (select count(*) from pg_stat_subscription where pid is not null),
    coalesce(current_setting('max_active_replication_origins', true),
        current_setting('max_replication_slots'))::bigint
        - (select count(*) from pg_replication_origin)";

const QUEUES: &str = "select q.name::text, q.id::bigint from fetchq.queues q
    where q.name = any ($1::text[]) order by q.name";

const PLACES: &str = "select p.queue::text, p.place from fetchq.queue_places p
    where p.queue = any ($1::text[]) order by p.queue";

// What somebody has added to the tables of queues. It would not be on the new server.
const ADDED: &str = "with tables as (
        select c.oid, c.relname, c.relrowsecurity, c.relreplident, c.relpersistence,
            exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary) as has_key,
            exists (select from pg_inherits i where c.oid in (i.inhrelid, i.inhparent)) as inherits,
            c.relname like '%\\_\\_docs' as is_docs
        from pg_class c
        where c.relnamespace = 'fetchq_data'::regnamespace and c.relkind = 'r'
            and c.relname = any ($1::text[])
    )
    select s.relname::text || ': ' || s.what from (
        select t.relname, 'trigger ' || g.tgname as what from tables t
        join pg_trigger g on g.tgrelid = t.oid and not g.tgisinternal
        where g.tgname !~ '^fetchq_(ready|notify_insert|notify_update|order_[a-z]+|cap_[a-z]+)$'
        union all
        select t.relname, 'policy ' || p.polname from tables t join pg_policy p on p.polrelid = t.oid
        union all
        select t.relname, 'row level security' from tables t where t.relrowsecurity
        union all
        select t.relname, 'rule ' || r.rulename from tables t join pg_rewrite r on r.ev_class = t.oid
        union all
        select t.relname, 'constraint ' || k.conname from tables t
        join pg_constraint k on k.conrelid = t.oid and k.contype not in ('p', 'n')
        union all
        select t.relname, 'inheritance' from tables t where t.inherits
        union all
        select t.relname, 'unlogged' from tables t where t.relpersistence <> 'p'
        union all
        select t.relname, 'replica identity nothing' from tables t
        where t.relreplident = 'n' or (t.is_docs and t.relreplident = 'd' and not t.has_key)
    ) s order by 1";

// Queues that stay, and whose dead-letter queue would go.
const LEFT_BEHIND: &str = "select q.name::text || ' (' || q.dead_letter || ')' from fetchq.queues q
    where q.dead_letter = any ($1::text[]) and not q.name = any ($1::text[]) order by 1";

const DEAD_LETTERS: &str = "select distinct q.dead_letter::text from fetchq.queues q
    where q.name = any ($1::text[]) and q.dead_letter is not null
        and not q.dead_letter = any ($1::text[]) order by 1";

const SCHEDULES: &str =
    "select s.name from fetchq.schedules s where s.queue = any ($1::text[]) order by 1";

const TAKEN_SCHEDULES: &str =
    "select s.name || ' (of queue ' || s.queue || ')' from fetchq.schedules s
    where s.name = any ($1::text[]) order by 1";

// The roles that own tables of the queues, have grants on them, or have made schedules.
const ROLES: &str = "with tables as (
        select c.oid, c.relowner, c.relacl from pg_class c
        where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any ($1::text[])
    )
    select distinct pg_get_userbyid(s.role)::text from (
        select t.relowner as role from tables t
        union all
        select a.grantee from tables t cross join aclexplode(t.relacl) a
        union all
        select a.grantee from tables t join pg_attribute c on c.attrelid = t.oid
        cross join aclexplode(c.attacl) a
        union all
        select s.made_by::oid from fetchq.schedules s where s.queue = any ($2::text[])
    ) s where s.role <> 0 order by 1";

const MISSING_ROLES: &str = "select r from unnest($1::text[]) r
    where not exists (select from pg_roles where rolname = r) order by 1";

const TABLESPACES: &str =
    "select distinct c.relname::text || ' (' || s.spcname || ')' from pg_class c
    join pg_tablespace s on s.oid = c.reltablespace
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any ($1::text[]) order by 1";

const CLOCK: &str = "select extract(epoch from clock_timestamp())::float8";

/// By how much the clocks may differ before a line says so, in seconds.
const MAX_SKEW: f64 = 1.0;

/// A problem, and what to do about it.
struct Problem {
    what: String,
    hint: &'static str,
}

/// The problems that were found.
#[derive(Default)]
struct Problems(Vec<Problem>);

impl Problems {
    fn add(&mut self, what: String, hint: &'static str) {
        self.0.push(Problem { what, hint });
    }

    fn result(self) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let lines = self
            .0
            .iter()
            .map(|problem| format!("  {}\n    {}", problem.what, problem.hint));
        let lines: Vec<String> = lines.collect();
        Err(Failure::new(format!(
            "the queues cannot move:\n{}",
            lines.join("\n")
        )))
    }
}

/// Checks both servers. Returns the queues with their numbers in the registry of the old server.
pub async fn check(old: &Server, new: &Server, names: &[QueueName]) -> Result<Vec<Queue>> {
    let mut problems = Problems::default();
    check_server(old, &mut problems).await?;
    check_server(new, &mut problems).await?;
    // Without rights or extension nothing else can be read.
    problems.result()?;
    let mut problems = Problems::default();
    check_pair(old, new, &mut problems).await?;
    check_capacity(old, new, &mut problems).await?;
    let queues = find_queues(old, names, &mut problems).await?;
    check_new(new, names, &mut problems).await?;
    problems.result()?;
    let mut problems = Problems::default();
    check_tables(old, names, &mut problems).await?;
    check_strangers(old, new, names, &mut problems).await?;
    check_dead_letters(old, new, names, &mut problems).await?;
    check_schedules(old, new, names, &mut problems).await?;
    check_roles(old, new, names, &mut problems).await?;
    problems.result()?;
    warn(old, new, names).await?;
    Ok(queues)
}

async fn check_server(server: &Server, problems: &mut Problems) -> Result<()> {
    let row = server.one(ROLE, &[]).await?;
    if !row.get::<_, bool>(0) {
        problems.add(
            format!("{}: the role that connects is no superuser", server.name()),
            "Connect as a superuser: the tables of the catalog are read and written.",
        );
    }
    if row.get(1) {
        problems.add(
            format!("{} is a standby", server.name()),
            "Connect to the primary.",
        );
    }
    if !server.one(HAS_EXTENSION, &[]).await?.get::<_, bool>(0) {
        problems.add(
            format!("{}: the database has no extension fetchq", server.name()),
            "Run: create extension fetchq",
        );
    }
    Ok(())
}

async fn check_pair(old: &Server, new: &Server, problems: &mut Problems) -> Result<()> {
    if identity_of(old).await? == identity_of(new).await? {
        problems.add(
            "--from and --to are the same database".to_owned(),
            "Give two databases.",
        );
    }
    let mut versions = Vec::new();
    for server in [old, new] {
        let row = server.one(VERSIONS, &[]).await?;
        let (extension, library): (Option<String>, Option<String>) = (row.get(0), row.get(1));
        if extension != library || !row.get::<_, bool>(2) {
            problems.add(
                format!("{}: the extension does not fit its library", server.name()),
                "Run: alter extension fetchq update",
            );
        }
        versions.push(extension.unwrap_or_default());
    }
    if versions[0] != versions[1] {
        problems.add(
            format!(
                "fetchq is {} on the old server and {} on the new one",
                versions[0], versions[1]
            ),
            "Upgrade the older one first: alter extension fetchq update",
        );
    }
    Ok(())
}

async fn check_capacity(old: &Server, new: &Server, problems: &mut Problems) -> Result<()> {
    let row = old.one(CAPACITY, &[]).await?;
    let level: String = row.get(0);
    if level != "logical" {
        problems.add(
            format!("{}: wal_level is {level}", old.name()),
            "Set wal_level = logical there, and restart it.",
        );
    }
    // One for the subscription, and one for a table that is being copied.
    for (position, setting) in [(1, "max_replication_slots"), (2, "max_wal_senders")] {
        if row.get::<_, i64>(position) < 2 {
            problems.add(
                format!("{}: the move needs 2 more of {setting}", old.name()),
                "Raise the setting and restart the server, or drop what is not used.",
            );
        }
    }
    let row = new.one(WORKERS, &[]).await?;
    for (position, setting) in [
        (0, "max_logical_replication_workers"),
        (
            1,
            "max_replication_slots (from PostgreSQL 18 on max_active_replication_origins)",
        ),
    ] {
        if row.get::<_, i64>(position) < 2 {
            problems.add(
                format!("{}: the move needs 2 more of {setting}", new.name()),
                "Raise the setting and restart the server, or drop what is not used.",
            );
        }
    }
    Ok(())
}

/// Reads the queues of the old server.
async fn find_queues(
    old: &Server,
    names: &[QueueName],
    problems: &mut Problems,
) -> Result<Vec<Queue>> {
    let queues = read_queues(old, names).await?;
    let places = old.rows(PLACES, &[&texts(names)]).await?;
    for name in names {
        if queues.iter().any(|queue| queue.name == *name) {
            continue;
        }
        let place = places
            .iter()
            .find(|row| row.get::<_, &str>(0) == name.as_str())
            .map(|row| row.get::<_, String>(1));
        let name = name.as_str();
        match place {
            Some(place) => problems.add(
                format!(
                    "queue \"{name}\" does not live on {}, but on {place}",
                    old.name()
                ),
                "Give that server as --from.",
            ),
            None => problems.add(
                format!("{} has no queue \"{name}\"", old.name()),
                "select * from fetchq.queue_status() lists the queues.",
            ),
        }
    }
    Ok(queues)
}

/// The queues with their numbers in the registry of a server, in the order of their names.
pub async fn read_queues(server: &Server, names: &[QueueName]) -> Result<Vec<Queue>> {
    let rows = server.rows(QUEUES, &[&texts(names)]).await?;
    let mut queues: Vec<Queue> = Vec::new();
    for row in &rows {
        queues.push(Queue {
            name: QueueName::parse(row.get(0))?,
            id: row.get(1),
        });
    }
    queues.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(queues)
}

const STRAY: &str = "select c.relname::text from pg_class c
    where c.relnamespace = 'fetchq_data'::regnamespace and c.relname = any ($1::text[]) order by 1";

async fn check_new(new: &Server, names: &[QueueName], problems: &mut Problems) -> Result<()> {
    let taken = read_queues(new, names).await?;
    for queue in &taken {
        problems.add(
            format!(
                "{} has a queue \"{}\" already",
                new.name(),
                queue.name.as_str()
            ),
            "Queues are not merged: drop it there, or give another server.",
        );
    }
    let stray = new.texts(STRAY, &[&table_names(names)]).await?;
    if taken.is_empty() && !stray.is_empty() {
        problems.add(
            format!(
                "{}: the schema fetchq_data has tables without a queue: {}",
                new.name(),
                list(stray.iter().map(String::as_str))
            ),
            "Look at them, and drop them if they are not needed.",
        );
    }
    Ok(())
}

async fn check_tables(old: &Server, names: &[QueueName], problems: &mut Problems) -> Result<()> {
    for added in old.texts(ADDED, &[&table_names(names)]).await? {
        problems.add(
            format!("{}: {added}", old.name()),
            "Only what fetchq makes is moved: remove it before, and add it on the new server.",
        );
    }
    Ok(())
}

async fn check_strangers(
    old: &Server,
    new: &Server,
    names: &[QueueName],
    problems: &mut Problems,
) -> Result<()> {
    for (server, found) in [
        (old, strangers::of_tables(old, names).await?),
        (new, strangers::of_names(old, new, names).await?),
    ] {
        for found in found {
            problems.add(
                format!("{}: {found}, which is no superuser", server.name()),
                strangers::HINT,
            );
        }
    }
    Ok(())
}

/// Queues of the old server that would lose their dead-letter queue. It is asked again while the queues
/// are locked.
pub async fn left_behind(old: &Server, names: &[QueueName]) -> Result<Vec<String>> {
    old.texts(LEFT_BEHIND, &[&texts(names)]).await
}

async fn check_dead_letters(
    old: &Server,
    new: &Server,
    names: &[QueueName],
    problems: &mut Problems,
) -> Result<()> {
    for source in left_behind(old, names).await? {
        problems.add(
            format!("a queue that stays would lose its dead-letter queue: {source}"),
            "Move it too (--queue), or give it another dead-letter queue.",
        );
    }
    let targets = old.texts(DEAD_LETTERS, &[&texts(names)]).await?;
    let targets: Vec<QueueName> = targets
        .iter()
        .map(|name| Ok(QueueName::parse(name)?))
        .collect::<Result<_>>()?;
    let there = read_queues(new, &targets).await?;
    for target in targets
        .iter()
        .filter(|target| !there.iter().any(|queue| queue.name == **target))
    {
        problems.add(
            format!(
                "{} has no queue \"{}\", which is the dead-letter queue of one that moves",
                new.name(),
                target.as_str()
            ),
            "Move it too (--queue), or create it there.",
        );
    }
    Ok(())
}

async fn check_schedules(
    old: &Server,
    new: &Server,
    names: &[QueueName],
    problems: &mut Problems,
) -> Result<()> {
    let schedules = old.texts(SCHEDULES, &[&texts(names)]).await?;
    for taken in new.texts(TAKEN_SCHEDULES, &[&schedules]).await? {
        problems.add(
            format!("{} has a schedule of the same name: {taken}", new.name()),
            "Drop one of the two, or create it under another name.",
        );
    }
    Ok(())
}

async fn check_roles(
    old: &Server,
    new: &Server,
    names: &[QueueName],
    problems: &mut Problems,
) -> Result<()> {
    let roles = old
        .texts(ROLES, &[&table_names(names), &texts(names)])
        .await?;
    let missing = new.texts(MISSING_ROLES, &[&roles]).await?;
    if !missing.is_empty() {
        problems.add(
            format!(
                "{} lacks {}: {}",
                new.name(),
                count(missing.len() as i64, "role"),
                list(missing.iter().map(String::as_str))
            ),
            "Create them there: pg_dumpall --roles-only on the old server shows how.",
        );
    }
    Ok(())
}

/// Says what will differ, and is no reason to stop.
async fn warn(old: &Server, new: &Server, names: &[QueueName]) -> Result<()> {
    let skew =
        old.one(CLOCK, &[]).await?.get::<_, f64>(0) - new.one(CLOCK, &[]).await?.get::<_, f64>(0);
    if skew.abs() > MAX_SKEW {
        say(&format!(
            "warning: the clock of the old server is {skew:.1} s ahead of that of the new one: \
             leases and planned documents become due by the clock of the new one"
        ));
    }
    for table in old.texts(TABLESPACES, &[&table_names(names)]).await? {
        say(&format!(
            "warning: a table has a tablespace, and gets the default one on the new server: {table}"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_listed_with_what_to_do() {
        let mut problems = Problems::default();
        problems.add("one".to_owned(), "Do this.");
        problems.add("two".to_owned(), "Do that.");
        let message = problems.result().unwrap_err().to_string();
        for part in ["one", "Do this.", "two", "Do that."] {
            assert!(message.contains(part), "{message}");
        }
        assert!(Problems::default().result().is_ok());
    }
}
