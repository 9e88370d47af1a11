//! The metrics for monitoring systems (`metric_export`): the statistics of the queues, and what is
//! known of workers, schedules, maintenance and the server. It only reads, and waits for no lock.

use crate::domain::jobs::Task;
use crate::domain::metric_family::{Family, Kind};
use crate::domain::timing::{BOUNDS, Histogram};
use crate::domain::version::LIBRARY;
use crate::error::Result;
use crate::pg::json::Jsonb;
use crate::pg::row_sink::RowSink;
use crate::pg::value::Arg;
use crate::pg::{session, spi, time};
use crate::ready::floors;
use crate::store::counters::metrics_exact::{Counted, Period, try_lock};
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::reports::read;
use crate::store::reports::stats::{self, Pending, QueueStats, age};

/// Microseconds in a second.
const SECOND: f64 = 1e6;

// Sessions that are connected and have picked documents, by queue. $1: all queues, else $2: their
// names.
const WORKERS: &str = "select q.name::pg_catalog.text, pg_catalog.count(distinct a.pid)
    from fetchq.queues q
    left join fetchq.worker_sessions w on w.queue_id {=} q.id
    left join pg_catalog.pg_stat_get_activity(null) a
        on a.pid {=} w.pid and coalesce(a.backend_start {=} w.backend_start, true)
    where $1 or q.name {=} any ($2)
    group by q.name
    order by q.name";

const SCHEDULES: &str = "select
        pg_catalog.count(*) filter (where s.is_active and s.next_tick is not null and s.attempts {=} 0),
        pg_catalog.count(*) filter (where not s.is_active),
        pg_catalog.count(*) filter (where s.is_active and s.next_tick is not null and s.attempts {>} 0),
        pg_catalog.count(*) filter (where s.is_active and s.next_tick is null)
    from fetchq.schedules s
    where $1 or s.queue {=} any ($2)";

/// The columns of `SCHEDULES`.
const SCHEDULE_STATES: [&str; 4] = ["active", "paused", "failing", "ended"];

// The job of the packs belongs to no queue.
const JOBS: &str = "select j.task::pg_catalog.text, pg_catalog.max(j.last_iteration),
        pg_catalog.count(*) filter (where j.attempts {>} 1 or (j.payload {->} 'error') is not null)
    from fetchq.jobs j
    where $1 or j.queue {=} '*' or j.queue {=} any ($2)
    group by j.task";

const SERVER: &str = "select pg_catalog.current_setting('server_version'), pg_catalog.current_database()::pg_catalog.text";

/// Adds a row for each metric family to a result: its name, its type and its help text.
pub fn families(out: &mut RowSink) {
    for family in Family::ALL {
        out.push(&[
            Arg::from(family.name()),
            Arg::from(family.kind().word()),
            Arg::from(family.help()),
        ]);
    }
}

/// A JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The samples of one metric.
struct Samples<'a> {
    out: &'a mut RowSink,
    family: Arg,
    name: Arg,
}

impl<'a> Samples<'a> {
    fn of(family: Family, out: &'a mut RowSink) -> Self {
        Self::named(family, "", out)
    }

    /// The samples of a histogram whose names end with a suffix.
    fn named(family: Family, suffix: &str, out: &'a mut RowSink) -> Self {
        Self {
            out,
            family: Arg::from(family.name()),
            name: Arg::from(format!("{}{suffix}", family.name()).as_str()),
        }
    }

    /// Adds a sample. `labels`: names, and values as JSON.
    fn add(&mut self, labels: &[(&str, &str)], value: f64) {
        let mut json = String::with_capacity(64);
        for (name, value) in labels {
            json += if json.is_empty() { "{\"" } else { ",\"" };
            json += name;
            json += "\":";
            json += value;
        }
        json += if json.is_empty() { "{}" } else { "}" };
        self.out
            .push_with_json(&[self.family, self.name], &json, &[Arg::from(value)]);
    }

    /// Adds a sample whose labels are `jsonb` already.
    fn add_made(&mut self, labels: Arg, value: f64) {
        self.out
            .push(&[self.family, self.name, labels, Arg::from(value)]);
    }
}

