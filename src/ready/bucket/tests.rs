use super::*;
use crate::ready::group::{LEVELS, OVERFLOW_PAUSE};
use crate::ready::key::Index;

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
    let token = b.begin(NAME, 7, 1);
    b.discovered(&NAME, token, Some(levels), 1);
    b
}

fn key(n: i64) -> Key {
    Key::new(n, 0, n)
}

fn floors(b: &Bucket) -> Vec<(i32, Key)> {
    match b.levels(&NAME, 7, 1) {
        Known::Levels(views) => views.as_slice().iter().map(|v| (v.id, v.floor)).collect(),
        _ => panic!("not known"),
    }
}

fn raise(b: &mut Bucket, to: Key) -> bool {
    let raise = b.begin_raise(&NAME, 0, to, 1).unwrap();
    b.end_raise(&NAME, 0, raise, Some(to)) == Ended::Raised
}

#[test]
fn a_discovered_level_starts_before_every_document() {
    assert_eq!(floors(&ready(&[0, 5])), [(5, Key::FIRST), (0, Key::FIRST)]);
}

#[test]
fn a_level_that_was_noted_before_it_was_discovered_starts_there_too() {
    let mut b = bucket();
    let token = b.begin(NAME, 7, 1);
    b.note(&NAME, 3, key(10), 1);
    b.discovered(&NAME, token, Some(&[3]), 1);
    assert_eq!(floors(&b), [(3, Key::FIRST)]);
}

#[test]
fn what_was_discovered_in_an_earlier_life_is_void() {
    let mut b = bucket();
    let token = b.begin(NAME, 7, 1);
    b.begin(NAME, 8, 1);
    b.discovered(&NAME, token, Some(&[]), 1);
    assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
}

#[test]
fn a_note_below_the_floor_lowers_it_and_one_above_does_not() {
    let mut b = ready(&[0]);
    assert!(raise(&mut b, key(100)));
    assert!(!b.needs(&NAME, 0, key(100)));
    assert!(b.needs(&NAME, 0, key(99)));
    b.note(&NAME, 0, key(50), 1);
    assert_eq!(floors(&b), [(0, key(50))]);
}

#[test]
fn a_note_below_the_bound_cuts_the_raise_short() {
    let mut b = ready(&[0]);
    let raise = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
    b.note(&NAME, 0, key(99), 1);
    b.note(&NAME, 0, key(98), 1);
    assert_eq!(
        b.end_raise(&NAME, 0, raise, Some(key(100))),
        Ended::CutShort
    );
    assert_eq!(floors(&b), [(0, key(98))]);
    // One at the bound does not: the raise never goes further.
    let raise = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
    b.note(&NAME, 0, key(100), 1);
    assert_eq!(b.end_raise(&NAME, 0, raise, Some(key(100))), Ended::Raised);
    assert_eq!(floors(&b), [(0, key(100))]);
}

#[test]
fn one_raises_at_a_time_until_it_is_taken_over() {
    let mut b = ready(&[0]);
    let first = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
    assert!(b.begin_raise(&NAME, 0, key(100), 2).is_none());
    b.goes_on(&NAME, 0, first, 5);
    assert!(
        b.begin_raise(&NAME, 0, key(100), RAISE_TIMEOUT + 2)
            .is_none()
    );
    let second = b.begin_raise(&NAME, 0, key(50), RAISE_TIMEOUT + 6).unwrap();
    assert_eq!(b.end_raise(&NAME, 0, first, Some(key(100))), Ended::GivenUp);
    assert_eq!(b.end_raise(&NAME, 0, second, Some(key(50))), Ended::Raised);
    assert_eq!(floors(&b), [(0, key(50))]);
    // Given up: the next one may start at once.
    let third = b.begin_raise(&NAME, 0, key(100), 3).unwrap();
    assert_eq!(b.end_raise(&NAME, 0, third, None), Ended::GivenUp);
    assert!(raise(&mut b, key(100)));
}

#[test]
fn a_clock_that_was_set_back_blocks_no_level() {
    let mut b = ready(&[0]);
    b.begin_raise(&NAME, 0, key(100), 1_000_000).unwrap();
    assert!(b.begin_raise(&NAME, 0, key(100), 500).is_some());
}

