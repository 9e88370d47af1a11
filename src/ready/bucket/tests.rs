use super::*;
use crate::domain::status::Status;
use crate::ready::group::{LEVELS, OVERFLOW_RETRY_US, UNUSED_AFTER_US};
use crate::ready::key::{Index, PickKey};

const NAME: Name = Name {
    database: 1,
    table: 2,
    version: 0,
    index: Index::Pick,
};

fn bucket() -> Box<Bucket> {
    Box::new(Bucket::new())
}

fn ready(levels: &[i32]) -> Box<Bucket> {
    let mut b = bucket();
    let token = b.begin_discovery(NAME, 7, 1);
    b.complete_discovery(&NAME, token, Some(levels), 1);
    b
}

fn key(n: i64) -> Key {
    PickKey::new(n, 0, n).into()
}

fn floors(b: &Bucket) -> Vec<(i32, Key)> {
    match b.levels(&NAME, 7, 1) {
        Known::Levels(views) => views.as_slice().iter().map(|v| (v.id, v.floor)).collect(),
        _ => panic!("the levels are not known"),
    }
}

fn advance(b: &mut Bucket, to: Key) -> bool {
    let advance = b.begin_advance(&NAME, 0, to, 1).unwrap();
    b.end_advance(&NAME, 0, advance, Some(to)) == AdvanceOutcome::Advanced
}

#[test]
fn a_discovered_level_starts_before_every_document() {
    assert_eq!(floors(&ready(&[0, 5])), [(5, Key::FIRST), (0, Key::FIRST)]);
}

#[test]
fn a_level_that_was_noted_before_its_discovery_starts_there_too() {
    let mut b = bucket();
    let token = b.begin_discovery(NAME, 7, 1);
    b.note(&NAME, 3, key(10), 1);
    b.complete_discovery(&NAME, token, Some(&[3]), 1);
    assert_eq!(floors(&b), [(3, Key::FIRST)]);
}

#[test]
fn a_discovery_of_an_earlier_life_is_void() {
    let mut b = bucket();
    let token = b.begin_discovery(NAME, 7, 1);
    b.begin_discovery(NAME, 8, 1);
    b.complete_discovery(&NAME, token, Some(&[]), 1);
    assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
}

#[test]
fn a_note_below_the_floor_lowers_it_and_one_above_does_not() {
    let mut b = ready(&[0]);
    assert!(advance(&mut b, key(100)));
    assert!(!b.needs_note(&NAME, 0, key(100)));
    assert!(b.needs_note(&NAME, 0, key(99)));
    b.note(&NAME, 0, key(50), 1);
    assert_eq!(floors(&b), [(0, key(50))]);
}

#[test]
fn a_note_below_the_bound_cuts_the_advance_short() {
    let mut b = ready(&[0]);
    let advance = b.begin_advance(&NAME, 0, key(100), 1).unwrap();
    b.note(&NAME, 0, key(99), 1);
    b.note(&NAME, 0, key(98), 1);
    assert_eq!(
        b.end_advance(&NAME, 0, advance, Some(key(100))),
        AdvanceOutcome::CutShort
    );
    assert_eq!(floors(&b), [(0, key(98))]);
    // A note at the bound does not cut it short, because the floor never passes the bound.
    let advance = b.begin_advance(&NAME, 0, key(100), 1).unwrap();
    b.note(&NAME, 0, key(100), 1);
    assert_eq!(
        b.end_advance(&NAME, 0, advance, Some(key(100))),
        AdvanceOutcome::Advanced
    );
    assert_eq!(floors(&b), [(0, key(100))]);
}

#[test]
fn one_backend_advances_at_a_time_until_its_advance_is_taken_over() {
    let mut b = ready(&[0]);
    let first = b.begin_advance(&NAME, 0, key(100), 1).unwrap();
    assert!(b.begin_advance(&NAME, 0, key(100), 2).is_none());
    b.renew_advance(&NAME, 0, first, 5);
    assert!(
        b.begin_advance(&NAME, 0, key(100), ADVANCE_TIMEOUT_US + 2)
            .is_none()
    );
    let second = b
        .begin_advance(&NAME, 0, key(50), ADVANCE_TIMEOUT_US + 6)
        .unwrap();
    assert_eq!(
        b.end_advance(&NAME, 0, first, Some(key(100))),
        AdvanceOutcome::Abandoned
    );
    assert_eq!(
        b.end_advance(&NAME, 0, second, Some(key(50))),
        AdvanceOutcome::Advanced
    );
    assert_eq!(floors(&b), [(0, key(50))]);
    // After an abandoned advance the next one may begin at once.
    let third = b.begin_advance(&NAME, 0, key(100), 3).unwrap();
    assert_eq!(
        b.end_advance(&NAME, 0, third, None),
        AdvanceOutcome::Abandoned
    );
    assert!(advance(&mut b, key(100)));
}

