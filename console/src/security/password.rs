//! Basic authentication by a file of hashed passwords, one `name:hash` in each line.
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use argon2::Argon2;
use argon2::password_hash::{PasswordHash, PasswordVerifier};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use tokio::sync::Semaphore;

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
    running: Semaphore,
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
            running: Semaphore::new(AT_A_TIME),
        })
    }

    /// The user whom an `Authorization` header names, if its password is right.
    pub async fn check(&self, key: &hmac::Key, header: Option<&str>) -> Option<String> {
        let header = header?;
        let signature = hmac::sign(key, format!("basic {header}").as_bytes())
            .as_ref()
            .to_vec();
        let known = self
            .known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&signature)
            .cloned();
        if known.is_some() {
            return known;
        }
        let (scheme, encoded) = header.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (user, password) = text.split_once(':')?;
        let (user, password, hashes) = (user.to_owned(), password.to_owned(), self.hashes.clone());
        let _permit = self.running.acquire().await.ok()?;
        let checked = tokio::task::spawn_blocking(move || {
            // An unknown name takes as long as a wrong password.
            let hash = hashes.get(&user).or_else(|| hashes.values().next())?;
            (is_right(&password, hash) && hashes.contains_key(&user)).then_some(user)
        });
        let user = checked.await.ok().flatten()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(signature, user.clone());
        Some(user)
    }
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
}
