//! What the poller has seen in the last minutes, in memory: sparklines and charts come from here.
use std::collections::{HashMap, VecDeque};

use crate::calls::QueueStat;

/// All queues together keep no more samples than that: 48 MB.
const MAX_SAMPLES: usize = 1_000_000;

/// A queue keeps ten minutes of samples each second, if there is room.
const MAX_LENGTH: usize = 600;

/// A queue keeps as many samples as that, however many queues there are.
const MIN_LENGTH: usize = 30;

/// A queue at one moment. What is not known is NaN.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Seconds since 1970.
    pub at: f64,
    pub ready: f32,
    pub active: f32,
    pub waiting: f32,
    pub pushed: f32,
    pub picked: f32,
    pub succeeded: f32,
    pub failed: f32,
    pub wait_p95: f32,
    pub run_p95: f32,
}

/// Totals of the sample before, from which rates are made.
#[derive(Debug, Clone, Copy)]
struct Totals {
    at: f64,
    pushed: i64,
    picked: i64,
    succeeded: i64,
    failed: i64,
}

#[derive(Debug, Default)]
struct Track {
    samples: VecDeque<Sample>,
    last: Option<Totals>,
    round: u64,
}

/// The samples of all queues of a database.
#[derive(Debug, Default)]
pub struct Ring {
    tracks: HashMap<String, Track>,
    round: u64,
}

/// How many documents a second a queue has handled lately.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rates {
    pub pushed: f64,
    pub picked: f64,
    pub succeeded: f64,
    pub failed: f64,
}

impl Ring {
    /// Adds a sample of each queue, and forgets the queues that are gone.
    pub fn record(&mut self, at: f64, queues: &[QueueStat]) {
        self.round += 1;
        let length = (MAX_SAMPLES / queues.len().max(1)).clamp(MIN_LENGTH, MAX_LENGTH);
        for queue in queues {
            if !self.tracks.contains_key(&queue.queue) {
                self.tracks.insert(queue.queue.clone(), Track::default());
            }
            if let Some(track) = self.tracks.get_mut(&queue.queue) {
                track.round = self.round;
                track.add(at, queue);
                while track.samples.len() > length {
                    track.samples.pop_front();
                }
            }
        }
        let round = self.round;
        self.tracks.retain(|_, track| track.round == round);
    }

    /// The samples of a queue, the oldest first.
    pub fn samples(&self, queue: &str) -> Vec<Sample> {
        self.tracks
            .get(queue)
            .map(|track| track.samples.iter().copied().collect())
            .unwrap_or_default()
    }

    /// The newest sample of a queue.
    pub fn newest(&self, queue: &str) -> Option<Sample> {
        self.tracks
            .get(queue)
            .and_then(|track| track.samples.back().copied())
    }

    /// The rates of a queue over its last ten samples.
    pub fn rates(&self, queue: &str) -> Rates {
        let Some(track) = self.tracks.get(queue) else {
            return Rates::default();
        };
        let mean = |value: fn(&Sample) -> f32| {
            let known: Vec<f64> = track
                .samples
                .iter()
                .rev()
                .take(10)
                .map(|s| f64::from(value(s)))
                .filter(|v| v.is_finite())
                .collect();
            if known.is_empty() {
                0.0
            } else {
                known.iter().sum::<f64>() / known.len() as f64
            }
        };
        Rates {
            pushed: mean(|s| s.pushed),
            picked: mean(|s| s.picked),
            succeeded: mean(|s| s.succeeded),
            failed: mean(|s| s.failed),
        }
    }
}

impl Track {
    fn add(&mut self, at: f64, queue: &QueueStat) {
        let now = Totals {
            at,
            pushed: queue.pushed.unwrap_or(0),
            picked: queue.picked.unwrap_or(0),
            succeeded: queue.succeeded.unwrap_or(0),
            failed: queue.failed.unwrap_or(0),
        };
        let is_known = queue.pushed.is_some();
        let rate = |value: fn(&Totals) -> i64| match (&self.last, is_known) {
            (Some(last), true) if now.at > last.at => {
                // Totals that fall were reset.
                let difference = (value(&now) - value(last)).max(0);
                (difference as f64 / (now.at - last.at)) as f32
            }
            _ => f32::NAN,
        };
        let waiting = match (queue.retrying, queue.blocked, queue.planned) {
            (None, None, None) => f32::NAN,
            (a, b, c) => (a.unwrap_or(0) + b.unwrap_or(0) + c.unwrap_or(0)) as f32,
        };
        let sample = Sample {
            at,
            ready: queue.ready.map_or(f32::NAN, |n| n as f32),
            active: queue.active.map_or(f32::NAN, |n| n as f32),
            waiting,
            pushed: rate(|t| t.pushed),
            picked: rate(|t| t.picked),
            succeeded: rate(|t| t.succeeded),
            failed: rate(|t| t.failed),
            wait_p95: queue.wait_p95.map_or(f32::NAN, |n| n as f32),
            run_p95: queue.run_p95.map_or(f32::NAN, |n| n as f32),
        };
        self.samples.push_back(sample);
        if is_known {
            self.last = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, pushed: Option<i64>) -> QueueStat {
        QueueStat {
            ready: Some(1),
            pushed,
            picked: pushed,
            succeeded: pushed,
            failed: pushed,
            ..QueueStat::named(name)
        }
    }

    #[test]
    fn totals_that_were_reset_or_are_unknown_make_no_rate() {
        let mut ring = Ring::default();
        for (at, pushed) in [
            (1.0, Some(10)),
            (2.0, Some(30)),
            (3.0, None),
            (4.0, Some(70)),
            (5.0, Some(0)),
        ] {
            ring.record(at, &[stat("a", pushed)]);
        }
        let pushed: Vec<f32> = ring.samples("a").iter().map(|s| s.pushed).collect();
        assert!(pushed[0].is_nan() && pushed[2].is_nan());
        assert_eq!([pushed[1], pushed[3], pushed[4]], [20.0, 20.0, 0.0]);
    }

    #[test]
    fn a_queue_that_is_gone_is_forgotten_and_a_ring_is_bounded() {
        let mut ring = Ring::default();
        ring.record(0.0, &[stat("gone", None)]);
        for at in 1..=(MAX_LENGTH + 5) {
            ring.record(at as f64, &[stat("a", None)]);
        }
        assert!(ring.samples("gone").is_empty());
        assert_eq!(ring.samples("a").len(), MAX_LENGTH);
    }
}
