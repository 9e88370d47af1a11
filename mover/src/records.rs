//! The records of moves: the schema `fetchq_move` on both servers, and the lock of a move.
//!
//! The record of the old server becomes `switched` in the transaction that drops the queues. So it
//! alone decides whether a move is committed. That of the new server is `copying`, `ready` when it has
//! all that it needs to finish, and `done`.
use fetchq_domain::names::QueueName;
use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::names::texts;
use crate::say::list;
use crate::server::{Server, Side};

const CREATE: &str = "create schema if not exists fetchq_move;
    create table if not exists fetchq_move.moves (
        id text not null,
        side text not null,
        queues text[] not null,
        state text not null,
        detail jsonb not null default '{}',
        since timestamptz not null default now(),
        primary key (id, side)
    );
    create table if not exists fetchq_move.rows (
        move text not null,
        queue text not null,
        source text not null,
        content jsonb not null
    );
    create index if not exists rows_idx on fetchq_move.rows (move, queue, source)";

// Two moves that begin at the same time would both make the schema.
const LOCK_SCHEMA: &str = "select pg_advisory_xact_lock(1718712694, 0)";

// What is in these tables is run by a superuser, and to read a view runs its functions. So nobody else
// may own them, and they have to be tables.
const FOREIGN: &str = "select r.rolname::text, r.rolsuper from pg_namespace n
    left join pg_class c on c.relnamespace = n.oid
    join pg_roles r on r.oid in (n.nspowner, c.relowner)
    where n.nspname = 'fetchq_move'
        and (not r.rolsuper or c.relkind not in ('r', 'i') or c.relhasrules)
    limit 1";

const EXISTS: &str = "select to_regclass('fetchq_move.moves') is not null
    and to_regclass('fetchq_move.rows') is not null";

const N_ROWS: &str = "select count(*) from fetchq_move.rows where move = $1";

const FIND: &str = "select m.id, m.queues, m.state, m.detail from fetchq_move.moves m
    where m.side = $1 and m.queues && $2::text[]
    order by m.since";

const FIND_OTHERS: &str = "select m.id, m.queues, m.state, m.detail from fetchq_move.moves m
    where m.side <> $1 and m.queues && $2::text[]
    order by m.since";

const ADD: &str =
    "insert into fetchq_move.moves (id, side, queues, state) values ($1, $2, $3::text[], $4)";

const SET: &str = "update fetchq_move.moves set state = $3, detail = detail || $4::text::jsonb
    where id = $1 and side = $2";

const REMOVE_ROWS: &str = "delete from fetchq_move.rows where move = $1";

const REMOVE: &str = "delete from fetchq_move.moves where id = $1 and side = $2";

const IS_UNUSED: &str = "select not exists (select from fetchq_move.moves)";

const DROP: &str = "drop schema fetchq_move cascade";

const NEW_ID: &str = "select left(replace(gen_random_uuid()::text, '-', ''), 12)";

/// The record of a move on one server.
#[derive(Debug, Clone)]
pub struct Record {
    pub id: String,
    pub queues: Vec<String>,
    pub state: String,
    pub detail: Value,
}

impl Record {
    /// A number of the detail.
    pub fn number(&self, key: &str) -> Option<i64> {
        self.detail.get(key).and_then(Value::as_i64)
    }
}

/// The new server has begun to copy.
pub const COPYING: &str = "copying";
/// The new server has all that it needs to finish.
pub const READY: &str = "ready";
/// The queues are live on the new server.
pub const DONE: &str = "done";
/// The old server takes part in a move.
pub const STARTED: &str = "started";
/// The old server has given the queues away.
pub const SWITCHED: &str = "switched";

/// Makes an id for a move. The names of its objects have it.
pub async fn new_id(server: &Server) -> Result<String> {
    Ok(server.one(NEW_ID, &[]).await?.get(0))
}

/// Makes the schema of the records where there is none.
pub async fn prepare(server: &Server) -> Result<()> {
    server.run("begin").await?;
    server.rows(LOCK_SCHEMA, &[]).await?;
    server.run(CREATE).await?;
    match require_ours(server).await {
        Ok(()) => server.run("commit").await,
        Err(failure) => {
            server.roll_back().await;
            Err(failure)
        }
    }
}

