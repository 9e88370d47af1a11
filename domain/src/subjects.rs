//! Generated subjects, which are short, unique on a server, and sorted by time.
//!
//! A subject has 13 characters of 0-9 and a-v, and subjects sort as the numbers for which they
//! stand. A number has 51 bits of microseconds since 2000, which last until 2071, and 14 bits of
//! the session. A UUID would be unique among servers too. But it is three times as long, and a
//! subject is written four times in the life of a document, into the row and its index entries.

use std::cell::Cell;

/// The number of bits of the session.
///
/// 16384 sessions at a time are no practical limit. If two sessions had the same bits, the
/// primary key would still prevent two documents with the same subject.
const SESSION_BITS: u32 = 14;

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";

/// The number of characters: 65 bits, 5 in each.
const LENGTH: usize = 13;

thread_local! {
    /// The time in the last subject of this session, in microseconds since 2000.
    static LAST: Cell<i64> = const { Cell::new(i64::MIN) };
}

/// Generates a subject that neither this session nor another one has generated before.
///
/// `now` is in microseconds since 2000. `session` is the number of the session, which no other
/// running session has.
pub fn generate(now: i64, session: u32) -> String {
    let moment = LAST.with(|last| {
        let moment = now.max(last.get().saturating_add(1));
        last.set(moment);
        moment
    });
    text(moment, session)
}

/// The first subject that can be generated at a time, in microseconds since 2000.
pub fn first_at(time: i64) -> String {
    text(time, 0)
}

fn text(moment: i64, session: u32) -> String {
    let session = u128::from(session & ((1 << SESSION_BITS) - 1));
    let number = (u128::from(moment.unsigned_abs()) << SESSION_BITS) | session;
    (0..LENGTH)
        .rev()
        .map(|at| char::from(DIGITS[(number >> (5 * at)) as usize & 31]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_of_time_and_then_of_sessions() {
        let moments = [0, 1, 31, 32, 846_374_400_000_000, (1 << 51) - 1];
        let all: Vec<String> = moments
            .iter()
            .flat_map(|moment| [0, 1, 16_383].map(|session| text(*moment, session)))
            .collect();
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        assert!(all.iter().all(|subject| subject.len() == 13));
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back() {
        let first = generate(1_000, 7);
        let more = [1_000, 1_000, 900, 1_001].map(|now| generate(now, 7));
        assert_eq!(first, text(1_000, 7));
        assert_eq!(more, [1_001, 1_002, 1_003, 1_004].map(|at| text(at, 7)));
        assert_eq!(generate(5_000, 7), text(5_000, 7));
    }
}