/// A queue whose samples are added.
struct Labelled<'a> {
    stats: &'a QueueStats,
    /// Its name as a JSON string.
    name: String,
    /// The labels of most samples: the queue alone.
    labels: Arg,
}

impl<'a> Labelled<'a> {
    fn new(stats: &'a QueueStats) -> Self {
        let name = quoted(&stats.name);
        let labels = Jsonb::arg(Some(Jsonb::parse(&format!("{{\"queue\":{name}}}"))));
        Self {
            stats,
            name,
            labels,
        }
    }
}

/// What is exported, and to where.
struct Export<'a> {
    /// Only this family. None: all.
    only: Option<Family>,
    /// The queues on which the caller has a right.
    scope: &'a Scope,
    /// When it is: microseconds since 2000.
    now: i64,
    out: &'a mut RowSink,
    /// Metrics that could not be read, and why.
    missing: Vec<(Family, &'static str)>,
}

/// Adds a row for each sample of a metric family, or of all, to a result, for the queues on which
/// the caller has a right: the family, the name of the sample, its labels and its value.
///
/// Fails with `Error::RegistryBusy` when the registry is locked.
pub fn export(only: Option<Family>, out: &mut RowSink) -> Result<()> {
    read::lock_registry()?;
    rights::over(None, Right::Any, |scope| {
        let mut export = Export {
            only,
            scope,
            now: time::clock(),
            out,
            missing: Vec::new(),
        };
        export.queues();
        export.workers();
        export.schedules();
        export.maintenance();
        export.server();
        export.report_missing();
        Ok(())
    })
}

/// The metrics that are made of the statistics of queues.
const OF_QUEUES: [Family; 13] = [
    Family::Documents,
    Family::OldestReady,
    Family::PlannedOverdue,
    Family::Pushed,
    Family::Picked,
    Family::Settled,
    Family::LeasesLost,
    Family::Expired,
    Family::DeadLetters,
    Family::Wait,
    Family::Run,
    Family::Paused,
    Family::DeadLetterQueue,
];