/// Refuses records that somebody else can have written.
async fn require_ours(server: &Server) -> Result<()> {
    let Some(row) = server.first(FOREIGN, &[]).await? else {
        return Ok(());
    };
    let (owner, is_superuser): (String, bool) = (row.get(0), row.get(1));
    let what = match is_superuser {
        true => "has something that this command does not make".to_owned(),
        false => format!("or a table in it, belongs to {owner}, who is no superuser"),
    };
    Err(
        Failure::new(format!("{}: the schema fetchq_move, {what}", server.name()))
            .with_hint("Drop or rename it: the command makes its own."),
    )
}

/// Whether a server has records. Fails if somebody else can have written them: nothing of them is read
/// before.
async fn are_there(server: &Server) -> Result<bool> {
    require_ours(server).await?;
    Ok(server.one(EXISTS, &[]).await?.get(0))
}

/// How many rows were copied for the end of a move.
pub async fn count_rows(server: &Server, id: &str) -> Result<i64> {
    match are_there(server).await? {
        true => Ok(server.one(N_ROWS, &[&id]).await?.get(0)),
        false => Ok(0),
    }
}

/// Finds the unfinished moves of queues.
pub async fn find(server: &Server, queues: &[QueueName]) -> Result<Vec<Record>> {
    read(server, FIND, queues).await
}

/// Finds the unfinished moves of queues in which this server has the other part: that of the new server
/// on the old one, and the other way round.
pub async fn find_others(server: &Server, queues: &[QueueName]) -> Result<Vec<Record>> {
    read(server, FIND_OTHERS, queues).await
}

async fn read(server: &Server, sql: &str, queues: &[QueueName]) -> Result<Vec<Record>> {
    if !are_there(server).await? {
        return Ok(Vec::new());
    }
    let code = server.side.code();
    let rows = server.rows(sql, &[&code, &texts(queues)]).await?;
    let record = |row: &tokio_postgres::Row| Record {
        id: row.get(0),
        queues: row.get(1),
        state: row.get(2),
        detail: row.get(3),
    };
    let found: Vec<Record> = rows.iter().map(record).collect();
    match found.iter().find(|record| !is_id(&record.id)) {
        None => Ok(found),
        Some(record) => Err(Failure::new(format!(
            "{}: fetchq_move.moves has a record with the id {:?}, which this command has not made",
            server.name(),
            record.id
        ))),
    }
}

/// Whether a text is an id as `new_id` makes them. Names of objects have it, without quotation.
fn is_id(text: &str) -> bool {
    text.len() == 12
        && text
            .bytes()
            .all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
}

/// Adds the record of a move.
pub async fn add(server: &Server, id: &str, queues: &[QueueName], state: &str) -> Result<()> {
    let code = server.side.code();
    server
        .execute(ADD, &[&id, &code, &texts(queues), &state])
        .await?;
    Ok(())
}

/// Changes the state of a move, and adds to its detail.
pub async fn set(server: &Server, id: &str, state: &str, detail: &Value) -> Result<()> {
    let (code, detail) = (server.side.code(), detail.to_string());
    match server.execute(SET, &[&id, &code, &state, &detail]).await? {
        1 => Ok(()),
        _ => Err(Failure::new(format!(
            "{}: the record of the move is gone from fetchq_move.moves",
            server.name()
        ))),
    }
}

/// Removes what was copied for the end of a move.
pub async fn remove_rows(server: &Server, id: &str) -> Result<()> {
    server.execute(REMOVE_ROWS, &[&id]).await?;
    Ok(())
}

/// Removes the record of a move, and the schema with the last one.
pub async fn remove(server: &Server, id: &str) -> Result<()> {
    if !are_there(server).await? {
        return Ok(());
    }
    server.run("begin").await?;
    let removed = remove_in_transaction(server, id).await;
    match removed {
        Ok(()) => server.run("commit").await,
        Err(failure) => {
            server.roll_back().await;
            Err(failure)
        }
    }
}

