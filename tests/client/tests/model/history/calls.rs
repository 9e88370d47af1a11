//! Steps that call functions of fetchq.

use super::History;
use crate::model::step::{Step, What};
use crate::model::world::World;

impl History {
    pub(super) fn push(&mut self) -> String {
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
    pub(super) fn documents(&mut self) -> String {
        let mut documents = Vec::new();
        for _ in 0..self.dice.range(0, 12) {
            let (subject, at) = (self.subject(), self.time());
            documents.push(format!(
                "jsonb_build_object('subject', '{subject}', 'version', {}, 'priority', {}, 'due_at', {at})",
                self.version(),
                self.priority()
            ));
        }
        format!("jsonb_build_array({})", documents.join(", "))
    }

    pub(super) fn push_many(&mut self, world: &World) -> String {
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

    pub(super) fn upsert(&mut self) -> String {
        let (subject, at) = (self.subject(), self.time());
        format!(
            "select fetchq.doc_upsert('q', '{subject}', {}, {}, {at}, '{{}}')",
            self.version(),
            self.priority()
        )
    }

    pub(super) fn mode(&mut self) -> &'static str {
        const MODES: [&str; 12] = [
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
            "once",
            "replace,once",
        ];
        MODES[self.dice.roll(MODES.len())]
    }

    /// Puts of new and existing documents. Those that exist may have attempts, and keep them.
    pub(super) fn put(&mut self, world: &World) -> String {
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
            // Documents that were picked before, and not only the latest subjects. A leased one runs
            // again when its lease ends.
            1 | 2 => {
                let status = *self.dice.one(&[0, 1, 2, 3]);
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
    pub(super) fn together(&mut self, world: &World) -> String {
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

    pub(super) fn pick(&mut self, who: usize) -> Step {
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

    pub(super) fn pick_and_settle(&mut self) -> String {
        let (version, limit) = (self.version(), *self.dice.one(&[1, 1, 2, 5, 30]));
        let settle = self.settling();
        format!("select {settle} from fetchq.doc_pick('q', {version}, {limit}, '1h') d")
    }

    /// A call that settles a row `d` with a subject.
    pub(super) fn settling(&mut self) -> String {
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
    pub(super) fn some(&mut self, status: i32) -> String {
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

    pub(super) fn settle(&mut self, world: &World) -> String {
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
    pub(super) fn picks(&mut self) -> String {
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

    pub(super) fn pushes(&mut self) -> String {
        let (n, at) = (self.dice.range(10, 60), self.time());
        let (version, priority) = (self.version(), self.priority());
        format!("call pushes({n}, {version}, {priority}, {at})")
    }

    pub(super) fn maintain(&mut self) -> String {
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
}
