//! The life of a document.

/// `status` of a document as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Status {
    Killed = -1,
    Planned = 0,
    Pending = 1,
    Active = 2,
    Completed = 3,
}

impl Status {
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

    pub fn code(self) -> i32 {
        self as i32
    }

    pub const ALL: [Self; 5] = [
        Self::Killed,
        Self::Planned,
        Self::Pending,
        Self::Active,
        Self::Completed,
    ];

    /// A bit of its own, for sets of states.
    pub fn bit(self) -> u32 {
        1 << (self.code() + 1)
    }

    /// The word used in messages.
    pub fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Planned => "planned",
            Self::Pending => "pending",
            Self::Active => "active",
            Self::Completed => "completed",
        }
    }

    /// The metric, and the notification channel, of the documents in this state.
    pub fn gauge(self) -> &'static str {
        match self {
            Self::Killed => "kll",
            Self::Planned => "pln",
            Self::Pending => "pnd",
            Self::Active => "act",
            Self::Completed => "cpl",
        }
    }

    /// A document that is due can be picked, another one waits for its time.
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
