//! A part of the table of late leases. There is no PostgreSQL in here. The caller holds the lock of the part.

use crate::ready::key::PickKey;

/// Documents that a part can have.
pub const ENTRIES: usize = 64;

/// The name of a document. Two documents of a table can have the same one, by chance: of those, only one has
/// a late lease at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Name {
    pub database: u32,
    pub table: u32,
    pub subject: u64,
}

/// A transaction that is open. 0: none.
pub type Owner = u64;

/// A lease that the row does not have yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Where the row was.
    pub block: u32,
    pub offset: u16,
    pub version: i32,
    pub priority: i32,
    /// The key of the row in the pick index.
    pub key: PickKey,
    /// With `seq`, it tells the document from others that have had its subject.
    pub created_at: i64,
    pub number: i64,
    pub worker_session: i64,
    /// In microseconds since 2000.
    pub picked_at: i64,
    pub expires_at: i64,
    /// When it is to be written.
    pub write_at: i64,
}

impl Lease {
    /// What no other document has.
    fn document(&self) -> (i64, i64) {
        (self.key.seq, self.created_at)
    }

    const NONE: Self = Self {
        block: 0,
        offset: 0,
        version: 0,
        priority: 0,
        key: PickKey::LAST,
        created_at: 0,
        number: 0,
        worker_session: 0,
        picked_at: 0,
        expires_at: 0,
        write_at: 0,
    };
}

/// What an entry says of its document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It was leased by a transaction that is open.
    Claimed,
    /// It is leased.
    Leased,
    /// It is leased, and a transaction that is open changes its row.
    Held,
    /// It is not leased, and transactions that are open may change its row: the row decides between them.
    Reserved,
}

#[derive(Clone, Copy)]
struct Entry {
    name: Name,
    state: State,
    /// 0 for what is leased or reserved.
    owner: Owner,
    /// How often it is reserved.
    reserved: u32,
    lease: Lease,
}

/// The entries of some documents.
pub struct Part {
    used: u64,
    entries: [Entry; ENTRIES],
}

/// The outcome of [`Part::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The document is leased.
    Done,
    /// The document is leased, in place of one that is gone, which had this lease.
    Replaced(Lease),
    /// A document that had its subject has a lease of this number. If this one is there, that one is gone: SQL of
    /// somebody's has removed it.
    Other(i64),
    /// It cannot be leased here now. If it has no lease, its row decides.
    InRow,
    /// It is leased.
    Taken,
}

/// The outcome of [`Part::hold`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It has no lease here.
    Missing,
    /// It has none, and nobody can lease it here until this transaction ends.
    Reserved,
    /// This transaction holds its lease already: the row says what it is.
    Own,
    /// Another transaction has its lease.
    Busy(Owner),
    /// It has this lease, which is held now.
    Lease(Lease, State),
    /// There is no room.
    Full,
}

impl Part {
    /// A part without entries.
    pub const fn new() -> Self {
        Self {
            used: 0,
            entries: [Entry {
                name: Name {
                    database: 0,
                    table: 0,
                    subject: 0,
                },
                state: State::Reserved,
                owner: 0,
                reserved: 0,
                lease: Lease::NONE,
            }; ENTRIES],
        }
    }

