//! Which queue comes next, for each list of queues that this session picks from.

use crate::pg::lasting::{Lasting, lasting};

use crate::domain::fair_share::FairShares;
use crate::domain::names::QueueName;
use crate::pg::{session, time};

/// How many lists of queues a session remembers. Beyond that it forgets the longest unused.
const MAX_LISTS: usize = 64;

struct RememberedList {
    queues: Vec<QueueName>,
    weights: Vec<i32>,
    shares: FairShares,
}

thread_local! {
    /// In the order of their last use, the latest last.
    static LISTS: Lasting<Vec<RememberedList>> = const { lasting(Vec::new()) };
}

/// Distributes up to `n` picks among the queues, in proportion to their weights and continuing
/// from the last call with the same list, as `FairShares::distribute` does. `pick` gets the
/// position of a queue in the list and a number of documents, and returns how many it picked. An
/// error in `pick` leaves the shares as they were before the call.
pub fn distribute_picks(
    queues: &[QueueName],
    weights: &[i32],
    n: i32,
    pick: impl FnMut(usize, i32) -> i32,
) {
    let known = LISTS.with(|lists| {
        let lists = &mut *lists.borrow_mut();
        let at = lists
            .iter()
            .position(|list| list.queues == queues && list.weights == weights)?;
        Some(lists[at].shares.clone())
    });
    let mut shares = known.unwrap_or_else(|| FairShares::new(weights, random()));
    // The list is not borrowed meanwhile, because a trigger may pick too.
    shares.distribute(n, pick);
    LISTS.with(|lists| {
        let lists = &mut *lists.borrow_mut();
        lists.retain(|list| list.queues != queues || list.weights != weights);
        if lists.len() >= MAX_LISTS {
            lists.remove(0);
        }
        lists.push(RememberedList {
            queues: queues.to_vec(),
            weights: weights.to_vec(),
            shares,
        });
    });
}

/// A number that differs between sessions that begin at the same moment, and between sessions
/// that get the same session number one after the other.
fn random() -> u64 {
    let mut x = time::clock().unsigned_abs() ^ (u64::from(session::number()) << 40);
    // The finalizer of splitmix64, with its constants.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
