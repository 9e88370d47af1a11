//! The documents, described once. The tables of documents and histories, the checks of them, and the
//! statements that copy whole documents are made from this list.

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    Int,
    Bigint,
    Text,
    /// A `varchar`, with a length or without one.
    Varchar(Option<i32>),
    Timestamptz,
    Interval,
    Jsonb,
}

impl Type {
    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Int => "int".to_owned(),
            Self::Bigint => "bigint".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Varchar(None) => "varchar".to_owned(),
            Self::Varchar(Some(length)) => format!("varchar({length})"),
            Self::Timestamptz => "timestamptz".to_owned(),
            Self::Interval => "interval".to_owned(),
            Self::Jsonb => "jsonb".to_owned(),
        }
    }

    /// Its name in a statement. Types that are part of the grammar need no schema.
    pub fn sql(self) -> String {
        match self {
            Self::Text | Self::Timestamptz | Self::Interval | Self::Jsonb => {
                format!("pg_catalog.{}", self.name())
            }
            _ => self.name(),
        }
    }

    /// Its length as PostgreSQL stores it, the `atttypmod` of a column.
    pub fn modifier(self) -> i32 {
        match self {
            Self::Varchar(Some(length)) => length + 4,
            _ => -1,
        }
    }
}

/// What the history has of a column of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InHistory {
    No,
    /// The value that the document had.
    AsItIs,
    /// The value that the statement names which settles the document.
    AsSettled,
}

/// A column of a table of a queue.
#[derive(Debug, Clone, Copy)]
pub struct ColumnDef {
    pub name: &'static str,
    pub type_: Type,
    pub not_null: bool,
    /// Its default in SQL.
    pub default: Option<&'static str>,
    /// What its definition has besides, such as a collation.
    pub also: &'static str,
    pub in_history: InHistory,
    /// A producer may say what is in it. A document that arrives as if it were put has the default of
    /// every other column.
    pub is_put: bool,
}

impl ColumnDef {
    /// A column that may be NULL.
    pub const fn new(name: &'static str, type_: Type) -> Self {
        Self {
            name,
            type_,
            not_null: false,
            default: None,
            also: "",
            in_history: InHistory::No,
            is_put: false,
        }
    }

    /// It may not be NULL.
    pub const fn not_null(mut self) -> Self {
        self.not_null = true;
        self
    }

    /// Its default in SQL.
    pub const fn default(mut self, sql: &'static str) -> Self {
        self.default = Some(sql);
        self
    }

    /// What its definition has besides.
    pub const fn also(mut self, sql: &'static str) -> Self {
        self.also = sql;
        self
    }

    /// The history keeps the value that the document had.
    pub const fn kept(mut self) -> Self {
        self.in_history = InHistory::AsItIs;
        self
    }

    /// The history keeps the value that the statement names which settles the document.
    pub const fn settled(mut self) -> Self {
        self.in_history = InHistory::AsSettled;
        self
    }

    /// A producer may say what is in it.
    pub const fn put(mut self) -> Self {
        self.is_put = true;
        self
    }

    fn sql(&self) -> String {
        let mut sql = format!("{} {}", self.name, self.type_.sql());
        for part in [self.also, if self.not_null { "not null" } else { "" }] {
            if !part.is_empty() {
                sql = format!("{sql} {part}");
            }
        }
        match self.default {
            Some(default) => format!("{sql} default {default}"),
            None => sql,
        }
    }
}

/// Returns what is between the parentheses of a CREATE TABLE.
pub fn definitions(columns: &[ColumnDef]) -> String {
    let columns: Vec<String> = columns.iter().map(ColumnDef::sql).collect();
    columns.join(", ")
}

macro_rules! columns {
    ($($column:ident = $definition:expr;)+) => {
        /// The columns of the documents, in the order of the table.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Column { $($column),+ }

        /// The columns of the documents, by `Column`.
        pub const COLUMNS: [ColumnDef; [$(Column::$column),+].len()] = [$($definition),+];

        impl Column {
            /// All of them.
            pub const ALL: [Self; COLUMNS.len()] = [$(Self::$column),+];
        }
    };
}

use ColumnDef as Def;
use Type::{Bigint, Int, Interval, Jsonb, Text, Timestamptz, Varchar};

/// The collation of what is compared byte by byte.
const C: &str = "collate pg_catalog.\"C\"";