#[test]
fn a_clock_that_was_set_back_blocks_no_level() {
    let mut b = ready(&[0]);
    b.begin_advance(&NAME, 0, key(100), 1_000_000).unwrap();
    assert!(b.begin_advance(&NAME, 0, key(100), 500).is_some());
}

/// The group is replaced while its floor is advanced, and created again in another slot.
#[test]
fn an_advance_of_an_earlier_life_ends_in_no_later_one() {
    let mut b = ready(&[0]);
    let old = b.begin_advance(&NAME, 0, key(100), 1).unwrap();
    for version in 1..=GROUPS_PER_BUCKET as i32 {
        let other = Name { version, ..NAME };
        let token = b.begin_discovery(other, 7, 10 + i64::from(version));
        b.complete_discovery(&other, token, Some(&[0]), 1);
    }
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
    let token = b.begin_discovery(NAME, 7, 100);
    b.complete_discovery(&NAME, token, Some(&[0]), 100);
    for now in 0..40 {
        if let Some(advance) = b.begin_advance(&NAME, 0, key(1), now) {
            assert_eq!(
                b.end_advance(&NAME, 0, old, Some(key(100))),
                AdvanceOutcome::Abandoned
            );
            b.end_advance(&NAME, 0, advance, None);
        }
    }
    assert_eq!(floors(&b), [(0, Key::FIRST)]);
}

#[test]
fn a_forgotten_group_is_unknown() {
    let mut b = ready(&[0]);
    assert!(advance(&mut b, Key::LAST));
    b.forget_group(&NAME);
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
    let mut b = ready(&[0]);
    b.forget(NAME.database, NAME.table);
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
}

#[test]
fn a_table_gives_up_the_slots_that_nobody_uses() {
    let mut b = ready(&[0]);
    let used = Name { version: 1, ..NAME };
    let now = UNUSED_AFTER_US + 2;
    let token = b.begin_discovery(used, 7, now);
    b.complete_discovery(&used, token, Some(&[0]), now);
    assert!(b.has_unused(NAME.database, NAME.table, now));
    assert!(!b.has_unused(NAME.database, NAME.table + 1, now));
    b.free_unused(NAME.database, NAME.table, now);
    assert!(!b.contains(&NAME) && b.contains(&used));
    assert!(!b.has_unused(NAME.database, NAME.table, now));
}

#[test]
fn the_known_groups_of_a_table_are_those_of_its_epoch() {
    let mut b = ready(&[0]);
    let of_other_table = Name {
        table: NAME.table + 1,
        ..NAME
    };
    let not_read_yet = Name { version: 9, ..NAME };
    for (name, epoch) in [(of_other_table, 7), (not_read_yet, 7)] {
        let token = b.begin_discovery(name, epoch, 1);
        if name.table != NAME.table {
            b.complete_discovery(&name, token, Some(&[0]), 1);
        }
    }
    let known = |b: &Bucket, epoch| {
        let mut names = Vec::new();
        b.visit_known(NAME.database, NAME.table, epoch, |name| names.push(name));
        names
    };
    assert_eq!(known(&b, 7), [NAME]);
    assert_eq!(known(&b, 8), []);
}

#[test]
fn to_check_a_group_does_not_keep_its_slot() {
    let b = ready(&[3]);
    let before = b.groups[0].last_used.load(Ordering::Relaxed);
    let views = b.peek(&NAME, 7).expect("the levels are known");
    assert_eq!(views.as_slice().len(), 1);
    assert!(b.peek(&NAME, 8).is_none());
    assert_eq!(b.groups[0].last_used.load(Ordering::Relaxed), before);
}