    /// How many entries it has.
    pub fn used(&self) -> i32 {
        self.used.count_ones().cast_signed()
    }

    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let mut used = self.used;
        std::iter::from_fn(move || {
            (used != 0).then(|| {
                let at = used.trailing_zeros() as usize;
                used &= used - 1;
                at
            })
        })
    }

    fn position(&self, name: &Name) -> Option<usize> {
        self.places().find(|at| self.entries[*at].name == *name)
    }

    fn add(&mut self, entry: Entry) -> bool {
        let at = (!self.used).trailing_zeros() as usize;
        if at >= ENTRIES {
            return false;
        }
        self.used |= 1 << at;
        self.entries[at] = entry;
        true
    }

    /// Leases a document. `gone`: the number of a lease whose document is gone.
    pub fn claim(&mut self, name: Name, lease: Lease, owner: Owner, gone: Option<i64>) -> Claim {
        let entry = Entry {
            name,
            state: State::Claimed,
            owner,
            reserved: 0,
            lease,
        };
        let Some(at) = self.position(&name) else {
            return match self.add(entry) {
                true => Claim::Done,
                false => Claim::InRow,
            };
        };
        let known = &mut self.entries[at];
        match known.state {
            State::Leased if known.lease.document() != lease.document() => {
                if gone != Some(known.lease.number) {
                    return Claim::Other(known.lease.number);
                }
                let gone = known.lease;
                *known = entry;
                Claim::Replaced(gone)
            }
            State::Held if known.owner == owner => Claim::InRow,
            State::Leased | State::Claimed | State::Held => Claim::Taken,
            State::Reserved => Claim::InRow,
        }
    }

    /// Says what [`Part::hold`] would find, and changes nothing. `Missing` also for what is reserved.
    pub fn look(&self, name: &Name, owner: Owner) -> Hold {
        let Some(at) = self.position(name) else {
            return Hold::Missing;
        };
        let known = &self.entries[at];
        match known.state {
            State::Reserved => Hold::Missing,
            State::Held if known.owner == owner => Hold::Own,
            State::Leased => Hold::Lease(known.lease, known.state),
            State::Claimed if known.owner == owner => Hold::Lease(known.lease, known.state),
            State::Claimed | State::Held => Hold::Busy(known.owner),
        }
    }

    /// Reserves a document. One that is leased stays as it is: the outcome is that of [`Part::look`].
    pub fn reserve(&mut self, name: Name, owner: Owner) -> Hold {
        match self.look(&name, owner) {
            Hold::Missing => self.hold(name, owner, true),
            other => other,
        }
    }

    /// Holds the lease of a document whose row is to be changed. One that has none is reserved, if `reserves`:
    /// each time once more.
    pub fn hold(&mut self, name: Name, owner: Owner, reserves: bool) -> Hold {
        let Some(at) = self.position(&name) else {
            let entry = Entry {
                name,
                state: State::Reserved,
                owner: 0,
                reserved: 1,
                lease: Lease::NONE,
            };
            return match reserves {
                false => Hold::Missing,
                true if self.add(entry) => Hold::Reserved,
                true => Hold::Full,
            };
        };
        let known = &mut self.entries[at];
        let before = known.state;
        match before {
            State::Reserved if reserves => {
                known.reserved += 1;
                Hold::Reserved
            }
            State::Reserved => Hold::Missing,
            State::Held if known.owner == owner => Hold::Own,
            State::Leased => {
                (known.state, known.owner) = (State::Held, owner);
                Hold::Lease(known.lease, before)
            }
            State::Claimed if known.owner == owner => {
                known.state = State::Held;
                Hold::Lease(known.lease, before)
            }
            State::Claimed | State::Held => Hold::Busy(known.owner),
        }
    }

    /// Ends a claim of a transaction that has committed, unless it holds the document.
    pub fn keep(&mut self, name: &Name, owner: Owner) {
        if let Some(at) = self.position(name) {
            let known = &mut self.entries[at];
            if known.state == State::Claimed && known.owner == owner {
                (known.state, known.owner) = (State::Leased, 0);
            }
        }
    }

    /// Gives a document back that this transaction holds: it has `state` again.
    pub fn give_back(&mut self, name: &Name, owner: Owner, state: State) {
        if let Some(at) = self.position(name) {
            let known = &mut self.entries[at];
            if known.state == State::Held && known.owner == owner {
                known.state = state;
                if state == State::Leased {
                    known.owner = 0;
                }
            }
        }
    }

    /// Removes a lease that this transaction has. Returns whether it was there.
    pub fn remove(&mut self, name: &Name, owner: Owner) -> bool {
        let has_lease = |entry: &Entry| entry.state != State::Reserved && entry.owner == owner;
        let at = self.position(name);
        let at = at.filter(|at| has_lease(&self.entries[*at]));
        if let Some(at) = at {
            self.used &= !(1 << at);
        }
        at.is_some()
    }

    /// Ends a claim that has replaced a lease: that one is there again.
    pub fn restore(&mut self, name: &Name, owner: Owner, replaced: Lease) {
        if let Some(at) = self.position(name) {
            let known = &mut self.entries[at];
            if known.state == State::Claimed && known.owner == owner {
                (known.state, known.owner, known.lease) = (State::Leased, 0, replaced);
            }
        }
    }

    /// Ends one reservation of a document.
    pub fn free(&mut self, name: &Name) {
        if let Some(at) = self.position(name)
            && self.entries[at].state == State::Reserved
        {
            self.entries[at].reserved -= 1;
            if self.entries[at].reserved == 0 {
                self.used &= !(1 << at);
            }
        }
    }

    /// Returns the lease of a document.
    pub fn lease(&self, name: &Name) -> Option<Lease> {
        let entry = &self.entries[self.position(name)?];
        (entry.state != State::Reserved).then_some(entry.lease)
    }

    /// Returns the number of the lease of this document, and of none that has had its subject before; and whether
    /// nobody changes its row.
    pub fn lease_of(&self, name: &Name, document: (i64, i64)) -> Option<(i64, bool)> {
        let entry = &self.entries[self.position(name)?];
        let is_held = matches!(entry.state, State::Held | State::Reserved);
        let is_it = entry.state != State::Reserved && entry.lease.document() == document;
        is_it.then_some((entry.lease.number, !is_held))
    }

    /// Returns whether any documents of a database are leased here.
    pub fn has_leases(&self, database: u32) -> bool {
        self.places().any(|at| {
            let Entry { name, state, .. } = &self.entries[at];
            name.database == database && *state != State::Reserved
        })
    }

    /// Removes the leases of a database that no transaction has. Passes on the table of each.
    pub fn forget(&mut self, database: u32, forgotten: impl Fn(u32)) {
        for at in self.places() {
            let entry = &self.entries[at];
            if entry.name.database == database && entry.state == State::Leased {
                forgotten(entry.name.table);
                self.used &= !(1 << at);
            }
        }
    }

    /// Visits the documents of a database that are leased by transactions that have ended.
    pub fn visit_leased(&self, database: u32, mut visit: impl FnMut(&Name, &Lease)) {
        for at in self.places() {
            let entry = &self.entries[at];
            if entry.name.database == database && entry.state == State::Leased {
                visit(&entry.name, &entry.lease);
            }
        }
    }

    /// Visits all documents of a table that are leased.
    pub fn visit_table(&self, database: u32, table: u32, mut visit: impl FnMut(&Name)) {
        for at in self.places() {
            let Entry { name, state, .. } = &self.entries[at];
            let is_of_table = name.database == database && name.table == table;
            if is_of_table && *state != State::Reserved {
                visit(name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Owner = 1;
    const OTHER: Owner = 2;

    fn name(subject: u64) -> Name {
        Name {
            database: 5,
            table: 7,
            subject,
        }
    }

    fn lease(seq: i64) -> Lease {
        Lease {
            key: PickKey::new(0, 0, seq),
            ..Lease::NONE
        }
    }

    #[test]
    fn a_document_is_claimed_once() {
        let mut part = Part::new();
        let doc = name(1);
        assert_eq!(part.claim(doc, lease(1), ME, None), Claim::Done);
        assert_eq!(part.claim(doc, lease(1), ME, None), Claim::Taken);
        assert_eq!(part.claim(doc, lease(1), OTHER, None), Claim::Taken);
        assert_eq!(part.hold(doc, OTHER, false), Hold::Busy(ME));
        part.keep(&doc, OTHER);
        assert_eq!(part.claim(doc, lease(1), OTHER, None), Claim::Taken);
        part.keep(&doc, ME);
        assert_eq!(part.claim(doc, lease(1), OTHER, None), Claim::Taken);
        let held = part.hold(doc, OTHER, false);
        assert_eq!(held, Hold::Lease(lease(1), State::Leased));
        assert_eq!(part.hold(doc, ME, true), Hold::Busy(OTHER));
        assert_eq!(part.hold(doc, OTHER, true), Hold::Own);
        assert_eq!(part.claim(doc, lease(1), OTHER, None), Claim::InRow);
        assert!(!part.remove(&doc, ME));
        part.give_back(&doc, OTHER, State::Leased);
        assert!(part.lease(&doc).is_some());
        part.hold(doc, ME, false);
        assert!(part.remove(&doc, ME));
        assert_eq!(part.lease(&doc), None);
        assert_eq!(part.hold(doc, ME, false), Hold::Missing);
    }

    #[test]
    fn a_claim_is_held_by_its_transaction_and_given_back_as_it_was() {
        let mut part = Part::new();
        let doc = name(1);
        part.claim(doc, lease(1), ME, None);
        let held = part.hold(doc, ME, false);
        assert_eq!(held, Hold::Lease(lease(1), State::Claimed));
        part.keep(&doc, ME);
        assert_eq!(part.hold(doc, OTHER, false), Hold::Busy(ME));
        part.give_back(&doc, ME, State::Claimed);
        part.keep(&doc, ME);
        let held = part.hold(doc, OTHER, false);
        assert_eq!(held, Hold::Lease(lease(1), State::Leased));
    }

    #[test]
    fn what_is_reserved_is_leased_in_its_row() {
        let mut part = Part::new();
        let doc = name(1);
        assert_eq!(part.hold(doc, ME, true), Hold::Reserved);
        assert_eq!(part.lease(&doc), None);
        assert_eq!(part.hold(doc, OTHER, false), Hold::Missing);
        assert_eq!(part.claim(doc, lease(1), OTHER, None), Claim::InRow);
        assert_eq!(part.hold(doc, OTHER, true), Hold::Reserved);
        assert!(!part.remove(&doc, 0));
        part.free(&doc);
        assert_eq!(part.claim(doc, lease(1), ME, None), Claim::InRow);
        part.free(&doc);
        assert_eq!(part.used(), 0);
        assert_eq!(part.claim(doc, lease(1), ME, None), Claim::Done);
        part.free(&doc);
        assert!(part.lease(&doc).is_some());
    }

    #[test]
    fn a_document_that_was_put_anew_has_no_lease() {
        let mut part = Part::new();
        let doc = name(1);
        let numbered = |seq, number| Lease {
            number,
            ..lease(seq)
        };
        part.claim(doc, numbered(1, 7), ME, None);
        part.keep(&doc, ME);
        let claim = part.claim(doc, numbered(2, 8), OTHER, None);
        assert_eq!(claim, Claim::Other(7));
        let claim = part.claim(doc, numbered(2, 8), OTHER, Some(6));
        assert_eq!(claim, Claim::Other(7));
        let claim = part.claim(doc, numbered(2, 8), OTHER, Some(7));
        assert_eq!(claim, Claim::Replaced(numbered(1, 7)));
        assert_eq!(part.used(), 1);
        part.restore(&doc, OTHER, numbered(1, 7));
        let held = part.hold(doc, ME, false);
        assert_eq!(held, Hold::Lease(numbered(1, 7), State::Leased));
    }

    #[test]
    fn a_leased_document_is_not_reserved() {
        let mut part = Part::new();
        let doc = name(1);
        part.claim(doc, lease(1), ME, None);
        assert_eq!(part.reserve(doc, OTHER), Hold::Busy(ME));
        part.keep(&doc, ME);
        let found = Hold::Lease(lease(1), State::Leased);
        assert_eq!(part.reserve(doc, OTHER), found);
        assert_eq!(part.look(&doc, OTHER), found);
        part.hold(doc, OTHER, false);
        assert_eq!(part.reserve(doc, OTHER), Hold::Own);
        assert_eq!(part.look(&doc, ME), Hold::Busy(OTHER));
        part.remove(&doc, OTHER);
        assert_eq!(part.reserve(doc, ME), Hold::Reserved);
        assert_eq!(part.look(&doc, OTHER), Hold::Missing);
    }

    #[test]
    fn a_full_part_refuses() {
        let mut part = Part::new();
        for n in 0..ENTRIES as u64 {
            assert_eq!(part.claim(name(n), lease(1), ME, None), Claim::Done);
        }
        assert_eq!(part.claim(name(99), lease(1), ME, None), Claim::InRow);
        assert_eq!(part.hold(name(99), ME, true), Hold::Full);
        assert!(part.remove(&name(63), ME));
        assert_eq!(part.hold(name(99), ME, true), Hold::Reserved);
        let mut visited = 0;
        part.visit_table(5, 7, |_| visited += 1);
        assert_eq!(visited, ENTRIES - 1);
        part.visit_leased(5, |_, _| panic!("nothing is committed"));
    }
}
