//! Reading the history of queues (`queue_history`): of one queue in pages, or of all queues. And removing
//! entries of it before their time (`queue_drop_history`).

use crate::domain::history_filter::HistoryFilter;
use crate::domain::invalid::Invalid;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::json::Jsonb;
use crate::pg::planner;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Spi};
use crate::pg::value::Arg;
use crate::store::documents::doc_selection::{BulkRequest, Selection, conditions};
use crate::store::documents::history::Outcome;
use crate::store::documents::reading::{MAX_READ, subject_range};
use crate::store::queues::queue;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::Right;
use crate::store::queues::statement::{self, render};

/// The columns of `fetchq.settled_document`, of an entry `d`. $1 or $25: the name of the queue.
macro_rules! columns {
    ($name:literal) => {
        concat!(
            $name,
            "::varchar, d.id, d.settled_at, d.outcome, d.subject, d.version,
        d.priority, d.attempts, d.iterations, d.created_at, d.payload, d.last_error,
        d.ordering_key, d.origin, d.worker, d.headers, d.due_at, d.picked_at, d.ran, d.result,
        d.progress, d.max_attempts,
        case when pg_catalog.isfinite(d.settled_at) then pg_catalog.format('%s-%s',
            (extract(epoch from (d.settled_at {-} pg_catalog.timestamptz '2000-01-01 00:00:00+00'))
                {*} 1000000)::bigint, d.id) end"
        )
    };
}

// All entries of a queue, in no order.
const ROWS: &str = concat!("select ", columns!("$1"), " from only {history} d");

// $2 to $20 are those of `BulkRequest::args`. $1: outcomes, $21: the worker, $22 and $23: after which entry the page begins,
// $24: how many entries are read at most, $25: the name of the queue, $26 and $27: a range of
// subjects. {source}: what is read.
const PAGE: &str = concat!(
    "select ",
    columns!("$25"),
    " from ({source}) d
    where ($1 is null or d.outcome {=} any ($1))
        and ($21 is null or d.worker {=} $21)
        and ($26 is null or d.subject {>=} $26) and ($27 is null or d.subject {<} $27)
        and ",
    conditions!("d.settled_at", "d.ran"),
    "
    order by d.settled_at desc, d.id desc
    limit $20"
);

/// The times of a page, and what comes after the entry before it.
macro_rules! times {
    () => {
        "s.settled_at {>=} coalesce($16, '-infinity')
            and s.settled_at {<} coalesce($17, 'infinity')
            and s.settled_at {<=} coalesce($22, 'infinity')
            and ($22 is null or s.settled_at {<} $22 or s.id {<} $23)"
    };
}

// Index: (outcome, settled_at), read backwards in each outcome.
const BY_TIME: &str = "select * from ({arms}) u order by u.settled_at desc, u.id desc limit $24";

const BY_TIME_ARM: &str = concat!(
    "(select * from only {history} s where s.outcome {=} '{outcome}' and ",
    times!(),
    " order by s.settled_at desc, s.id desc)"
);

/// The subjects of a page.
macro_rules! subjects {
    () => {
        "($26 is null or s.subject {>=} $26) and ($27 is null or s.subject {<} $27)
            and ($13 is null or s.subject {=} any ($13))"
    };
}

// Index: (subject, id).
const BY_SUBJECT: &str = concat!(
    "select * from only {history} s
    where ",
    subjects!(),
    " and ",
    times!()
);

// How many entries `BY_SUBJECT` reads, one more than the bound at most.
const COUNT_OF_SUBJECTS: &str = concat!(
    "select pg_catalog.count(*) from (
    select from only {history} s where ",
    subjects!(),
    " limit $24 {+} 1) c"
);

// The last entry that was read if there are more behind it.
const LAST_READ: &str = "select pg_catalog.format('%s-%s',
        (extract(epoch from (u.settled_at {-} pg_catalog.timestamptz '2000-01-01 00:00:00+00'))
            {*} 1000000)::bigint, u.id)
    from ({source}) u
    offset ($24 {-} 1) limit 2";

/// A page of the history of one queue.
pub struct Page<'a> {
    /// The conditions on the entries.
    pub filter: &'a HistoryFilter,
    /// The same conditions as the caller wrote them.
    pub json: Jsonb,
    /// How many entries at most. None: all, and there is no bound to what is read.
    pub limit: Option<i32>,
    /// The entry before the page: when it was settled, in microseconds since 2000, and its number.
    pub after: Option<(i64, i64)>,
}

/// Reads the position of an entry, as the column `position` shows it.
pub fn parse_position(text: &str) -> Option<(i64, i64)> {
    let (time, id) = text.rsplit_once('-')?;
    Some((time.parse().ok()?, id.parse().ok()?))
}

