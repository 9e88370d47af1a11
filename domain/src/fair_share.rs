//! Fair shares among queues with weights, by smooth weighted round robin.
//!
//! Each document is assigned to a queue in one step. A step adds to the credit of each queue its
//! weight. It then assigns the document to the queue with the highest credit, and subtracts the
//! sum of the weights from that credit. While every queue has documents, each run of steps that
//! is as long as the sum of the weights assigns to each queue exactly its weight.

/// The state of the distribution among a list of queues.
#[derive(Debug, Clone)]
pub struct FairShares {
    /// The weights, divided by their greatest common divisor.
    weights: Vec<i64>,
    /// The credit of each queue.
    credits: Vec<i64>,
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl FairShares {
    /// Starts at a random step, so that many sessions that pick one document each are fair
    /// together.
    ///
    /// `weights` has the weight of each queue, and `random` is a random number.
    pub fn new(weights: &[i32], random: u64) -> Self {
        let divisor = weights.iter().fold(0, |a, b| gcd(a, i64::from(*b))).max(1);
        let weights: Vec<i64> = weights.iter().map(|w| i64::from(*w) / divisor).collect();
        let mut shares = Self {
            credits: vec![0; weights.len()],
            weights,
        };
        let sum = shares.weights.iter().sum::<i64>().unsigned_abs().max(1);
        let all = vec![true; shares.weights.len()];
        for _ in 0..random % sum {
            shares.assign_one(&all);
        }
        shares
    }

    /// Takes one step among the queues that take part. Returns the queue.
    fn assign_one(&mut self, takes_part: &[bool]) -> Option<usize> {
        let mut sum = 0;
        let mut first: Option<usize> = None;
        for at in (0..self.weights.len()).filter(|at| takes_part[*at]) {
            sum += self.weights[at];
            self.credits[at] += self.weights[at];
            if first.is_none_or(|first| self.credits[at] > self.credits[first]) {
                first = Some(at);
            }
        }
        let first = first?;
        self.credits[first] -= sum;
        Some(first)
    }

    /// Takes `n` steps among the queues that take part. Returns how many each queue gets.
    fn assign(&mut self, n: i32, takes_part: &[bool]) -> Vec<i32> {
        let parts = || (0..self.weights.len()).filter(|at| takes_part[*at]);
        let mut shares = vec![0; self.weights.len()];
        let sum: i64 = parts().map(|at| self.weights[at]).sum();
        if sum == 0 {
            return shares;
        }
        // Complete rounds do not change the credits.
        let rounds = i64::from(n) / sum;
        for at in parts() {
            shares[at] = i32::try_from(rounds * self.weights[at]).unwrap_or(n);
        }
        for _ in 0..i64::from(n) % sum {
            if let Some(at) = self.assign_one(takes_part) {
                shares[at] += 1;
            }
        }
        shares
    }

    /// Distributes up to `n` documents among the queues.
    ///
    /// `pick` gets the number of a queue and its share, and returns how many documents it has
    /// picked. A queue that has fewer documents than its share gets no further share, and the
    /// other queues get the rest.
    pub fn distribute(&mut self, n: i32, mut pick: impl FnMut(usize, i32) -> i32) {
        let mut has_more = vec![true; self.weights.len()];
        let mut remaining = n;
        while remaining > 0 && has_more.contains(&true) {
            let took_part = has_more.clone();
            let sum: i64 = self.sum_of(&took_part);
            let shares = self.assign(remaining, &took_part);
            let mut unused = 0;
            for (at, share) in shares.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                let used = pick(at, share).clamp(0, share);
                remaining -= used;
                if used < share {
                    has_more[at] = false;
                    unused += i64::from(share - used);
                    self.credits[at] += i64::from(share - used) * sum;
                }
            }
            // The credits are as if the unused steps had not been taken.
            for at in (0..self.weights.len()).filter(|at| took_part[*at]) {
                self.credits[at] -= unused * self.weights[at];
            }
        }
        // A queue that had no documents does not save credit for later.
        let bound: i64 = self.weights.iter().sum();
        for credit in &mut self.credits {
            *credit = (*credit).clamp(-bound, bound);
        }
    }

    /// Returns the sum of the weights of the queues that take part.
    fn sum_of(&self, takes_part: &[bool]) -> i64 {
        let parts = self
            .weights
            .iter()
            .zip(takes_part)
            .filter(|(_, part)| **part);
        parts.map(|(weight, _)| weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The queue of each of `n` documents that are picked one by one. No queue is empty.
    fn served(shares: &mut FairShares, n: usize) -> Vec<usize> {
        let mut served = Vec::new();
        for _ in 0..n {
            shares.distribute(1, |at, _| {
                served.push(at);
                1
            });
        }
        served
    }

    fn count(served: &[usize], of: usize) -> i64 {
        served.iter().filter(|at| **at == of).count() as i64
    }

    #[test]
    fn every_run_of_steps_has_the_shares_of_the_weights() {
        for weights in [
            vec![1, 1],
            vec![5, 1, 1],
            vec![3, 3, 2],
            vec![7, 2, 4, 1],
            vec![1000, 1],
            vec![20, 10],
        ] {
            for random in [0, 1, 5, 12_345] {
                let mut shares = FairShares::new(&weights, random);
                let reduced = shares.weights.clone();
                let sum: i64 = reduced.iter().sum();
                let order = served(&mut shares, 4 * sum as usize);
                for steps in order.windows(sum as usize) {
                    for (at, weight) in reduced.iter().enumerate() {
                        assert_eq!(count(steps, at), *weight, "{weights:?} from {random}");
                    }
                }
                // The bound of docs/guides/limits-and-order.md.
                for (at, weight) in reduced.iter().enumerate() {
                    for steps in order.windows((2 * sum / weight) as usize) {
                        assert!(steps.contains(&at), "{weights:?}: {at} in {steps:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn one_call_gives_the_same_shares_as_many_calls() {
        let mut one = FairShares::new(&[3, 2, 2], 4);
        let mut many = one.clone();
        let order = served(&mut one, 100);
        let mut got = [0; 3];
        many.distribute(100, |at, n| {
            got[at] = n;
            n
        });
        for (at, n) in got.iter().enumerate() {
            assert_eq!(i64::from(*n), count(&order, at));
        }
        assert_eq!(many.credits, one.credits);
    }

    #[test]
    fn other_queues_get_an_unused_share() {
        let mut shares = FairShares::new(&[1, 1, 1], 0);
        let mut stock = [2, 100, 0];
        let mut got = [0; 3];
        shares.distribute(50, |at, n| {
            let n = n.min(stock[at]);
            stock[at] -= n;
            got[at] += n;
            n
        });
        assert_eq!(got, [2, 48, 0]);
        shares.distribute(100, |at, n| {
            let n = n.min(stock[at]);
            stock[at] -= n;
            got[at] += n;
            n
        });
        assert_eq!(got, [2, 100, 0]);
    }

    #[test]
    fn an_empty_queue_saves_no_credit() {
        let mut shares = FairShares::new(&[1, 1], 0);
        for _ in 0..1000 {
            shares.distribute(10, |at, n| if at == 0 { n } else { 0 });
        }
        let order = served(&mut shares, 20);
        assert!(count(&order[..6], 0) > 0, "{order:?}");
        assert!((9..=12).contains(&count(&order, 1)), "{order:?}");
    }

    #[test]
    fn huge_numbers_end() {
        let mut shares = FairShares::new(&[1000, 999], 3);
        let mut asked = 0;
        shares.distribute(i32::MAX, |_, n| {
            asked += 1;
            n.min(5)
        });
        assert!(asked <= 4);
    }
}