#[test]
fn an_empty_level_is_replaced_and_its_advance_is_void() {
    let mut b = ready(&(0..LEVELS as i32).collect::<Vec<_>>());
    assert!(advance(&mut b, Key::LAST));
    b.note(&NAME, 0, key(5), 1);
    assert_eq!(floors(&b).last(), Some(&(0, key(5))));
    assert!(advance(&mut b, Key::LAST));
    b.note(&NAME, 99, key(7), 1);
    assert_eq!(floors(&b).first(), Some(&(99, key(7))));
    assert!(b.begin_advance(&NAME, 0, Key::LAST, 1).is_none());
    // There is no free level, so nothing is known from now on.
    b.note(&NAME, 100, key(7), 1);
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Nothing));
    assert!(matches!(
        b.levels(&NAME, 7, 2 + OVERFLOW_RETRY_US),
        Known::Unknown
    ));
}

#[test]
fn another_epoch_knows_nothing() {
    let b = ready(&[0]);
    assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
}

#[test]
fn the_longest_unused_group_is_replaced() {
    let mut b = bucket();
    for version in 0..=GROUPS_PER_BUCKET as i32 {
        let name = Name { version, ..NAME };
        let token = b.begin_discovery(name, 7, i64::from(version));
        b.complete_discovery(&name, token, Some(&[]), 1);
    }
    let known = |version| {
        let name = Name { version, ..NAME };
        matches!(b.levels(&name, 7, 1), Known::Levels(_))
    };
    assert!(!known(0));
    assert!(known(1) && known(GROUPS_PER_BUCKET as i32));
    assert_eq!(b.used(), GROUPS_PER_BUCKET);
}

/// Adds a group of a table as a session does, at a time. Returns whether it has one.
fn use_group(b: &mut Bucket, table: u32, version: i32, now: i64) -> bool {
    use_with(b, table, version, now, &[0])
}

fn use_with(b: &mut Bucket, table: u32, version: i32, now: i64, levels: &[i32]) -> bool {
    let name = name(table, version);
    if matches!(b.levels(&name, 7, now), Known::Levels(_)) {
        return true;
    }
    if levels.is_empty() && !b.has_room(&name, now) {
        return false;
    }
    let token = b.begin_discovery(name, 7, now);
    b.complete_discovery(&name, token, Some(levels), now);
    true
}

fn name(table: u32, version: i32) -> Name {
    Name {
        table,
        version,
        ..NAME
    }
}

fn has(b: &Bucket, table: u32, version: i32) -> bool {
    b.contains(&name(table, version))
}

#[test]
fn a_queue_with_many_versions_takes_slots_only_from_itself() {
    let mut b = bucket();
    for table in 1..=4 {
        assert!(use_group(&mut b, table, 0, 1));
    }
    for n in 0..1000 {
        assert!(use_group(&mut b, 9, n, 10 + i64::from(n)));
    }
    assert!((1..=4).all(|table| has(&b, table, 0)));
    assert!(use_group(&mut b, 5, 0, 2000) && has(&b, 5, 0));
    assert!((1..=4).all(|table| has(&b, table, 0)));
}

#[test]
fn versions_without_documents_take_no_slot_from_others_of_their_table() {
    let mut b = bucket();
    for version in 0..12 {
        assert!(use_group(&mut b, 9, version, 1));
    }
    // Free slots are for them too, so that polls are answered without a query.
    for version in 100..200 {
        let now = i64::from(version);
        assert!(use_with(&mut b, 9, version, now, &[]));
    }
    assert!((0..12).all(|version| has(&b, 9, version)));
    for version in 12..16 {
        assert!(use_group(&mut b, 9, version, 300));
    }
    assert!((0..16).all(|version| has(&b, 9, version)));
    assert!(!use_with(&mut b, 9, 500, 400, &[]));
    assert!((0..16).all(|version| has(&b, 9, version)));
    // A poll of another queue of the same role gets a slot all the same.
    assert!(use_with(&mut b, 8, 0, 500, &[]));
}

#[test]
fn a_group_that_nobody_uses_gives_its_slot_to_any_other() {
    let mut b = bucket();
    assert!(use_group(&mut b, 100, 0, 1));
    for n in 0..15 {
        assert!(use_group(&mut b, 200, n, UNUSED_AFTER_US));
    }
    assert!(use_group(&mut b, 200, 99, UNUSED_AFTER_US + 1));
    assert!(has(&b, 100, 0));
    assert!(use_group(&mut b, 200, 100, UNUSED_AFTER_US + 2));
    assert!(!has(&b, 100, 0));
}

