//! A random number generator with a seed: the same seed makes the same history.

/// SplitMix64.
#[derive(Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns 0 to `sides - 1`.
    pub fn roll(&mut self, sides: usize) -> usize {
        (self.next() % sides as u64) as usize
    }

    /// Returns a number from `low` to `high`, both included.
    pub fn range(&mut self, low: usize, high: usize) -> usize {
        low + self.roll(high - low + 1)
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.roll(100) < chance
    }

    pub fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.roll(of.len())]
    }

    /// Returns an index, chosen by weights that are not all 0.
    pub fn weighted(&mut self, weights: &[usize]) -> usize {
        let mut left = self.roll(weights.iter().sum());
        for (at, weight) in weights.iter().enumerate() {
            if left < *weight {
                return at;
            }
            left -= weight;
        }
        unreachable!("the weights were added up")
    }
}
