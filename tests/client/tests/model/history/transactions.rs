//! Steps that begin, end and kill transactions.

use super::History;
use crate::model::step::{HOLDER, Step, WORKERS, What};
use crate::model::world::{Block, World};

impl History {
    pub(super) fn begin(&mut self) -> String {
        match self.dice.roll(8) {
            0 => "begin isolation level repeatable read",
            1 => "begin isolation level serializable",
            _ => "begin",
        }
        .to_owned()
    }

    pub(super) fn close(&mut self, world: &World, who: usize) -> Step {
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

    pub(super) fn savepoint(&mut self, world: &World, who: usize) -> String {
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

    pub(super) fn kill(&mut self, who: usize) -> Step {
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

    pub(super) fn churn(&mut self) -> String {
        let list = |of: &[i32]| format!("{of:?}");
        format!(
            "call churn({}, {}, array{}, array{})",
            self.dice.roll(1000) as f64 / 1000.0,
            self.dice.range(10, 40),
            list(&self.versions),
            list(&self.priorities)
        )
    }

    pub(super) fn storm(&mut self) -> Step {
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

    pub(super) fn snapshot(&mut self, world: &World) -> Step {
        Step::sql(
            HOLDER,
            match world.is_idle(HOLDER) {
                // The first statement makes the snapshot, and locks nothing of the queue.
                true => "begin isolation level repeatable read; select count(*) from fetchq.queues",
                false => "commit",
            },
        )
    }
}
