//! Steps of an operator: vacuum, truncate, drop, triggers, rebuilt indexes.

use super::History;
use crate::model::step::{CREATE, HOLDER, Step, WORKERS};
use crate::model::world::World;

impl History {
    /// Ends the transactions of all workers, which would otherwise block the operator.
    pub(super) fn clear(&mut self, world: &World) -> Vec<Step> {
        if self.dice.percent(20) {
            return Vec::new();
        }
        (0..WORKERS)
            .filter(|who| !world.is_idle(*who))
            .map(|who| Step::sql(who, *self.dice.one(&["commit", "rollback"])))
            .collect()
    }

    pub(super) fn vacuum(&mut self) -> String {
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
    pub(super) fn truncate(&mut self, world: &World, who: usize) -> Vec<Step> {
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

    pub(super) fn drop_and_create(&mut self, world: &World, who: usize) -> Vec<Step> {
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
    pub(super) fn no_triggers(&mut self, world: &World, who: usize) -> Vec<Step> {
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
    pub(super) fn replica(&mut self, who: usize) -> Vec<Step> {
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

    pub(super) fn rebuild(&mut self, world: &World, who: usize) -> String {
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

    pub(super) fn places(&mut self) -> String {
        let n = *self
            .dice
            .one(&["null", "0", "0", "1", "2", "2", "3", "100"]);
        format!("select places({n})")
    }

    pub(super) fn alter(&mut self) -> String {
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