#[test]
fn versions_take_the_due_index_from_no_table() {
    let mut b = bucket();
    let due = Name {
        index: Index::Due,
        ..name(9, 0)
    };
    b.begin_discovery(due, 7, 1);
    for n in 0..100 {
        assert!(use_group(&mut b, 9, n, 10 + i64::from(n)));
    }
    assert!(b.contains(&due));
}

/// Of a queue and its due index in a full bucket, each keeps its slot.
#[test]
fn two_groups_of_a_table_do_not_take_the_slot_from_each_other() {
    let mut b = bucket();
    for table in 1..=16 {
        assert!(use_group(&mut b, table, 0, i64::from(table)));
    }
    assert!(use_group(&mut b, 16, 1, 20));
    assert!(has(&b, 16, 0) && has(&b, 16, 1) && !has(&b, 1, 0));
}

/// A session notes a document while the group is evicted, and the group is created again before
/// the document is committed.
#[test]
fn a_note_that_an_eviction_has_overtaken_is_not_needed() {
    for note_at in 0..4 {
        let mut b = ready(&[0]);
        assert!(advance(&mut b, Key::LAST));
        let mut is_in_index = false;
        let mut step = |b: &mut Bucket, at: i32| {
            if at == note_at {
                // The entry exists before its note.
                is_in_index = true;
                if b.needs_note(&NAME, 0, key(5)) {
                    b.note(&NAME, 0, key(5), 1);
                }
            }
            is_in_index
        };
        step(&mut b, 0);
        for version in 1..=GROUPS_PER_BUCKET as i32 {
            use_group(&mut b, NAME.table, version, 10 + i64::from(version));
        }
        assert!(!has(&b, NAME.table, 0));
        step(&mut b, 1);
        let token = b.begin_discovery(NAME, 7, 100);
        let found = if step(&mut b, 2) { &[0][..] } else { &[] };
        let found = found.to_vec();
        b.complete_discovery(&NAME, token, Some(&found), 100);
        step(&mut b, 3);
        assert!(!b.hides(&NAME, 0, key(5)), "noted at step {note_at}");
    }
}

#[test]
fn a_floor_is_advanced_after_enough_picks() {
    let mut b = ready(&[0]);
    assert!(
        b.count_picks(&NAME, 0, 1),
        "nothing is known of the level yet"
    );
    assert!(advance(&mut b, key(1)));
    let due = (0..PICKS_PER_ADVANCE * 2)
        .filter(|_| b.count_picks(&NAME, 0, 1))
        .count();
    assert_eq!(due, 2);
    assert!(b.count_picks(&NAME, 0, 100));
}

#[test]
fn the_due_index_has_its_two_levels_at_once() {
    let mut b = bucket();
    let name = Name {
        index: Index::Due,
        ..NAME
    };
    b.begin_discovery(name, 7, 1);
    let Known::Levels(views) = b.levels(&name, 7, 1) else {
        panic!("the levels are not known");
    };
    assert_eq!(
        views.as_slice().iter().map(|v| v.id).collect::<Vec<_>>(),
        [Status::Active.code(), Status::Planned.code()]
    );
}

#[test]
fn what_was_due_in_another_epoch_is_not_known() {
    let mut b = bucket();
    let name = Name {
        index: Index::Due,
        ..NAME
    };
    b.begin_discovery(name, 7, 1);
    for status in [Status::Planned, Status::Active] {
        let advance = b.begin_advance(&name, status.code(), Key::LAST, 1).unwrap();
        b.end_advance(&name, status.code(), advance, Some(Key::LAST));
    }
    assert_eq!(b.first_due(&name, 7), Some(i64::MAX));
    b.note(&name, Status::Active.code(), key(50), 1);
    assert_eq!(b.first_due(&name, 7), Some(50));
    // Rows were loaded without notes.
    assert_eq!(b.first_due(&name, 8), None);
}

#[test]
fn one_backend_claims_a_full_scan() {
    let b = ready(&[0]);
    assert!(b.claim_full_scan(&NAME, 5, 10));
    assert!(!b.claim_full_scan(&NAME, 9, 20));
    assert!(b.claim_full_scan(&NAME, 10, 20));
    b.postpone_full_scan(&NAME, 50);
    assert!(!b.claim_full_scan(&NAME, 49, 60));
}
