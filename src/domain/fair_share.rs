//! Turns among queues, by weights: smooth weighted round robin.
//!
//! Each turn adds to the credit of each its weight, and takes the sum of the weights from
//! the one whose credit is the highest: its turn. While all have something, every stretch
//! of as many turns as the sum of the weights gives each exactly its weight.

/// The turns of a list of queues.
#[derive(Debug, Clone)]
pub struct Turns {
    weights: Vec<i64>,
    credits: Vec<i64>,
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Turns {
    /// From a random place on, so that many who take one turn each are fair together.
    pub fn new(weights: &[i32], random: u64) -> Self {
        let divisor = weights.iter().fold(0, |a, b| gcd(a, i64::from(*b))).max(1);
        let weights: Vec<i64> = weights.iter().map(|w| i64::from(*w) / divisor).collect();
        let mut turns = Self {
            credits: vec![0; weights.len()],
            weights,
        };
        let sum = turns.weights.iter().sum::<i64>().unsigned_abs().max(1);
        let all = vec![true; turns.weights.len()];
        for _ in 0..random % sum {
            turns.turn(&all);
        }
        turns
    }

    fn turn(&mut self, takes_part: &[bool]) -> Option<usize> {
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

    /// How many of the next turns each one gets of those who take part.
    fn share(&mut self, n: i32, takes_part: &[bool]) -> Vec<i32> {
        let parts = || (0..self.weights.len()).filter(|at| takes_part[*at]);
        let mut shares = vec![0; self.weights.len()];
        let sum: i64 = parts().map(|at| self.weights[at]).sum();
        if sum == 0 {
            return shares;
        }
        // Whole rounds leave the credits as they are.
        let rounds = i64::from(n) / sum;
        for at in parts() {
            shares[at] = i32::try_from(rounds * self.weights[at]).unwrap_or(n);
        }
        for _ in 0..i64::from(n) % sum {
            if let Some(at) = self.turn(takes_part) {
                shares[at] += 1;
            }
        }
        shares
    }

    /// Takes up to `n` turns: `take` is told which queue, and how many, and says how many
    /// of them it could use. Who uses less has no more, and others get the rest.
    pub fn take(&mut self, n: i32, mut take: impl FnMut(usize, i32) -> i32) {
        let mut has_more = vec![true; self.weights.len()];
        let mut left = n;
        while left > 0 && has_more.contains(&true) {
            let took_part = has_more.clone();
            let sum: i64 = self.sum_of(&took_part);
            let shares = self.share(left, &took_part);
            let mut unused = 0;
            for (at, share) in shares.into_iter().enumerate().filter(|(_, n)| *n > 0) {
                let used = take(at, share).clamp(0, share);
                left -= used;
                if used < share {
                    has_more[at] = false;
                    unused += i64::from(share - used);
                    self.credits[at] += i64::from(share - used) * sum;
                }
            }
            // These turns were none.
            for at in (0..self.weights.len()).filter(|at| took_part[*at]) {
                self.credits[at] -= unused * self.weights[at];
            }
        }
        // Who had nothing does not save up turns for later.
        let bound: i64 = self.weights.iter().sum();
        for credit in &mut self.credits {
            *credit = (*credit).clamp(-bound, bound);
        }
    }

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

    /// Who gets each of `n` turns, one by one; all have something.
    fn served(turns: &mut Turns, n: usize) -> Vec<usize> {
        let mut served = Vec::new();
        for _ in 0..n {
            turns.take(1, |at, _| {
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
    fn every_stretch_has_the_shares_of_the_weights() {
        for weights in [
            vec![1, 1],
            vec![5, 1, 1],
            vec![3, 3, 2],
            vec![7, 2, 4, 1],
            vec![1000, 1],
            vec![20, 10],
        ] {
            for random in [0, 1, 5, 12_345] {
                let mut turns = Turns::new(&weights, random);
                let reduced = turns.weights.clone();
                let sum: i64 = reduced.iter().sum();
                let order = served(&mut turns, 4 * sum as usize);
                for stretch in order.windows(sum as usize) {
                    for (at, weight) in reduced.iter().enumerate() {
                        assert_eq!(count(stretch, at), *weight, "{weights:?} from {random}");
                    }
                }
                // The bound of docs/flow-control.md.
                for (at, weight) in reduced.iter().enumerate() {
                    for stretch in order.windows((2 * sum / weight) as usize) {
                        assert!(stretch.contains(&at), "{weights:?}: {at} in {stretch:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn shares_of_one_call_are_those_of_as_many() {
        let mut one = Turns::new(&[3, 2, 2], 4);
        let mut many = one.clone();
        let order = served(&mut one, 100);
        let mut got = [0; 3];
        many.take(100, |at, n| {
            got[at] = n;
            n
        });
        for (at, n) in got.iter().enumerate() {
            assert_eq!(i64::from(*n), count(&order, at));
        }
        assert_eq!(many.credits, one.credits);
    }

    #[test]
    fn what_one_does_not_use_others_get() {
        let mut turns = Turns::new(&[1, 1, 1], 0);
        let mut stock = [2, 100, 0];
        let mut got = [0; 3];
        turns.take(50, |at, n| {
            let n = n.min(stock[at]);
            stock[at] -= n;
            got[at] += n;
            n
        });
        assert_eq!(got, [2, 48, 0]);
        turns.take(100, |at, n| {
            let n = n.min(stock[at]);
            stock[at] -= n;
            got[at] += n;
            n
        });
        assert_eq!(got, [2, 100, 0]);
    }

    #[test]
    fn who_had_nothing_saves_up_nothing() {
        let mut turns = Turns::new(&[1, 1], 0);
        for _ in 0..1000 {
            turns.take(10, |at, n| if at == 0 { n } else { 0 });
        }
        let order = served(&mut turns, 20);
        assert!(count(&order[..6], 0) > 0, "{order:?}");
        assert!((9..=12).contains(&count(&order, 1)), "{order:?}");
    }

    #[test]
    fn huge_numbers_end() {
        let mut turns = Turns::new(&[1000, 999], 3);
        let mut asked = 0;
        turns.take(i32::MAX, |_, n| {
            asked += 1;
            n.min(5)
        });
        assert!(asked <= 4);
    }
}
