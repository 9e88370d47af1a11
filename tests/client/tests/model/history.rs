//! Random histories: the steps, their sessions, and their values.

mod calls;
mod operator;
mod plain_sql;
mod transactions;

use super::dice::Dice;
use super::step::{Step, WORKERS, What};
use super::world::World;

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
}
