//! Steps in plain SQL: changes of the tables by hand.

use super::History;
use crate::model::step::{Step, What};

impl History {
    pub(super) fn update(&mut self) -> String {
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

    pub(super) fn insert(&mut self) -> String {
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
    pub(super) fn seq(&mut self) -> i64 {
        *self
            .dice
            .one(&[1, 1, 2, 3, 0, -5, i64::MIN, i64::MAX, 1000])
    }

    pub(super) fn copy(&mut self, who: usize) -> Step {
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

    pub(super) fn delete(&mut self) -> String {
        let status = self.status();
        format!(
            "delete from fetchq_data.q__docs where subject in {}",
            self.some(status)
        )
    }

    /// Locks rows; a row that is only locked is alive.
    pub(super) fn lock(&mut self) -> String {
        let how = *self
            .dice
            .one(&["update", "no key update", "share", "key share"]);
        let (status, limit) = (*self.dice.one(&[1, 1, 1, 0, 2]), self.dice.range(1, 5));
        format!(
            "select subject from fetchq_data.q__docs where status = {status} order by seq limit {limit} for {how} skip locked"
        )
    }

    /// A change that an exception rolls back within one statement.
    pub(super) fn undone(&mut self) -> String {
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
}