impl Page<'_> {
    /// The parameters of `PAGE`. Fails with `Invalid::HistoryFilter`.
    fn args(&self, spi: &Spi, name: &QueueName) -> Result<Vec<Arg>> {
        let request = BulkRequest {
            filter: &self.filter.document,
            json: self.json,
            limit: 0,
            dry_run: true,
        };
        let selection = Selection {
            statuses: Vec::new(),
            condition: "",
            args: &[],
            other: None,
        };
        let limit = self.limit.map(i64::from);
        let of_history = |error| match error {
            Error::Invalid(Invalid::Filter(reason)) => Invalid::HistoryFilter(reason).into(),
            other => other,
        };
        let mut args = request.args(spi, &selection, limit).map_err(of_history)?;
        let (first, beyond) = subject_range(self.filter.document.subject_like.as_deref());
        args[0] = Arg::from(self.filter.outcomes.clone());
        args.extend([
            Arg::from(self.filter.worker.as_deref()),
            self.after
                .map_or_else(Arg::no_timestamp, |(time, _)| Arg::timestamp(time)),
            Arg::from(self.after.map(|(_, id)| id)),
            Arg::from(limit.map(|_| i64::from(MAX_READ))),
            Arg::from(name.as_str()),
            Arg::from(first.as_deref()),
            Arg::from(beyond.as_deref()),
        ]);
        Ok(args)
    }

    /// All entries of the outcomes, in the order of the page.
    fn by_time(&self) -> String {
        let wanted = |outcome: &Outcome| {
            let outcomes = self.filter.outcomes.as_ref();
            outcomes.is_none_or(|all| all.iter().any(|word| word == outcome.word()))
        };
        let arms: Vec<String> = Outcome::ALL
            .iter()
            .filter(|outcome| wanted(outcome))
            .map(|outcome| BY_TIME_ARM.replace("{outcome}", outcome.word()))
            .collect();
        BY_TIME.replace("{arms}", &arms.join(" union all "))
    }
}

/// Adds a page of the history of one queue to a result, the newest entries first.
///
/// Fails with `Error::UnknownQueue`, with `Error::TooMuchToRead` when the page is not full after
/// `MAX_READ` entries, and with `Invalid::HistoryFilter`. A queue that has never
/// kept a history has no table for it, and adds nothing.
pub fn page(name: &QueueName, page: &Page, out: &mut RowSink) -> Result<()> {
    queue::id(name)?;
    spi::connect(|spi| {
        let args = page.args(spi, name)?;
        if !queue_tables::has_history(name) || page.filter.outcomes.as_deref() == Some(&[]) {
            return Ok(());
        }
        let of_page = |source: &str| render(&PAGE.replace("{source}", source), name);
        let by_time = page.by_time();
        let Some(limit) = page.limit else {
            out.extend(&spi.once(&of_page(&by_time), &args));
            return Ok(());
        };
        planner::with_index_scans(|| {
            let document = &page.filter.document;
            let has_prefix = subject_range(document.subject_like.as_deref()).0.is_some();
            if has_prefix || document.subjects.is_some() {
                let n = spi.once(&render(COUNT_OF_SUBJECTS, name), &args).get(0, 1);
                if n.is_some_and(|n: i64| n <= i64::from(MAX_READ)) {
                    out.extend(&spi.once(&of_page(BY_SUBJECT), &args));
                    return Ok(());
                }
            }
            let rows = spi.once(&of_page(&by_time), &args);
            if rows.affected() < limit {
                let one_more = by_time.replace("$24", "($24 {+} 1)");
                let sql = LAST_READ.replace("{source}", &one_more);
                let last = spi.once(&render(&sql, name), &args);
                if last.len() > 1 {
                    return Err(Error::TooMuchHistory {
                        queue: name.to_string(),
                        limit: MAX_READ,
                        found: rows.affected(),
                        last: last.get(0, 1).unwrap_or_default(),
                    });
                }
            }
            out.extend(&rows);
            Ok(())
        })
    })
}

// What `PAGE` has, the oldest first. No index fits: all entries are read.
const FOUND: &str = concat!(
    "select d.ctid from only {history} d
    where ($1 is null or d.outcome {=} any ($1))
        and ($21 is null or d.worker {=} $21)
        and ",
    conditions!("d.settled_at", "d.ran"),
    "
    order by d.settled_at, d.id
    limit $20"
);

/// Removes entries from the history of a queue, the oldest first, at most as many as the limit of the page.
/// Returns how many. With `dry_run` it only counts them. Entries that another session has locked are left.
///
/// Fails with `Error::UnknownQueue`, and with `Invalid::HistoryFilter`.
pub fn drop_entries(name: &QueueName, page: &Page, dry_run: bool) -> Result<i32> {
    queue::id(name)?;
    spi::connect(|spi| {
        let args = page.args(spi, name)?;
        if !queue_tables::has_history(name) {
            return Ok(0);
        }
        if dry_run {
            let sql = format!("select pg_catalog.count(*) from ({FOUND}) c");
            let n: Option<i64> = spi.once(&render(&sql, name), &args).get(0, 1);
            return Ok(i32::try_from(n.unwrap_or(0)).unwrap_or(i32::MAX));
        }
        let sql = format!(
            "delete from {{history}} h where h.ctid {{=}} any (array({FOUND} for update skip locked))"
        );
        Ok(spi.once(&render(&sql, name), &args).affected())
    })
}

/// Adds the histories of all queues that the caller may read to a result.
pub fn all(out: &mut RowSink) {
    out.prepare();
    queue::read_each(Right::Read, &["history"], |name| {
        if queue_tables::has_history(name) {
            let sql = statement::render(ROWS, name);
            let args = [Arg::from(name.as_str())];
            spi::connect(|spi| out.extend(&spi.once(&sql, &args)));
        }
    });
}
