//! Wrong passwords, and for how long an address that has sent some has to wait.
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::limits::lock;

/// An address can send this number of wrong passwords at once.
const FREE: u32 = 5;

/// The pause after the next one. Each further one doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// No pause is longer.
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// An address that has sent none for this time begins anew.
const FORGET_AFTER: Duration = Duration::from_secs(900);

/// As many addresses are remembered.
const MAX_ADDRESSES: usize = 10_000;

/// What an address has sent.
#[derive(Debug)]
struct Failures {
    count: u32,
    last: Instant,
    /// One password of an address is checked at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Failures {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= FORGET_AFTER
    }

    /// How long the address has to wait.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let doubled = self.count.checked_sub(FREE)?;
        let pause = FIRST_PAUSE
            .saturating_mul(2_u32.saturating_pow(doubled))
            .min(LONGEST_PAUSE);
        let rest = pause.saturating_sub(now.saturating_duration_since(self.last));
        (!rest.is_zero()).then_some(rest)
    }
}

/// The attempts to log in that have failed, by address.
#[derive(Debug, Default)]
pub struct Attempts(Mutex<HashMap<IpAddr, Failures>>);

impl Attempts {
    /// The turn of an address.
    pub fn turn(&self, from: IpAddr) -> Arc<tokio::sync::Mutex<()>> {
        let now = Instant::now();
        let mut all = lock(&self.0);
        if all.len() >= MAX_ADDRESSES && !all.contains_key(&from) {
            make_room(&mut all, now);
        }
        let failures = all.entry(from).or_insert_with(|| Failures {
            count: 0,
            last: now,
            turn: Arc::default(),
        });
        failures.turn.clone()
    }

    /// Counts an attempt that has its turn, before its password is checked.
    ///
    /// # Errors
    /// How long the address has to wait.
    pub fn begin(&self, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let mut all = lock(&self.0);
        let Some(failures) = all.get_mut(&from) else {
            return Ok(());
        };
        if failures.is_over(now) {
            failures.count = 0;
        }
        if let Some(rest) = failures.pause(now) {
            return Err(rest);
        }
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        Ok(())
    }

    /// Forgets the failures of an address from which somebody has logged in.
    pub fn succeeded(&self, from: IpAddr) {
        if let Some(failures) = lock(&self.0).get_mut(&from) {
            failures.count = 0;
        }
    }
}

/// Forgets the addresses that have nothing to wait for, or else the one that was silent for longest.
fn make_room(all: &mut HashMap<IpAddr, Failures>, now: Instant) {
    let is_idle = |failures: &Failures| Arc::strong_count(&failures.turn) == 1;
    all.retain(|_, failures| {
        !(is_idle(failures) && (failures.count == 0 || failures.is_over(now)))
    });
    if all.len() >= MAX_ADDRESSES {
        let oldest = all.iter().min_by_key(|(_, failures)| failures.last);
        if let Some(address) = oldest.map(|(address, _)| *address) {
            all.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));

    fn attempt(attempts: &Attempts, from: IpAddr, now: Instant) -> Result<(), Duration> {
        let _ = attempts.turn(from);
        attempts.begin(from, now)
    }

    #[test]
    fn wrong_passwords_are_answered_with_pauses_that_double() {
        let attempts = Attempts::default();
        let mut now = Instant::now();
        for _ in 0..FREE {
            assert_eq!(attempt(&attempts, ONE, now), Ok(()));
        }
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let pause = Duration::from_secs(seconds);
            assert_eq!(attempt(&attempts, ONE, now), Err(pause));
            let almost = now + pause - Duration::from_millis(1);
            assert_eq!(
                attempt(&attempts, ONE, almost),
                Err(Duration::from_millis(1))
            );
            now += pause;
            assert_eq!(attempt(&attempts, ONE, now), Ok(()), "after {seconds} s");
        }
        assert_eq!(attempt(&attempts, OTHER, now), Ok(()), "another address");
        assert_eq!(attempt(&attempts, ONE, now + FORGET_AFTER), Ok(()));
        assert_eq!(
            attempt(&attempts, ONE, now + FORGET_AFTER),
            Ok(()),
            "it begins anew"
        );
    }

    #[test]
    fn a_right_password_ends_the_pauses() {
        let attempts = Attempts::default();
        let now = Instant::now();
        for _ in 0..FREE {
            assert_eq!(attempt(&attempts, ONE, now), Ok(()));
            attempts.succeeded(ONE);
        }
        for _ in 0..FREE {
            assert_eq!(attempt(&attempts, ONE, now), Ok(()));
        }
        assert!(attempt(&attempts, ONE, now).is_err());
    }

    #[test]
    fn the_addresses_that_are_remembered_have_a_bound() {
        let attempts = Attempts::default();
        let now = Instant::now();
        for number in 0..u32::try_from(MAX_ADDRESSES + 10).expect("a small number") {
            assert_eq!(attempt(&attempts, IpAddr::V4(number.into()), now), Ok(()));
        }
        assert_eq!(lock(&attempts.0).len(), MAX_ADDRESSES);
    }
}
