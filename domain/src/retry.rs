//! The backoff: how long a document that was rejected waits before its next attempt.

/// A retry policy with exponential backoff and jitter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retry {
    /// The delay after the first attempt, in microseconds.
    pub base: i64,
    /// The factor by which the delay grows with each attempt.
    pub factor: f64,
    /// The longest delay, in microseconds.
    pub max: Option<i64>,
    /// The part of the delay that is random. 0.1 makes it up to ten percent shorter or longer.
    pub jitter: f64,
}

/// The longest delay of every policy: ten years, in microseconds.
const MAX_DELAY_US: f64 = 10.0 * 365.25 * 86_400.0 * 1e6;

impl Retry {
    /// Returns the delay after this number of attempts, in microseconds.
    ///
    /// `chance` is a random number from 0 to 1.
    pub fn delay(&self, attempts: i32, chance: f64) -> i64 {
        let max = self
            .max
            .map_or(MAX_DELAY_US, |max| max as f64)
            .min(MAX_DELAY_US);
        let grown = self.base as f64 * self.factor.powi(attempts.max(1) - 1);
        // The product of infinity and 0 is not a number.
        let grown = if grown.is_nan() { 0.0 } else { grown.min(max) };
        let spread = 1.0 + self.jitter * (2.0 * chance - 1.0);
        (grown * spread).clamp(0.0, max) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn retry(jitter: f64) -> Retry {
        Retry {
            base: 10 * SECOND,
            factor: 2.0,
            max: Some(60 * SECOND),
            jitter,
        }
    }

    #[test]
    fn it_grows_up_to_its_maximum() {
        let delays: Vec<i64> = (1..=5).map(|n| retry(0.0).delay(n, 0.9) / SECOND).collect();
        assert_eq!(delays, [10, 20, 40, 60, 60]);
        assert_eq!(retry(0.0).delay(0, 0.5), 10 * SECOND);
        assert_eq!(retry(0.0).delay(i32::MAX, 0.5), 60 * SECOND);
    }

    #[test]
    fn chance_spreads_it() {
        assert_eq!(retry(0.5).delay(1, 0.0), 5 * SECOND);
        assert_eq!(retry(0.5).delay(1, 0.5), 10 * SECOND);
        assert_eq!(retry(0.5).delay(1, 1.0), 15 * SECOND);
        // The delay never exceeds the maximum.
        assert_eq!(retry(0.5).delay(9, 1.0), 60 * SECOND);
    }

    #[test]
    fn nothing_stays_nothing() {
        let none = Retry {
            base: 0,
            max: None,
            ..retry(0.0)
        };
        assert_eq!(none.delay(i32::MAX, 1.0), 0);
    }
}
