//! Basic authentication by a file of hashed passwords, one `name:hash` in each line.
use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordVerifier};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tokio::sync::Semaphore;
use tracing::warn;

use super::attempts::Attempts;
use crate::limits::{lock, network};

/// A hash takes a tenth of a second of a processor: no more than two are computed at a time.
const AT_A_TIME: usize = 2;

/// As many credentials are remembered.
const MAX_KNOWN: usize = 1000;

/// What is wrong with the file.
#[derive(Debug, thiserror::Error)]
pub enum PasswordError {
    #[error("the password file {0} cannot be read: {1}")]
    Read(String, std::io::Error),
    #[error("the password file {0} has no user: add one with htpasswd -B")]
    Empty(String),
    #[error(
        "line {1} of the password file {0} is not name:hash with a hash of bcrypt or argon2: use htpasswd -B"
    )]
    Line(String, usize),
}

/// The users of the file.
pub struct Passwords {
    hashes: Arc<HashMap<String, String>>,
    /// Signatures of credentials that were right. A hash is slow by intent, and a page makes many
    /// requests.
    known: Mutex<HashMap<Vec<u8>, String>>,
    attempts: Attempts,
    running: Semaphore,
}

/// What a client has sent.
struct Given {
    user: String,
    password: String,
    /// Of both, so that they need not be remembered themselves.
    signature: Vec<u8>,
    from: IpAddr,
}

/// Why nobody is logged in.
#[derive(Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no password, or it is wrong.
    Wrong,
    /// The address has sent too many wrong ones, and has to wait for this time.
    TooMany(Duration),
}

impl Passwords {
    /// # Errors
    /// The file cannot be read, is empty, or has a hash of another kind.
    pub fn read(path: &Path) -> Result<Self, PasswordError> {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| PasswordError::Read(name.clone(), error))?;
        let mut hashes = HashMap::new();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let pair = line
                .trim()
                .split_once(':')
                .filter(|(user, hash)| !user.is_empty() && is_hash(hash));
            let (user, hash) = pair.ok_or_else(|| PasswordError::Line(name.clone(), number + 1))?;
            hashes.insert(user.to_owned(), hash.to_owned());
        }
        if hashes.is_empty() {
            return Err(PasswordError::Empty(name));
        }
        Ok(Self {
            hashes: Arc::new(hashes),
            known: Mutex::default(),
            attempts: Attempts::default(),
            running: Semaphore::new(AT_A_TIME),
        })
    }

    /// The user whom an `Authorization` header names, if its password is right. `from` is the address
    /// of the client.
    ///
    /// # Errors
    /// The password is missing or wrong, or the address has sent too many.
    pub async fn check(
        self: &Arc<Self>,
        key: &hmac::Key,
        header: Option<&str>,
        from: IpAddr,
    ) -> Result<String, Denied> {
        let credentials = header.and_then(credentials).ok_or(Denied::Wrong)?;
        let (user, password) = credentials.split_once(':').ok_or(Denied::Wrong)?;
        let signature = hmac::sign(key, format!("basic {credentials}").as_bytes());
        let given = Given {
            user: user.to_owned(),
            password: password.to_owned(),
            signature: signature.as_ref().to_vec(),
            from: network(from),
        };
        if let Some(user) = self.known_user(&given) {
            return Ok(user);
        }
        // A client that goes away ends no check that has begun: it would not be counted, and its
        // hash would be computed beside others.
        let checked = tokio::spawn(self.clone().check_unknown(given));
        checked.await.unwrap_or(Err(Denied::Wrong))
    }

    fn known_user(&self, given: &Given) -> Option<String> {
        lock(&self.known).get(&given.signature).cloned()
    }

    async fn check_unknown(self: Arc<Self>, given: Given) -> Result<String, Denied> {
        let turn = self.attempts.turn(given.from);
        let _turn = turn.lock().await;
        // A browser sends the same password with many requests at once.
        if let Some(user) = self.known_user(&given) {
            return Ok(user);
        }
        let begun = self.attempts.begin(given.from, Instant::now());
        begun.map_err(Denied::TooMany)?;
        let _permit = self.running.acquire().await.map_err(|_| Denied::Wrong)?;
        let (user, from, hashes) = (given.user.clone(), given.from, self.hashes.clone());
        let checked = tokio::task::spawn_blocking(move || {
            // An unknown name takes as long as a wrong password.
            let hash = hashes.get(&given.user).or_else(|| hashes.values().next())?;
            let is_right = is_right(&given.password, hash) && hashes.contains_key(&given.user);
            is_right.then_some(given.signature)
        });
        let Some(signature) = checked.await.ok().flatten() else {
            let shown: String = user.chars().take(64).collect();
            warn!("a login as {shown:?} from {from} has failed");
            return Err(Denied::Wrong);
        };
        self.attempts.succeeded(from);
        let mut known = lock(&self.known);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(signature, user.clone());
        Ok(user)
    }
}