async fn remove_in_transaction(server: &Server, id: &str) -> Result<()> {
    server.rows(LOCK_SCHEMA, &[]).await?;
    remove_rows(server, id).await?;
    server.execute(REMOVE, &[&id, &server.side.code()]).await?;
    if server.one(IS_UNUSED, &[]).await?.get(0) {
        server.run(DROP).await?;
    }
    Ok(())
}

// The first number is that of all locks of this command. The lock belongs to the session.
const TRY_LOCK: &str = "select pg_try_advisory_lock(1718712694, hashtext($2::text || $1::text))";

const HOLDER: &str = "select l.pid from pg_locks l
    where l.locktype = 'advisory' and l.classid = 1718712694 and l.granted
        and l.objid::bigint = (hashtext($2::text || $1::text)::bigint & 4294967295)
        and l.database = (select oid from pg_database where datname = current_database())
    limit 1";

/// How often a lock is tried, every half second. A session whose client was killed ends when it has
/// done what it does.
const TRIES: u32 = 60;

/// The sessions of a run on one server. Each of them has a lock of its own.
#[derive(Debug, Clone, Copy)]
pub enum Session {
    /// The one that switches.
    Main,
    /// The one that looks things up meanwhile, and makes publications and slot.
    Watch,
}

/// Locks the queues against other runs of this command, until the session ends.
///
/// So no earlier run has a transaction that is not decided.
pub async fn lock(server: &Server, session: Session, queues: &[QueueName]) -> Result<()> {
    let kind = match session {
        Session::Main => "move ",
        Session::Watch => "watch ",
    };
    for queue in queues {
        let mut tries = 0;
        while !server
            .one(TRY_LOCK, &[&queue.as_str(), &kind])
            .await?
            .get::<_, bool>(0)
        {
            tries += 1;
            if tries >= TRIES {
                let holder = server.first(HOLDER, &[&queue.as_str(), &kind]).await?;
                let holder = holder.map_or(0, |row| row.get::<_, i32>(0));
                return Err(Failure::new(format!(
                    "{}: another fetchq move works on queue \"{}\": server process {holder}",
                    server.name(),
                    queue.as_str()
                ))
                .with_hint(
                    "Wait for it, or end that server process with pg_terminate_backend().",
                ));
            }
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        }
    }
    Ok(())
}

const UNLOCK: &str = "select pg_advisory_unlock_all()::text";

/// Gives up the locks of a session. One whose connection is lost has none.
pub async fn unlock(server: &Server) {
    let _ = server.run(UNLOCK).await;
}

/// Refuses a run whose queues are not those of the move that it is to finish.
pub fn require_same(record: &Record, queues: &[QueueName]) -> Result<()> {
    if record.queues == texts(queues) {
        return Ok(());
    }
    let names = list(record.queues.iter().map(String::as_str));
    let options: Vec<String> = record
        .queues
        .iter()
        .map(|name| format!("--queue {name}"))
        .collect();
    Err(
        Failure::new(format!("an unfinished move has other queues: {names}"))
            .with_hint(format!("Run it with {}.", options.join(" "))),
    )
}

/// The state of the record of a move; None when there is none.
pub async fn state(server: &Server, id: &str) -> Result<Option<String>> {
    const STATE: &str = "select state from fetchq_move.moves where id = $1 and side = $2";
    if !are_there(server).await? {
        return Ok(None);
    }
    let row = server.first(STATE, &[&id, &server.side.code()]).await?;
    Ok(row.map(|row| row.get(0)))
}

/// Whether the record is of the side that it was read on, for messages.
pub fn describe(side: Side, record: &Record) -> String {
    let names = list(record.queues.iter().map(String::as_str));
    format!("{}: a move of {names} is {}", side.name(), record.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_twelve_hexadecimal_digits() {
        assert!(is_id("0123456789ab"));
        for text in [
            "",
            "0123456789a",
            "0123456789AB",
            "a; drop role",
            "0123456789abc",
        ] {
            assert!(!is_id(text), "{text}");
        }
    }
}
