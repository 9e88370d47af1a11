//! Transaction IDs, for comparisons.

/// A transaction ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid(u32);

/// The first ID of a transaction; those below it are before all others.
const FIRST_NORMAL: u32 = 3;

impl Xid {
    /// Before all transactions.
    pub const NONE: Self = Self(0);

    /// The transaction with this number.
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// Returns whether the transaction is before another one, as `TransactionIdPrecedes` of the
    /// server does.
    pub fn is_before(self, other: Self) -> bool {
        if self.0 < FIRST_NORMAL || other.0 < FIRST_NORMAL {
            return self.0 < other.0;
        }
        // The IDs go round in a circle, in which half of them are before each one.
        (self.0.wrapping_sub(other.0) as i32) < 0
    }

    /// Returns the later one of two transactions.
    pub fn latest(self, other: Self) -> Self {
        if self.is_before(other) { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_go_round_in_a_circle() {
        let [first, last] = [Xid::new(3), Xid::new(u32::MAX)];
        assert!(last.is_before(first) && !first.is_before(last));
        assert!(first.is_before(Xid::new(4)) && !first.is_before(first));
        assert_eq!(last.latest(first), first);
        for id in [3, 1 << 31, u32::MAX] {
            assert!(Xid::NONE.is_before(Xid::new(id)));
            assert_eq!(Xid::new(id).latest(Xid::NONE), Xid::new(id));
        }
    }
}
