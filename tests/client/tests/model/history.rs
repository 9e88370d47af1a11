//! Random histories: the steps, their sessions, and their values.

use super::dice::Dice;
use super::step::{CREATE, HOLDER, Step, WORKERS, What};
use super::world::{Block, World};

/// The kinds of steps and their weights. Each history omits some kinds and does more of others,
/// because some faults show only when another kind of step never happens.
const KINDS: &[(Kind, usize)] = &[
    (Kind::Push, 12),
    (Kind::PushMany, 6),
    (Kind::Upsert, 6),
    (Kind::Put, 8),
    (Kind::Together, 8),
    (Kind::Pick, 20),
    (Kind::PickAndSettle, 8),
    (Kind::Settle, 12),
    (Kind::Picks, 8),
    (Kind::Pushes, 4),
    (Kind::Update, 10),
    (Kind::Insert, 5),
    (Kind::Copy, 4),
    (Kind::Delete, 3),
    (Kind::Lock, 4),
    (Kind::Undone, 3),
    (Kind::Begin, 10),
    (Kind::Close, 12),
    (Kind::Savepoint, 6),
    (Kind::Prepare, 3),
    (Kind::Prepared, 3),
    (Kind::Kill, 1),
    (Kind::Storm, 2),
    (Kind::Maintain, 6),
    (Kind::Vacuum, 3),
    (Kind::Snapshot, 2),
    (Kind::Truncate, 1),
    (Kind::DropAndCreate, 1),
    (Kind::NoTriggers, 2),
    (Kind::Replica, 1),
    (Kind::Rebuild, 1),
    (Kind::Alter, 1),
    (Kind::Places, 2),
    (Kind::Sleep, 1),
];

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Push,
    PushMany,
    Upsert,
    Put,
    Together,
    Pick,
    PickAndSettle,
    Settle,
    Picks,
    Pushes,
    Update,
    Insert,
    Copy,
    Delete,
    Lock,
    Undone,
    Begin,
    Close,
    Savepoint,
    Prepare,
    Prepared,
    Kill,
    Storm,
    Maintain,
    Vacuum,
    Snapshot,
    Truncate,
    DropAndCreate,
    NoTriggers,
    Replica,
    Rebuild,
    Alter,
    Places,
    Sleep,
}

pub struct History {
    dice: Dice,
    weights: Vec<usize>,
    priorities: Vec<i32>,
    versions: Vec<i32>,
    /// The percentage of picks that are compared with the documents.
    watched: usize,
    left: usize,
    /// The documents have ordering keys.
    is_keyed: bool,
    /// The last number of a subject; it continues from one history to the next.
    subjects: usize,
}

impl History {
    pub fn new(mut dice: Dice, subjects: usize, is_keyed: bool) -> Self {
        let weights = KINDS
            .iter()
            .map(|(_, weight)| match dice.roll(10) {
                0..3 => 0,
                3..8 => *weight,
                _ => weight * 5,
            })
            .collect();
        let priorities = match dice.roll(8) {
            0 | 1 => vec![0],
            2..5 => vec![-1, 0, 1, 5],
            5 | 6 => vec![i32::MIN, -1, 0, 5, i32::MAX],
            // More priorities than the shared memory keeps floors for.
            _ => (0..40).map(|i| (i - 20) * 3).collect(),
        };
        let versions = match dice.roll(6) {
            0..3 => vec![0],
            3 | 4 => vec![0, 1, -7],
            _ => vec![0, i32::MAX, i32::MIN],
        };
        Self {
            weights,
            priorities,
            versions,
            watched: *dice.one(&[0, 30, 100]),
            left: dice.range(6, 40),
            is_keyed,
            subjects,
            dice,
        }
    }

    pub fn subjects(&self) -> usize {
        self.subjects
    }