// The order. Of an update, PostgreSQL logs what is between the first and the last byte that it changes.
// So what a lease changes stands together, and what its end changes beside that is next to it. The
// subject and what never changes come before them, the payload and what rarely changes after them.
// Numbers of 4 bytes stand in pairs, so that those of 8 bytes need no padding. picked_at ends what a
// lease writes, because it has its highest bytes in common with the time that was there before.
//
// subject: collation "C", because a subject is an identifier. It is compared byte by byte,
// which is faster, and no upgrade of the C library can damage the index.
// seq: the order of insertion, so that documents of the same moment stay first in, first out.
// lease: the number of the last lease. It stays when the document is returned or settled, because
// the next one has to be greater, and because a worker may repeat its settlement. Whether it holds is for
// the status to say.
// worker_session: who had that lease; refers to fetchq.worker_sessions. It stays as well. What a worker
// does with its document is in its lowest bits (`ACTION_BITS`), so that a worker that repeats its
// settlement learns that it was made. Only a document that is cancelled while it is leased loses it,
// which tells its worker what happened.
// due_at, picked_at: when the document was due when it was picked last, and when that was. A pick
// writes the end of the lease into next_iteration.
// max_attempts: of this document; NULL for that of the queue.
// progress: how far its workers have come. It stays until the document succeeds, so that the next attempt
// goes on from there.
// result: what its worker returned when it completed the document last.
// headers: what its producer says about the document. It stays with the document for good.
// origin: where a document of a dead-letter queue came from.
// queued: what was put on the document while it was leased; it runs again with that.
// expires_at: a document that has not begun by then is killed. It is not read after the first attempt
// has begun.
// A row with all columns NULL that may be NULL is no larger for them: its header has room for 72 columns.
columns! {
    Subject = Def::new("subject", Varchar(Some(255))).also(C).not_null().kept().put();
    Version = Def::new("version", Int).not_null().default("0").kept().put();
    Priority = Def::new("priority", Int).not_null().default("0").kept().put();
    Seq = Def::new("seq", Bigint).also("generated always as identity").not_null();
    CreatedAt = Def::new("created_at", Timestamptz).default("pg_catalog.now()").kept();
    LockUpgrade = Def::new("lock_upgrade", Timestamptz);
    Iterations = Def::new("iterations", Bigint).not_null().default("0").settled();
    LastIteration = Def::new("last_iteration", Timestamptz);
    Status = Def::new("status", Int).not_null().default("0");
    Attempts = Def::new("attempts", Int).not_null().default("0").kept();
    NextIteration = Def::new("next_iteration", Timestamptz).not_null().default("pg_catalog.now()").put();
    Lease = Def::new("lease", Bigint).kept();
    WorkerSession = Def::new("worker_session", Bigint).settled();
    DueAt = Def::new("due_at", Timestamptz).settled();
    PickedAt = Def::new("picked_at", Timestamptz).settled();
    MaxAttempts = Def::new("max_attempts", Int).kept().put();
    Progress = Def::new("progress", Jsonb).settled();
    Result = Def::new("result", Jsonb).settled();
    LastError = Def::new("last_error", Text).settled();
    Payload = Def::new("payload", Jsonb).settled().put();
    OrderingKey = Def::new("ordering_key", Text).kept().put();
    Headers = Def::new("headers", Jsonb).kept().put();
    Origin = Def::new("origin", Jsonb).kept();
    Queued = Def::new("queued", Jsonb);
    ExpiresAt = Def::new("expires_at", Timestamptz).kept().put();
}

/// The columns of the primary key.
pub const KEY: [Column; 1] = [Column::Subject];

/// The columns of the pick index, in its order.
pub const PICK_KEY: [Column; 5] = [
    Column::Version,
    Column::Priority,
    Column::NextIteration,
    Column::Attempts,
    Column::Seq,
];

/// The columns of the due index, in its order.
pub const DUE_KEY: [Column; 3] = [Column::Status, Column::NextIteration, Column::Seq];

/// The column of the expiry index.
pub const EXPIRY_KEY: [Column; 1] = [Column::ExpiresAt];

impl Column {
    /// Its definition.
    pub fn def(self) -> &'static ColumnDef {
        &COLUMNS[self as usize]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.def().name
    }

    /// Its number in the table, which counts from 1.
    pub const fn number(self) -> i16 {
        self as i16 + 1
    }
}

/// Returns numbers of columns as the text of an `int2vector`, such as `indkey` of an index.
pub fn numbers(columns: &[Column]) -> String {
    let numbers: Vec<String> = columns.iter().map(|c| c.number().to_string()).collect();
    numbers.join(" ")
}

/// Returns the defaults as the server writes them out, in the order of the columns.
pub fn defaults() -> String {
    let defaults = COLUMNS.iter().filter_map(|column| column.default);
    let defaults: Vec<&str> = defaults
        .map(|sql| sql.strip_prefix("pg_catalog.").unwrap_or(sql))
        .collect();
    defaults.join(",")
}

/// Returns the columns of a history: its own, and those that it has of the documents, which keep their
/// types.
pub fn history() -> Vec<ColumnDef> {
    let own = [
        Def::new("id", Bigint).also("generated always as identity"),
        Def::new("settled_at", Timestamptz)
            .not_null()
            .default("pg_catalog.now()"),
        Def::new("outcome", Text).also(C).not_null(),
        Def::new("worker", Text),
        Def::new("ran", Interval),
    ];
    let of_document = COLUMNS.iter().filter(|c| c.in_history != InHistory::No);
    let kept = of_document.map(|column| ColumnDef {
        default: None,
        ..*column
    });
    own.into_iter().chain(kept).collect()
}

/// Returns the names of the columns that a history has of the documents as a list of SQL, each after
/// `prefix`. `how`: only those.
pub fn kept(prefix: &str, how: Option<InHistory>) -> String {
    let kept = COLUMNS.iter().filter(|column| match how {
        Some(how) => column.in_history == how,
        None => column.in_history != InHistory::No,
    });
    let names: Vec<String> = kept.map(|c| format!("{prefix}{}", c.name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_written_as_a_statement_has_it() {
        assert_eq!(
            definitions(&COLUMNS[..2]),
            "subject varchar(255) collate pg_catalog.\"C\" not null, version int not null default 0"
        );
        assert_eq!(
            Column::Seq.def().sql(),
            "seq bigint generated always as identity not null"
        );
        assert_eq!(defaults(), "0,0,now(),0,0,0,now()");
        let version = history().into_iter().find(|c| c.name == "version");
        assert_eq!(
            version.map(|c| c.sql()).as_deref(),
            Some("version int not null")
        );
    }

    #[test]
    fn the_upgrade_from_fetchq_4_knows_the_columns_that_it_did_not_have() {
        let check = include_str!("../../src/fetchq4/upgrade/check.sql");
        for column in COLUMNS {
            let name = format!("'{}'", column.name);
            assert!(check.contains(&name), "check.sql has no {name}");
        }
    }
}
