//! The status of a document.

/// The status of a document. Its number is the one in the column `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    /// The document will not be processed, because it failed or was cancelled.
    Killed = -1,
    /// The document waits for its time.
    Planned = 0,
    /// The document is due, and waits for a worker.
    Pending = 1,
    /// A worker has leased the document.
    Active = 2,
    /// The document was processed.
    Completed = 3,
}

impl Status {
    /// Returns the status with this number in the table, or None for an unknown number.
    pub fn from_code(code: i32) -> Option<Self> {
        Some(match code {
            -1 => Self::Killed,
            0 => Self::Planned,
            1 => Self::Pending,
            2 => Self::Active,
            3 => Self::Completed,
            _ => return None,
        })
    }

    /// Returns the number of the status in the table.
    pub fn code(self) -> i32 {
        self as i32
    }

    /// All statuses, in the order of their numbers.
    pub const ALL: [Self; 5] = [
        Self::Killed,
        Self::Planned,
        Self::Pending,
        Self::Active,
        Self::Completed,
    ];

    /// Returns a bit that no other status has, for sets of statuses.
    pub fn bit(self) -> u32 {
        1 << (self.code() + 1)
    }

    /// Returns the name of the status in messages and filters.
    pub fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Planned => "planned",
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Completed => "completed",
        }
    }

    /// Returns the name of the gauge that counts the documents with this status. The
    /// notification channel of the status ends with it.
    pub fn gauge(self) -> &'static str {
        match self {
            Self::Killed => "kll",
            Self::Planned => "pln",
            Self::Pending => "pnd",
            Self::Active => "act",
            Self::Completed => "cpl",
        }
    }

    /// Returns the status of a document that waits: pending when it is due, else planned.
    pub fn planned_or_pending(is_due: bool) -> Self {
        if is_due { Self::Pending } else { Self::Planned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_round_trip() {
        for code in -1..=3 {
            assert_eq!(Status::from_code(code).unwrap().code(), code);
        }
        let all = Status::ALL.iter().fold(0, |set, status| set | status.bit());
        assert_eq!(all, 0b11111);
        assert_eq!(Status::from_code(4), None);
        assert_eq!(Status::from_code(-2), None);
    }
}