impl Export<'_> {
    /// Returns whether a metric is wanted. What is missing is known only after all was read.
    fn wants(&self, family: Family) -> bool {
        self.only
            .is_none_or(|only| only == family || only == Family::Missing)
    }

    /// Returns whether the samples of a metric are to be shown.
    fn shows(&self, family: Family) -> bool {
        self.only.is_none_or(|only| only == family)
    }

    fn queues(&mut self) {
        let wanted = OF_QUEUES.map(|family| self.wants(family));
        if !wanted.contains(&true) {
            return;
        }
        let all = stats::read(self.scope, Period::Ever, self.now);
        let queues: Vec<Labelled> = all.queues.iter().map(Labelled::new).collect();
        for family in OF_QUEUES {
            let has_times = family.kind() != Kind::Histogram || all.has_times;
            let needs_counters = !matches!(
                family,
                Family::PlannedOverdue | Family::Paused | Family::DeadLetterQueue
            );
            if needs_counters && !all.is_counted || !has_times {
                self.missing.push((family, "locked"));
            } else if self.shows(family) {
                self.of_queues(family, &queues);
            }
        }
    }

    fn of_queues(&mut self, family: Family, queues: &[Labelled]) {
        let now = self.now;
        if family.kind() == Kind::Histogram {
            let bounds =
                BOUNDS.map(|bits| (bits, quoted(&((1u64 << bits) as f64 / SECOND).to_string())));
            for queue in queues {
                let histogram = queue.stats.counted.as_ref().map(|counted| match family {
                    Family::Wait => &counted.wait,
                    _ => &counted.run,
                });
                if let Some(histogram) = histogram {
                    self.histogram(family, queue, histogram, &bounds);
                }
            }
            return;
        }
        let mut samples = Samples::of(family, self.out);
        for Labelled {
            stats: queue,
            name,
            labels,
        } in queues
        {
            let counted = queue.counted.as_ref();
            let of_queue = ("queue", name.as_str());
            let mut add = |value: Option<f64>| {
                if let Some(value) = value {
                    samples.add_made(*labels, value);
                }
            };
            let count = |metric| counted.map(|counted| counted.counter(metric) as f64);
            match family {
                Family::OldestReady => {
                    let oldest = |state: &Pending| match state.ready {
                        0 => Some(0),
                        _ => queue.oldest_ready,
                    };
                    add(queue.pending.as_ref().and_then(oldest).map(seconds));
                }
                Family::PlannedOverdue => {
                    let overdue = |due: Option<i64>| due.map_or(Some(0), |due| age(due, now));
                    add(queue.planned.and_then(overdue).map(seconds));
                }
                Family::Pushed => add(count("ent")),
                Family::Picked => add(count("pkd")),
                Family::LeasesLost => add(count("orp")),
                Family::Expired => add(count("exp")),
                Family::DeadLetters => add(count("ded")),
                Family::Paused => add(Some(f64::from(u8::from(queue.is_paused)))),
                Family::DeadLetterQueue => {
                    add(Some(f64::from(u8::from(queue.is_dead_letter_queue))));
                }
                Family::Documents => {
                    for (state, n) in
                        counted.map_or_else(Vec::new, |counted| states(queue, counted))
                    {
                        samples.add(&[of_queue, ("state", state)], n as f64);
                    }
                }
                _ => {
                    for (outcome, n) in counted.into_iter().flat_map(outcomes) {
                        samples.add(&[of_queue, ("outcome", outcome)], n as f64);
                    }
                }
            }
        }
    }

    fn histogram(
        &mut self,
        family: Family,
        queue: &Labelled,
        histogram: &Histogram,
        bounds: &[(u32, String)],
    ) {
        let of_queue = ("queue", queue.name.as_str());
        let mut buckets = Samples::named(family, "_bucket", self.out);
        // Most queues of a large database are idle, and their buckets would be most of its samples.
        let bounds = if histogram.n() > 0 { bounds } else { &[] };
        for (bits, bound) in bounds {
            let n = histogram.n_below(*bits);
            buckets.add(&[of_queue, ("le", bound)], n as f64);
        }
        buckets.add(&[of_queue, ("le", "\"+Inf\"")], histogram.n() as f64);
        let mut sums = Samples::named(family, "_sum", self.out);
        sums.add_made(queue.labels, histogram.sum() / SECOND);
        let mut counts = Samples::named(family, "_count", self.out);
        counts.add_made(queue.labels, histogram.n() as f64);
    }

    /// Returns whether a table can be read for a metric. Otherwise the metric is missing.
    fn can_read(&mut self, table: &str, families: &[Family]) -> bool {
        let can = try_lock(table);
        if !can {
            let missing = families.iter().map(|family| (*family, "locked"));
            self.missing.extend(missing);
        }
        can
    }

    fn workers(&mut self) {
        if !self.wants(Family::Workers) {
            return;
        }
        // The sessions in the table are those of the primary.
        if session::is_standby() {
            self.missing.push((Family::Workers, "standby"));
            return;
        }
        if !self.can_read("worker_sessions", &[Family::Workers]) || !self.shows(Family::Workers) {
            return;
        }
        let mut samples = Samples::of(Family::Workers, self.out);
        spi::connect(|spi| {
            let rows = spi.once(WORKERS, &self.scope.args());
            for row in 0..rows.len() {
                let queue: Option<String> = rows.get(row, 1);
                let n: i64 = rows.get(row, 2).unwrap_or(0);
                samples.add(&[("queue", &quoted(&queue.unwrap_or_default()))], n as f64);
            }
        });
    }

    fn schedules(&mut self) {
        let family = Family::Schedules;
        if !self.wants(family) || !self.can_read("schedules", &[family]) || !self.shows(family) {
            return;
        }
        let mut samples = Samples::of(family, self.out);
        spi::connect(|spi| {
            let rows = spi.once(SCHEDULES, &self.scope.args());
            for (column, state) in (1..).zip(SCHEDULE_STATES) {
                let n: i64 = rows.get(0, column).unwrap_or(0);
                samples.add(&[("state", &quoted(state))], n as f64);
            }
        });
    }

    fn maintenance(&mut self) {
        let both = [Family::MaintenanceAge, Family::MaintenanceFailing];
        if !both.iter().any(|family| self.wants(*family)) || !self.can_read("jobs", &both) {
            return;
        }
        let mut services: Vec<(Task, Option<i64>, i64)> = spi::connect(|spi| {
            let rows = spi.once(JOBS, &self.scope.args());
            let service = |row| {
                let task: Option<String> = rows.get(row, 1);
                Some((
                    Task::parse(&task?)?,
                    rows.timestamp(row, 2),
                    rows.get(row, 3).unwrap_or(0),
                ))
            };
            (0..rows.len()).filter_map(service).collect()
        });
        services.sort_by_key(|(task, ..)| task.word());
        for family in both {
            if !self.shows(family) {
                continue;
            }
            let mut samples = Samples::of(family, self.out);
            for (task, last, failing) in &services {
                let value = match family {
                    Family::MaintenanceAge => {
                        last.map(|last| seconds(self.now.saturating_sub(last)))
                    }
                    _ => Some(*failing as f64),
                };
                if let Some(value) = value {
                    samples.add(&[("service", &quoted(task.word()))], value);
                }
            }
        }
    }

    fn server(&mut self) {
        if self.wants(Family::FloorMisses) {
            let stats = floors::stats();
            if stats.slots == 0 {
                self.missing.push((Family::FloorMisses, "no shared memory"));
            } else if self.shows(Family::FloorMisses) {
                Samples::of(Family::FloorMisses, self.out).add(&[], stats.floor_misses as f64);
            }
        }
        if self.shows(Family::Info) {
            let [postgresql, database] = spi::connect(|spi| {
                let rows = spi.once(SERVER, &[]);
                [1, 2].map(|column| quoted(&rows.get::<String>(0, column).unwrap_or_default()))
            });
            let role = match session::is_standby() {
                true => "standby",
                false => "primary",
            };
            let labels = [
                ("version", quoted(LIBRARY)),
                ("postgresql", postgresql),
                ("database", database),
                ("role", quoted(role)),
                ("preloaded", quoted(&session::is_preloaded().to_string())),
            ];
            let labels = labels
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            Samples::of(Family::Info, self.out).add(&labels, 1.0);
        }
    }

    fn report_missing(&mut self) {
        if !self.shows(Family::Missing) {
            return;
        }
        let mut samples = Samples::of(Family::Missing, self.out);
        for (family, reason) in &self.missing {
            let labels = [
                ("metric", quoted(family.name())),
                ("reason", quoted(reason)),
            ];
            let labels = labels
                .each_ref()
                .map(|(name, value)| (*name, value.as_str()));
            samples.add(&labels, 1.0);
        }
    }
}