/// The group is evicted while its floor is raised, and made again in another slot.
#[test]
fn a_raise_of_an_earlier_life_ends_in_no_later_one() {
    let mut b = ready(&[0]);
    let old = b.begin_raise(&NAME, 0, key(100), 1).unwrap();
    for version in 1..=WAYS as i32 {
        let other = Name { version, ..NAME };
        let token = b.begin(other, 7, 10 + i64::from(version));
        b.discovered(&other, token, Some(&[]), 1);
    }
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
    let token = b.begin(NAME, 7, 100);
    b.discovered(&NAME, token, Some(&[0]), 100);
    for now in 0..40 {
        if let Some(raise) = b.begin_raise(&NAME, 0, key(1), now) {
            assert_eq!(b.end_raise(&NAME, 0, old, Some(key(100))), Ended::GivenUp);
            b.end_raise(&NAME, 0, raise, None);
        }
    }
    assert_eq!(floors(&b), [(0, Key::FIRST)]);
}

#[test]
fn what_is_forgotten_starts_anew() {
    let mut b = ready(&[0]);
    assert!(raise(&mut b, Key::LAST));
    b.forget(NAME.database, NAME.table);
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Unknown));
}

#[test]
fn an_empty_level_gives_room_to_a_new_one_and_its_raise_is_void() {
    let mut b = ready(&(0..LEVELS as i32).collect::<Vec<_>>());
    assert!(raise(&mut b, Key::LAST));
    b.note(&NAME, 0, key(5), 1);
    assert_eq!(floors(&b).last(), Some(&(0, key(5))));
    assert!(raise(&mut b, Key::LAST));
    b.note(&NAME, 99, key(7), 1);
    assert_eq!(floors(&b).first(), Some(&(99, key(7))));
    assert!(b.begin_raise(&NAME, 0, Key::LAST, 1).is_none());
    // No room left: nothing is known any more.
    b.note(&NAME, 100, key(7), 1);
    assert!(matches!(b.levels(&NAME, 7, 1), Known::Nothing));
    assert!(matches!(
        b.levels(&NAME, 7, 2 + OVERFLOW_PAUSE),
        Known::Unknown
    ));
}

#[test]
fn another_epoch_knows_nothing() {
    let b = ready(&[0]);
    assert!(matches!(b.levels(&NAME, 8, 1), Known::Unknown));
}

#[test]
fn the_group_that_was_not_used_for_longest_gives_way() {
    let mut b = bucket();
    for version in 0..=WAYS as i32 {
        let name = Name { version, ..NAME };
        let token = b.begin(name, 7, i64::from(version));
        b.discovered(&name, token, Some(&[]), 1);
    }
    let known = |version| {
        let name = Name { version, ..NAME };
        matches!(b.levels(&name, 7, 1), Known::Levels(_))
    };
    assert!(!known(0));
    assert!(known(1) && known(WAYS as i32));
    assert_eq!(b.used(), WAYS);
}

#[test]
fn a_floor_is_due_after_enough_picks() {
    let mut b = ready(&[0]);
    assert!(b.count(&NAME, 0, 1), "nothing is known of it yet");
    assert!(raise(&mut b, key(1)));
    let due = (0..PICKS_PER_RAISE * 2)
        .filter(|_| b.count(&NAME, 0, 1))
        .count();
    assert_eq!(due, 2);
    assert!(b.count(&NAME, 0, 100));
}

#[test]
fn the_due_index_has_its_two_levels_at_once() {
    let mut b = bucket();
    let name = Name {
        index: Index::Due,
        ..NAME
    };
    b.begin(name, 7, 1);
    let Known::Levels(views) = b.levels(&name, 7, 1) else {
        panic!("not known");
    };
    assert_eq!(
        views.as_slice().iter().map(|v| v.id).collect::<Vec<_>>(),
        [2, 0]
    );
}

#[test]
fn the_safety_net_is_taken_by_one() {
    let b = ready(&[0]);
    assert!(b.take_full_scan(&NAME, 5, 10));
    assert!(!b.take_full_scan(&NAME, 9, 20));
    assert!(b.take_full_scan(&NAME, 10, 20));
    b.put_off_full_scan(&NAME, 50);
    assert!(!b.take_full_scan(&NAME, 49, 60));
}
