//! How much one client may have of something at a time.
use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who a limit is for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Client {
    /// A person who has logged in. Behind a proxy all people share one address.
    User(String),
    /// Everybody behind an address.
    Network(IpAddr),
}

/// What counts as one address: of IPv6 the first 64 bits, because one customer has all addresses that
/// begin with them.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 => v4,
    }
}

/// Places of which each client can have some at a time.
#[derive(Debug)]
pub struct Places<K> {
    each: usize,
    taken: Mutex<HashMap<K, usize>>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub struct Place<K: Eq + Hash> {
    places: Arc<Places<K>>,
    client: K,
}

impl<K: Clone + Eq + Hash> Places<K> {
    pub fn new(each: usize) -> Arc<Self> {
        Arc::new(Self {
            each,
            taken: Mutex::default(),
        })
    }

    /// A place for a client; none while it has as many as it can have.
    pub fn take(self: &Arc<Self>, client: K) -> Option<Place<K>> {
        let mut taken = lock(&self.taken);
        let count = taken.get(&client).copied().unwrap_or(0);
        if count >= self.each {
            return None;
        }
        taken.insert(client.clone(), count + 1);
        Some(Place {
            places: self.clone(),
            client,
        })
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = lock(&self.places.taken);
        match taken.get_mut(&self.client) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.remove(&self.client);
            }
        }
    }
}

/// What a mutex guards. No code that holds one can leave it half changed.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_places_and_no_more_and_takes_none_of_another() {
        let places = Places::new(2);
        let one = places.take("a");
        let two = places.take("a");
        assert!(one.is_some() && two.is_some());
        assert!(places.take("a").is_none());
        assert!(places.take("b").is_some());
        drop(one);
        let again = places.take("a");
        assert!(again.is_some() && places.take("a").is_none());
        drop((two, again));
        assert!(lock(&places.taken).is_empty(), "nothing is remembered");
    }

    #[test]
    fn the_addresses_of_one_customer_count_as_one() {
        let of = |text: &str| network(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("192.0.2.1"), of("192.0.2.2"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
    }
}
