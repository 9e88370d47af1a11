//! The steps of a history; each runs in one session.

use std::fmt;

/// The number of sessions that do the work.
pub const WORKERS: usize = 4;
/// The session that only keeps a snapshot open now and then.
pub const HOLDER: usize = WORKERS;
pub const SESSIONS: usize = WORKERS + 1;

/// Creates the queue. VACUUM runs as a step, not automatically.
pub const CREATE: &str = "select fetchq.queue_create('q'); alter table fetchq_data.q__docs set (autovacuum_enabled = off)";

/// Gives the documents ordering keys, of each of which some can be active at a time.
pub const PLACES: [&str; 2] = ["select places(2)", "select places(0)"];

#[derive(Clone)]
pub struct Step {
    pub who: usize,
    pub what: What,
}

#[derive(Clone)]
pub enum What {
    Sql(String),
    /// A pick; a watched pick is compared with the documents.
    Pick {
        version: i32,
        limit: u32,
        lease: &'static str,
        watched: bool,
    },
    /// Rows for COPY, with or without their `seq`.
    Copy {
        with_seq: bool,
        rows: String,
    },
    /// pg_terminate_backend, in any state of the session.
    Kill,
    /// The same, while the session runs a statement.
    KillDuring(String),
    /// One statement in each session that has no open transaction, all at the same time.
    Storm(Vec<String>),
    Sleep(u64),
    /// Ends every transaction and checks everything. The seed selects the order.
    End(u64),
}

impl Step {
    pub fn sql(who: usize, sql: impl Into<String>) -> Self {
        Self {
            who,
            what: What::Sql(sql.into()),
        }
    }
}

pub fn pick_sql(version: i32, limit: u32, lease: &str) -> String {
    format!("select subject from fetchq.doc_pick('q', {version}, {limit}, '{lease}')")
}

pub fn copy_sql(with_seq: bool) -> String {
    format!(
        "copy fetchq_data.q__docs (subject, version, priority, status, attempts, next_iteration{}) from stdin",
        if with_seq { ", seq" } else { "" }
    )
}

/// The step as a line of a script; the session comes first.
impl fmt::Display for Step {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "s{}: ", self.who)?;
        match &self.what {
            What::Sql(sql) => write!(out, "{sql};"),
            What::Pick {
                version,
                limit,
                lease,
                watched,
            } => {
                write!(out, "{};", pick_sql(*version, *limit, lease))?;
                if *watched {
                    write!(out, " -- watched")?;
                }
                Ok(())
            }
            What::Copy { with_seq, rows } => {
                write!(out, "{};\n{rows}\\.", copy_sql(*with_seq))
            }
            What::Kill => write!(out, "-- its backend is terminated"),
            What::KillDuring(sql) => write!(out, "{sql}; -- terminated meanwhile"),
            What::Storm(all) => {
                write!(out, "-- at once, one in each session:")?;
                for sql in all {
                    write!(out, "\n    {sql};")?;
                }
                Ok(())
            }
            What::Sleep(ms) => write!(out, "select pg_sleep(0.{ms:03});"),
            What::End(seed) => write!(out, "-- end of a history, checked by seed {seed}"),
        }
    }
}