/// A time in seconds, of one in microseconds. A time below 0, which a clock that was set back can
/// cause, counts as 0.
fn seconds(micros: i64) -> f64 {
    micros.max(0) as f64 / SECOND
}

/// The documents of a queue by state, as JSON strings. Together they are all its documents.
fn states(queue: &QueueStats, counted: &Counted) -> Vec<(&'static str, i64)> {
    let mut states = match &queue.pending {
        Some(pending) => vec![
            ("\"ready\"", pending.ready),
            ("\"retrying\"", pending.retrying),
            ("\"blocked\"", pending.blocked),
        ],
        None => vec![("\"pending\"", counted.counter("pnd"))],
    };
    states.extend([
        ("\"planned\"", counted.counter("pln")),
        ("\"active\"", counted.counter("act")),
        ("\"completed\"", counted.counter("cpl")),
        ("\"killed\"", counted.counter("kll")),
    ]);
    states
}

/// The documents that workers have settled by outcome, as JSON strings. Each of them only grows,
/// because an event that counts for the second metric of a difference counts for the first one, too.
fn outcomes(counted: &Counted) -> [(&'static str, i64); 4] {
    let [succeeded, rescheduled, failed, rejected] =
        ["suc", "res", "fai", "rej"].map(|metric| counted.counter(metric));
    [
        ("\"succeeded\"", (succeeded - rescheduled).max(0)),
        ("\"rescheduled\"", rescheduled),
        ("\"rejected\"", rejected),
        ("\"killed\"", (failed - rejected).max(0)),
    ]
}