    /// The next steps, usually one; None when the history has ended with its last step.
    pub fn next(&mut self, world: &World) -> Option<Vec<Step>> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        if self.left == 0 {
            let seed = self.dice.next();
            return Some(vec![Step {
                who: 0,
                what: What::End(seed),
            }]);
        }
        if self.weights.iter().all(|weight| *weight == 0) {
            self.weights[0] = 1;
        }
        let kind = KINDS[self.dice.weighted(&self.weights)].0;
        let mut who = self.dice.roll(WORKERS);
        // Some kinds cannot run in a transaction block.
        let alone = [
            Kind::Picks,
            Kind::Pushes,
            Kind::Vacuum,
            Kind::Truncate,
            Kind::NoTriggers,
            Kind::Places,
        ];
        if alone.contains(&kind) {
            match (0..WORKERS)
                .map(|i| (who + i) % WORKERS)
                .find(|w| world.is_idle(*w))
            {
                Some(idle) => who = idle,
                None => return Some(vec![self.close(world, who)]),
            }
        }
        Some(self.steps(kind, who, world))
    }

    fn steps(&mut self, kind: Kind, who: usize, world: &World) -> Vec<Step> {
        let sql = match kind {
            Kind::Push => self.push(),
            Kind::PushMany => self.push_many(world),
            Kind::Upsert => self.upsert(),
            Kind::Put => self.put(world),
            Kind::Together => self.together(world),
            Kind::Pick => return vec![self.pick(who)],
            Kind::PickAndSettle => self.pick_and_settle(),
            Kind::Settle => self.settle(world),
            Kind::Picks => self.picks(),
            Kind::Pushes => self.pushes(),
            Kind::Update => self.update(),
            Kind::Insert => self.insert(),
            Kind::Copy => return vec![self.copy(who)],
            Kind::Delete => self.delete(),
            Kind::Lock => self.lock(),
            Kind::Undone => self.undone(),
            Kind::Begin => self.begin(),
            Kind::Close => return vec![self.close(world, who)],
            Kind::Savepoint => self.savepoint(world, who),
            Kind::Prepare => format!("prepare transaction '{}'", world.gid(self.dice.roll(3))),
            Kind::Prepared => {
                let how = *self.dice.one(&["commit", "rollback"]);
                let gid = world.gid(self.dice.roll(3));
                return vec![Step::sql(
                    self.idle(world, who),
                    format!("{how} prepared '{gid}'"),
                )];
            }
            Kind::Kill => return vec![self.kill(who)],
            Kind::Storm => return vec![self.storm()],
            Kind::Maintain => self.maintain(),
            Kind::Vacuum => self.vacuum(),
            Kind::Snapshot => return vec![self.snapshot(world)],
            Kind::Truncate => return self.truncate(world, who),
            Kind::DropAndCreate => return self.drop_and_create(world, who),
            Kind::NoTriggers => return self.no_triggers(world, who),
            Kind::Replica => return self.replica(who),
            Kind::Rebuild => self.rebuild(world, who),
            Kind::Alter => self.alter(),
            Kind::Places if self.is_keyed => self.places(),
            Kind::Places => return vec![self.pick(who)],
            Kind::Sleep => {
                return vec![Step {
                    who,
                    what: What::Sleep(self.dice.range(1, 20) as u64),
                }];
            }
        };
        vec![Step::sql(who, sql)]
    }

    fn idle(&self, world: &World, who: usize) -> usize {
        (0..WORKERS)
            .map(|i| (who + i) % WORKERS)
            .find(|w| world.is_idle(*w))
            .unwrap_or(who)
    }

    // ------------------------------------------------------------- values --

    fn priority(&mut self) -> i32 {
        *self.dice.one(&self.priorities)
    }

    fn version(&mut self) -> i32 {
        *self.dice.one(&self.versions)
    }

    fn new_subject(&mut self) -> String {
        self.subjects += 1;
        format!("d{}", self.subjects)
    }

    /// Usually a new subject, otherwise one that was used recently.
    fn subject(&mut self) -> String {
        if self.subjects > 0 && self.dice.percent(25) {
            let last = self.dice.roll(self.subjects.min(40));
            return format!("d{}", self.subjects - last);
        }
        self.new_subject()
    }

    /// An expression for a point in time: equal, near or far from the others.
    fn time(&mut self) -> String {
        let k = self.dice.range(1, 25);
        match self.dice.weighted(&[25, 15, 25, 5, 8, 8, 2, 6, 6, 14]) {
            0 => "now()".to_owned(),
            1 => format!("now() - interval '{k} ms'"),
            2 => format!("timestamptz '2020-01-0{}'", 1 + k % 4),
            3 => "timestamptz '-infinity'".to_owned(),
            4 => format!("now() + interval '{k} ms'"),
            5 => "timestamptz '2970-01-01'".to_owned(),
            6 => "timestamptz 'infinity'".to_owned(),
            7 => format!("timestamptz '2020-01-02' + interval '{k} us'"),
            // Several documents become due at exactly this moment, soon.
            9 => format!("soon({})", self.dice.one(&[20, 40])),
            _ => format!("clock_timestamp() - interval '{k} us'"),
        }
    }

    fn lease(&mut self) -> &'static str {
        ["1h", "1h", "1h", "0 s", "5 ms", "1 ms"][self.dice.roll(6)]
    }

    fn status(&mut self) -> i32 {
        [1, 1, 1, 1, 0, 2, 3, -1][self.dice.roll(8)]
    }

    // -------------------------------------------------------------- calls --

    fn push(&mut self) -> String {
        let (subject, at) = (self.subject(), self.time());
        let (version, priority) = (self.version(), self.priority());
        match self.dice.roll(4) {
            0 => format!("select fetchq.doc_append('q', '{{}}', {version}, {priority})"),
            _ => format!(
                "select fetchq.doc_push('q', '{subject}', {version}, {priority}, {at}, '{{}}')"
            ),
        }
    }

    /// A list of documents for the functions that accept JSON.
    fn documents(&mut self) -> String {
        let mut documents = Vec::new();
        for _ in 0..self.dice.range(0, 12) {
            let (subject, at) = (self.subject(), self.time());
            documents.push(format!(
                "jsonb_build_object('subject', '{subject}', 'version', {}, 'priority', {}, 'next_iteration', {at})",
                self.version(),
                self.priority()
            ));
        }
        format!("jsonb_build_array({})", documents.join(", "))
    }

    fn push_many(&mut self, world: &World) -> String {
        let at = self.time();
        let (version, priority) = (self.version(), self.priority());
        let n = self.dice.range(1, 40);
        match self.dice.roll(6) {
            // One transaction, several statements.
            0 => format!(
                "select fetchq.doc_push('q', 'm' || nextval('subjects'), {version}, case i % 2 when 0 then {priority} else {} end, {at}, '{{}}') from generate_series(1, {n}) i",
                self.priority()
            ),
            1 => format!(
                "select fetchq.doc_append('q', '{{}}', {version}, {priority}) from generate_series(1, {n})"
            ),
            2 | 3 if world.has("doc_put_many") => {
                format!("select fetchq.doc_put_many('q', {})", self.documents())
            }
            4 if world.has("doc_append_many") => format!(
                "select fetchq.doc_append_many('q', array_fill('{{}}'::jsonb, array[{n}]), {version}, {priority})"
            ),
            // One statement with one timestamp.
            _ => {
                let list: Vec<String> = (0..n)
                    .map(|_| {
                        format!(
                            "(''{}'', {}, ''{{}}'', {{DATA}})",
                            self.subject(),
                            self.priority()
                        )
                    })
                    .collect();
                format!(
                    "select fetchq.doc_push('q', {version}, {at}, '{}')",
                    list.join(", ")
                )
            }
        }
    }

    fn upsert(&mut self) -> String {
        let (subject, at) = (self.subject(), self.time());
        format!(
            "select fetchq.doc_upsert('q', '{subject}', {}, {}, {at}, '{{}}')",
            self.version(),
            self.priority()
        )
    }

    fn mode(&mut self) -> &'static str {
        const MODES: [&str; 10] = [
            "ignore",
            "replace",
            "merge",
            "earliest",
            "debounce",
            "debounce",
            "reset",
            "replace,reset",
            "merge,reset",
            "debounce,reset",
        ];
        MODES[self.dice.roll(MODES.len())]
    }

    /// Puts of new and existing documents. Those that exist may have attempts, and keep them.
    fn put(&mut self, world: &World) -> String {
        if !world.has("doc_put") {
            return self.upsert();
        }
        let (version, priority, mode) = (self.version(), self.priority(), self.mode());
        let at = self.time();
        match self.dice.roll(4) {
            0 => format!(
                "select fetchq.doc_put_many('q', {}, '{mode}')",
                self.documents()
            ),
            // Documents that were picked before, and not only the latest subjects.
            1 | 2 => {
                let status = *self.dice.one(&[0, 1]);
                let some = self.some(status);
                format!(
                    "select fetchq.doc_put('q', d.subject, '{{}}', {at}, {version}, {priority}, '{mode}') from {some} d"
                )
            }
            _ => format!(
                "select fetchq.doc_put('q', '{}', '{{}}', {at}, {version}, {priority}, '{mode}')",
                self.subject()
            ),
        }
    }

    /// Documents with and without attempts get the same time in one transaction, before any other
    /// process can move a floor in between.
    fn together(&mut self, world: &World) -> String {
        if !world.has("doc_put") {
            return self.push();
        }
        let at = self.time();
        format!(
            "select together({}, {}, {at}, {})",
            self.version(),
            self.priority(),
            self.dice.roll(12)
        )
    }

    fn pick(&mut self, who: usize) -> Step {
        Step {
            who,
            what: What::Pick {
                version: self.version(),
                limit: *self.dice.one(&[1, 1, 1, 2, 3, 10, 50]),
                lease: self.lease(),
                watched: self.dice.percent(self.watched),
            },
        }
    }

    fn pick_and_settle(&mut self) -> String {
        let (version, limit) = (self.version(), *self.dice.one(&[1, 1, 2, 5, 30]));
        let settle = self.settling();
        format!("select {settle} from fetchq.doc_pick('q', {version}, {limit}, '1h') d")
    }

    /// A call that settles a row `d` with a subject.
    fn settling(&mut self) -> String {
        let at = self.time();
        match self.dice.roll(12) {
            0 => "fetchq.doc_complete('q', d.subject)".to_owned(),
            1 => "fetchq.doc_kill('q', d.subject)".to_owned(),
            2 => "fetchq.doc_reject('q', d.subject, 'why', '{}')".to_owned(),
            // It is pending again at once, with one attempt more.
            8 => "fetchq.doc_reject('q', d.subject, 'why', '{}', delay => '0 s')".to_owned(),
            9 | 10 => format!("fetchq.doc_snooze('q', d.subject, {at})"),
            3 | 4 => "fetchq.doc_drop('q', d.subject)".to_owned(),
            _ => format!("fetchq.doc_reschedule('q', d.subject, {at})"),
        }
    }

    /// A query for some documents of a status, usually only those that are not locked.
    fn some(&mut self, status: i32) -> String {
        let skip = if self.dice.percent(85) {
            " for update skip locked"
        } else {
            ""
        };
        let order = *self
            .dice
            .one(&["seq", "seq desc", "priority, seq", "next_iteration"]);
        let (limit, offset) = (self.dice.range(1, 6), self.dice.roll(8));
        format!(
            "(select subject from fetchq_data.q__docs where status = {status} order by {order} limit {limit} offset {offset}{skip})"
        )
    }

    fn settle(&mut self, world: &World) -> String {
        let active = self.some(2);
        if world.has("doc_complete_many") && self.dice.percent(30) {
            let at = self.time();
            let many = match self.dice.roll(3) {
                0 => "complete_many('q', s)".to_owned(),
                1 => "drop_many('q', s)".to_owned(),
                _ => format!("reschedule_many('q', s, {at})"),
            };
            return format!(
                "select fetchq.doc_{many} from (select coalesce(array_agg(d.subject::text), '{{}}') s from {active} d) a"
            );
        }
        let settle = self.settling();
        format!("select {settle} from {active} d")
    }

    /// Many transactions, because these make floors advance.
    fn picks(&mut self) -> String {
        let version = self.version();
        let n = self.dice.range(20, 70);
        let limit = *self.dice.one(&[1, 1, 1, 1, 2, 5]);
        let lease = self.lease();
        let how = self.dice.one(&[
            "drop", "drop", "complete", "leave", "poll", "undo", "kill", "reject", "again", "now",
            "retry", "snooze", "soon",
        ]);
        format!("call picks({n}, {version}, {limit}, '{lease}', '{how}')")
    }

    fn pushes(&mut self) -> String {
        let (n, at) = (self.dice.range(10, 60), self.time());
        let (version, priority) = (self.version(), self.priority());
        format!("call pushes({n}, {version}, {priority}, {at})")
    }

    fn maintain(&mut self) -> String {
        let n = *self.dice.one(&[1, 2, 10, 1000]);
        match self.dice.roll(8) {
            0 => "select fetchq.metric_log_pack()".to_owned(),
            1 => format!("select fetchq.mnt_make_pending('q', {n})"),
            2 => format!("select fetchq.mnt_reschedule_orphans('q', {n})"),
            3 => format!("select fetchq.mnt_mark_dead('q', {n})"),
            4 => format!("select fetchq.mnt_run_all({n})"),
            _ => format!("select fetchq.mnt_run('q', {n})"),
        }
    }

    // ---------------------------------------------------------- plain SQL --

    fn update(&mut self) -> String {
        let status = self.status();
        let at = self.time();
        let set = match self.dice.roll(13) {
            0 | 1 => "status = 1".to_owned(),
            2 => format!("status = 1, next_iteration = {at}"),
            3 | 4 => format!("next_iteration = {at}"),
            5 => format!("priority = {}", self.priority()),
            6 => format!("version = {}", self.version()),
            // That column belongs to the order of the keys.
            7 | 8 if self.is_keyed => {
                format!("ordering_key = '{}'", self.dice.one(&["k1", "k2", "k9"]))
            }
            7 => "lock_upgrade = now()".to_owned(),
            8 => "lock_upgrade = null".to_owned(),
            9 => "payload = '{\"changed\": true}'".to_owned(),
            10 => format!("attempts = {}", self.dice.one(&[-1, 0, 1, 5, i32::MAX])),
            11 => "subject = 'u' || nextval('subjects')".to_owned(),
            _ => format!("status = {}", self.status()),
        };
        // Also hidden documents, because only this update makes them visible again.
        let which = if set.starts_with("lock_upgrade = null") {
            "(select subject from fetchq_data.q__docs where lock_upgrade is not null for update skip locked)".to_owned()
        } else {
            self.some(status)
        };
        format!("update fetchq_data.q__docs set {set} where subject in {which}")
    }

    fn insert(&mut self) -> String {
        let at = self.time();
        let (subject, status) = (self.subject(), self.status());
        let (version, priority) = (self.version(), self.priority());
        let columns = "subject, version, priority, status, next_iteration";
        match self.dice.roll(4) {
            0 => format!(
                "insert into fetchq_data.q__docs ({columns}) select 'i' || nextval('subjects'), {version}, {priority}, {status}, {at} from generate_series(1, {})",
                self.dice.range(1, 40)
            ),
            1 => format!(
                "insert into fetchq_data.q__docs ({columns}) values ('{subject}', {version}, {priority}, {status}, {at})
                 on conflict (subject) do update set status = excluded.status, next_iteration = excluded.next_iteration"
            ),
            2 => format!(
                "insert into fetchq_data.q__docs ({columns}, seq) overriding system value values ('{subject}', {version}, {priority}, {status}, {at}, {})",
                self.seq()
            ),
            _ => format!(
                "insert into fetchq_data.q__docs ({columns}) values ('{subject}', {version}, {priority}, {status}, {at})"
            ),
        }
    }

    /// Equal values are possible, because only the identity column prevents them.
    fn seq(&mut self) -> i64 {
        *self
            .dice
            .one(&[1, 1, 2, 3, 0, -5, i64::MIN, i64::MAX, 1000])
    }

    fn copy(&mut self, who: usize) -> Step {
        let with_seq = self.dice.percent(50);
        let mut rows = String::new();
        let time = *self.dice.one(&[
            "2020-01-01",
            "2020-01-02",
            "-infinity",
            "2020-01-03",
            "2970-01-01",
        ]);
        let same = self.dice.percent(50);
        for _ in 0..self.dice.range(1, 25) {
            let time = match same {
                true => time,
                false => {
                    self.dice
                        .one(&["2020-01-01", "2020-01-02", "2020-01-02 00:00:00.000007+00"])
                }
            };
            let subject = self.new_subject();
            rows.push_str(&format!(
                "{subject}\t{}\t{}\t{}\t{}\t{time}",
                self.version(),
                self.priority(),
                self.status(),
                self.dice.one(&[0, 0, 0, 1, 5])
            ));
            if with_seq {
                rows.push_str(&format!("\t{}", self.seq()));
            }
            rows.push('\n');
        }
        Step {
            who,
            what: What::Copy { with_seq, rows },
        }
    }

    fn delete(&mut self) -> String {
        let status = self.status();
        format!(
            "delete from fetchq_data.q__docs where subject in {}",
            self.some(status)
        )
    }

    /// Locks rows; a row that is only locked is alive.
    fn lock(&mut self) -> String {
        let how = *self
            .dice
            .one(&["update", "no key update", "share", "key share"]);
        let (status, limit) = (*self.dice.one(&[1, 1, 1, 0, 2]), self.dice.range(1, 5));
        format!(
            "select subject from fetchq_data.q__docs where status = {status} order by seq limit {limit} for {how} skip locked"
        )
    }

    /// A change that an exception rolls back within one statement.
    fn undone(&mut self) -> String {
        let what = match self.dice.roll(4) {
            0 => self.insert(),
            1 => self.update(),
            2 => format!(
                "perform fetchq.doc_pick('q', {}, {}, '1h')",
                self.version(),
                self.dice.range(1, 5)
            ),
            _ => self.push().replacen("select", "perform", 1),
        };
        format!(
            "do $do$ begin begin {what}; perform 1 / 0; exception when division_by_zero then null; end; end $do$"
        )
    }

    // ------------------------------------------------------- transactions --

    fn begin(&mut self) -> String {
        match self.dice.roll(8) {
            0 => "begin isolation level repeatable read",
            1 => "begin isolation level serializable",
            _ => "begin",
        }
        .to_owned()
    }

    fn close(&mut self, world: &World, who: usize) -> Step {
        // Prefers a session with an open transaction.
        let who = (0..WORKERS)
            .map(|i| (who + i) % WORKERS)
            .find(|w| !world.is_idle(*w))
            .unwrap_or(who);
        let end = if self.dice.percent(55) {
            "commit"
        } else {
            "rollback"
        };
        Step::sql(who, end)
    }

    fn savepoint(&mut self, world: &World, who: usize) -> String {
        match world.workers[who].block {
            Block::Closed => self.begin(),
            Block::Open { savepoint: false } => "savepoint s".to_owned(),
            Block::Open { savepoint: true } => self
                .dice
                .one(&[
                    "rollback to savepoint s",
                    "rollback to savepoint s",
                    "release savepoint s",
                    "savepoint s",
                ])
                .to_string(),
        }
    }

    fn kill(&mut self, who: usize) -> Step {
        let what = if self.dice.percent(50) {
            What::Kill
        } else {
            What::KillDuring(match self.dice.roll(3) {
                0 => self.picks(),
                1 => self.pushes(),
                _ => self.churn(),
            })
        };
        Step { who, what }
    }

    fn churn(&mut self) -> String {
        let list = |of: &[i32]| format!("{of:?}");
        format!(
            "call churn({}, {}, array{}, array{})",
            self.dice.roll(1000) as f64 / 1000.0,
            self.dice.range(10, 40),
            list(&self.versions),
            list(&self.priorities)
        )
    }

    fn storm(&mut self) -> Step {
        let all = (0..WORKERS)
            .map(|_| match self.dice.roll(8) {
                0 => self.pushes(),
                1 => self.picks(),
                2 => "vacuum (truncate off) fetchq_data.q__docs".to_owned(),
                _ => self.churn(),
            })
            .collect();
        Step {
            who: 0,
            what: What::Storm(all),
        }
    }

    fn snapshot(&mut self, world: &World) -> Step {
        Step::sql(
            HOLDER,
            match world.is_idle(HOLDER) {
                // The first statement makes the snapshot, and locks nothing of the queue.
                true => "begin isolation level repeatable read; select count(*) from fetchq.queues",
                false => "commit",
            },
        )
    }

    // ------------------------------------------------- what an operator does --

    /// Ends the transactions of all workers, which would otherwise block the operator.
    fn clear(&mut self, world: &World) -> Vec<Step> {
        if self.dice.percent(20) {
            return Vec::new();
        }
        (0..WORKERS)
            .filter(|who| !world.is_idle(*who))
            .map(|who| Step::sql(who, *self.dice.one(&["commit", "rollback"])))
            .collect()
    }

    fn vacuum(&mut self) -> String {
        // Truncation would wait for seconds for the sessions that use the table.
        let how = self.dice.one(&[
            "vacuum (truncate off)",
            "vacuum (truncate off)",
            "vacuum (truncate off)",
            "vacuum (truncate off, index_cleanup off)",
            "vacuum (truncate off, freeze)",
            "vacuum (truncate off, disable_page_skipping)",
            "vacuum full",
            "vacuum (truncate off, analyze)",
        ]);
        format!("{how} fetchq_data.q__docs")
    }

    /// Truncates the table, fills it and picks from it; all of it may be rolled back.
    fn truncate(&mut self, world: &World, who: usize) -> Vec<Step> {
        let mut steps = self.clear(world);
        steps.push(Step::sql(who, "begin"));
        steps.push(Step::sql(
            who,
            *self.dice.one(&[
                "truncate fetchq_data.q__docs",
                "select fetchq.queue_truncate('q')",
                "cluster fetchq_data.q__docs using q__docs_pkey",
                "delete from fetchq_data.q__docs",
            ]),
        ));
        for _ in 0..self.dice.roll(4) {
            let sql = match self.dice.roll(3) {
                0 => self.push_many(world),
                1 => self.pick_and_settle(),
                _ => {
                    steps.push(self.pick(who));
                    continue;
                }
            };
            steps.push(Step::sql(who, sql));
        }
        let end = if self.dice.percent(80) {
            "rollback"
        } else {
            "commit"
        };
        steps.push(Step::sql(who, end));
        steps
    }

    fn drop_and_create(&mut self, world: &World, who: usize) -> Vec<Step> {
        let mut steps = self.clear(world);
        let block = self.dice.percent(50);
        if block {
            steps.push(Step::sql(who, "begin"));
        }
        steps.push(Step::sql(who, "select fetchq.queue_drop('q')"));
        if self.dice.percent(80) {
            steps.push(Step::sql(who, CREATE));
            let (push, pick) = (self.push(), self.pick(who));
            steps.push(Step::sql(who, push));
            steps.push(pick);
        }
        if block {
            let end = *self.dice.one(&["commit", "rollback"]);
            steps.push(Step::sql(who, end));
        }
        steps
    }

    /// Repeats what `pg_restore --disable-triggers` does, in one transaction or in several.
    fn no_triggers(&mut self, world: &World, who: usize) -> Vec<Step> {
        let mut steps = self.clear(world);
        let block = self.dice.percent(60);
        let which = *self.dice.one(&["all", "all", "all", "user"]);
        if block {
            steps.push(Step::sql(who, "begin"));
        }
        steps.push(Step::sql(
            who,
            format!("alter table fetchq_data.q__docs disable trigger {which}"),
        ));
        for _ in 0..self.dice.range(1, 3) {
            let other = self.dice.roll(WORKERS);
            match self.dice.roll(5) {
                0..3 => steps.push(self.copy(who)),
                3 if !block => steps.push(self.pick(other)),
                _ => {
                    let insert = self.insert();
                    steps.push(Step::sql(who, insert));
                }
            }
        }
        // Sometimes the step is left out; the end of the history enables the triggers then.
        if self.dice.percent(80) {
            steps.push(Step::sql(
                who,
                format!("alter table fetchq_data.q__docs enable trigger {which}"),
            ));
        }
        if block {
            let end = *self.dice.one(&["commit", "commit", "rollback"]);
            steps.push(Step::sql(who, end));
        }
        steps
    }

    /// Applies changes as logical replication does.
    fn replica(&mut self, who: usize) -> Vec<Step> {
        let mut steps = vec![Step::sql(who, "set session_replication_role = replica")];
        for _ in 0..self.dice.range(1, 3) {
            let sql = match self.dice.roll(3) {
                0 => self.update(),
                _ => self.insert(),
            };
            steps.push(Step::sql(who, sql));
        }
        steps.push(Step::sql(who, "reset session_replication_role"));
        steps
    }

    fn rebuild(&mut self, world: &World, who: usize) -> String {
        match self.dice.roll(7) {
            0 => "reindex table fetchq_data.q__docs",
            1 => "reindex index fetchq_data.q__docs_pick_idx",
            2 => "reindex index fetchq_data.q__docs_due_idx",
            3 => "cluster fetchq_data.q__docs using q__docs_pkey",
            4 if (0..WORKERS).all(|w| world.is_idle(w)) && world.is_idle(HOLDER) => {
                "reindex table concurrently fetchq_data.q__docs"
            }
            5 => "select fetchq.queue_drop_indexes('q')",
            _ if world.is_idle(who) => "select fetchq.queue_create_indexes('q')",
            _ => "analyze fetchq_data.q__docs",
        }
        .to_owned()
    }

    fn places(&mut self) -> String {
        let n = *self.dice.one(&["null", "1", "2", "2", "3", "100"]);
        format!("select places({n})")
    }

    fn alter(&mut self) -> String {
        match self.dice.roll(8) {
            0 => "alter table fetchq_data.q__docs set (fillfactor = 70)",
            1 => "alter table fetchq_data.q__docs add column if not exists extra int default 7",
            2 => "alter table fetchq_data.q__docs drop column if exists extra",
            3 | 4 => {
                "drop trigger if exists bump on fetchq_data.q__docs;
                 create trigger bump before insert on fetchq_data.q__docs for each row execute function bump()"
            }
            5 | 6 => "drop trigger if exists bump on fetchq_data.q__docs",
            _ => "discard plans",
        }
        .to_owned()
    }
}