/// The name and the password of an `Authorization` header, with a colon between them.
fn credentials(header: &str) -> Option<String> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()
}

fn is_hash(hash: &str) -> bool {
    ["$2y$", "$2b$", "$2a$", "$argon2id$", "$argon2i$"]
        .iter()
        .any(|prefix| hash.starts_with(prefix))
}

fn is_right(password: &str, hash: &str) -> bool {
    if hash.starts_with("$argon2") {
        let Ok(hash) = PasswordHash::new(hash) else {
            return false;
        };
        return Argon2::default()
            .verify_password(password.as_bytes(), &hash)
            .is_ok();
    }
    bcrypt::verify(password, hash).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_of_a_weak_kind_is_refused() {
        for hash in ["plain", "{SHA}2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "$apr1$a$b"] {
            assert!(!is_hash(hash));
        }
    }

    #[test]
    fn hashes_of_both_kinds_are_checked() {
        let bcrypt = bcrypt::hash("secret", 4).expect("a hash");
        assert!(is_right("secret", &bcrypt) && !is_right("other", &bcrypt));
        let argon = "$argon2id$v=19$m=16,t=2,p=1$c2FsdHNhbHQ$WnVjtMuEZSMxBwCDRMNrqQ";
        assert!(!is_right("other", argon));
    }

    fn passwords(name: &str) -> (Arc<Passwords>, hmac::Key) {
        let file = std::env::temp_dir().join(format!("fetchq-{name}-{}", std::process::id()));
        let hash = bcrypt::hash("right", 4).expect("a hash");
        std::fs::write(&file, format!("ann:{hash}\n")).expect("a file");
        let read = Passwords::read(&file).expect("passwords");
        std::fs::remove_file(&file).expect("the file");
        let random = ring::rand::SystemRandom::new();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &random).expect("a key");
        (Arc::new(read), key)
    }

    async fn log_in(passwords: &Arc<Passwords>, key: &hmac::Key, text: &str, from: u8) -> String {
        let header = format!("Basic {}", STANDARD.encode(text));
        let from = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, from));
        match passwords.check(key, Some(&header), from).await {
            Ok(user) => user,
            Err(Denied::Wrong) => "wrong".to_owned(),
            Err(Denied::TooMany(_)) => "too many".to_owned(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_address_that_guesses_has_to_wait_and_nobody_else_has() {
        let (passwords, key) = passwords("guessed");
        let (passwords, key) = (&passwords, &key);
        // Known before, from the same address.
        assert_eq!(log_in(passwords, key, "ann:right", 1).await, "ann");
        let guesses =
            (0..100).map(|n| async move { log_in(passwords, key, &format!("ann:{n}"), 1).await });
        let said = futures_util::future::join_all(guesses).await;
        let wrong = said.iter().filter(|said| *said == "wrong").count();
        assert!((5..100).contains(&wrong), "{said:?}");
        assert!(said.iter().any(|said| said == "too many"), "{said:?}");
        assert_eq!(
            log_in(passwords, key, "ann:right", 1).await,
            "ann",
            "it is known"
        );
        assert_eq!(log_in(passwords, key, "ann:right", 2).await, "ann");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_browser_that_sends_a_right_password_many_times_at_once_is_let_in() {
        let (passwords, key) = passwords("many");
        let (passwords, key) = (&passwords, &key);
        let logins = (0..50).map(|_| log_in(passwords, key, "ann:right", 1));
        let said = futures_util::future::join_all(logins).await;
        assert!(said.iter().all(|said| said == "ann"), "{said:?}");
    }

    /// Otherwise every spelling of a password that is known would end the pauses.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_known_password_is_known_in_each_spelling_of_its_header() {
        let (passwords, key) = passwords("spelled");
        assert_eq!(log_in(&passwords, &key, "ann:right", 1).await, "ann");
        for n in 0..20 {
            let said = log_in(&passwords, &key, &format!("ann:{n}"), 1).await;
            assert_ne!(said, "ann");
        }
        let header = format!("bAsIc  {} ", STANDARD.encode("ann:right"));
        let from = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
        let said = passwords.check(&key, Some(&header), from).await;
        assert_eq!(said, Ok("ann".to_owned()));
        assert_eq!(lock(&passwords.known).len(), 1);
    }
}
