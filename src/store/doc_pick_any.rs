//! Whose turn it is, for each list of queues that this session picks from.

use std::cell::RefCell;

use crate::domain::fair_share::FairShares;
use crate::domain::names::QueueName;
use crate::pg::{session, time};

/// So many lists a session keeps in mind.
const LISTS: usize = 64;

struct List {
    queues: Vec<QueueName>,
    weights: Vec<i32>,
    turns: FairShares,
}

thread_local! {
    /// The one that was used last comes last.
    static TURNS: RefCell<Vec<List>> = const { RefCell::new(Vec::new()) };
}

/// Takes up to `n` turns among the queues, as `FairShares::distribute` does. An error leaves them as
/// they were.
pub fn take(queues: &[QueueName], weights: &[i32], n: i32, work: impl FnMut(usize, i32) -> i32) {
    let known = TURNS.with_borrow_mut(|lists| {
        let at = lists
            .iter()
            .position(|list| list.queues == queues && list.weights == weights)?;
        Some(lists[at].turns.clone())
    });
    let mut turns = known.unwrap_or_else(|| FairShares::new(weights, random()));
    // (nothing is borrowed meanwhile: a trigger may pick, too)
    turns.distribute(n, work);
    TURNS.with_borrow_mut(|lists| {
        lists.retain(|list| list.queues != queues || list.weights != weights);
        if lists.len() >= LISTS {
            lists.remove(0);
        }
        lists.push(List {
            queues: queues.to_vec(),
            weights: weights.to_vec(),
            turns,
        });
    });
}

/// Differs between sessions that begin at one moment, and between those that have one
/// number.
fn random() -> u64 {
    let mut x = time::clock().unsigned_abs() ^ (u64::from(session::number()) << 40);
    // The end of splitmix64.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
