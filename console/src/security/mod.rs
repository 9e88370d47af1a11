//! Who may ask, from which page, and what browsers may do with the answer.
mod attempts;
mod origin;
mod password;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, header};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::limits::{Client, network};
use origin::{Origin, Origins};
pub use password::PasswordError;
use password::{Denied, Passwords};

/// The names of the cookies.
pub const SESSION: &str = "fetchq_session";
pub const FLASH: &str = "fetchq_flash";

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// The client, or the proxy before it.
    pub remote: IpAddr,
    /// This machine.
    pub local: SocketAddr,
}

/// How requests are checked.
pub struct Security {
    key: hmac::Key,
    auth_header: Option<HeaderName>,
    passwords: Option<Arc<Passwords>>,
    origins: Origins,
}

/// Why the process cannot start.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    #[error(transparent)]
    Passwords(#[from] PasswordError),
    #[error("{0} is not a name of a header")]
    Header(String),
    #[error("{0} is not an origin, such as https://queues.example.com")]
    Origin(String),
    #[error("the system gives no random numbers")]
    Random,
}

/// The person behind a request: a cookie, and a name if somebody has logged in.
#[derive(Debug, Clone)]
pub struct Session {
    pub id: String,
    /// What forms send back, so that no other site can make them.
    pub token: String,
    pub user: Option<String>,
    /// For whom limits hold.
    pub client: Client,
    /// What the action before has done.
    pub flash: Option<Flash>,
}

/// What an action has done, for the page that comes next.
#[derive(Debug, Clone)]
pub struct Flash {
    pub is_error: bool,
    pub text: String,
}

impl Security {
    /// # Errors
    /// A file or a value of the command line is wrong.
    pub fn new(
        auth_header: Option<&str>,
        password_file: Option<&Path>,
        origins: &[String],
    ) -> Result<Self, SecurityError> {
        let header = |name: &str| {
            HeaderName::try_from(name.to_ascii_lowercase())
                .map_err(|_| SecurityError::Header(name.to_owned()))
        };
        let origin = |text: &String| {
            Origin::parse(text).ok_or_else(|| SecurityError::Origin(text.to_owned()))
        };
        let origins = origins.iter().map(origin).collect::<Result<_, _>>()?;
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| SecurityError::Random)?;
        Ok(Self {
            key,
            auth_header: auth_header.map(header).transpose()?,
            passwords: password_file
                .map(Passwords::read)
                .transpose()?
                .map(Arc::new),
            origins: Origins(origins),
        })
    }

    fn sign(&self, text: &str) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, text.as_bytes()))
    }

    fn is_signed(&self, text: &str, signature: &str) -> bool {
        let Ok(signature) = URL_SAFE_NO_PAD.decode(signature) else {
            return false;
        };
        hmac::verify(&self.key, text.as_bytes(), &signature).is_ok()
    }

    /// Whether a form came from a page of this session.
    pub fn is_token(&self, session: &Session, token: &str) -> bool {
        self.is_signed(&format!("form {}", session.id), token)
    }

    /// The cookie that shows a message on the next page.
    pub fn flash_cookie(&self, flash: &Flash) -> String {
        let kind = if flash.is_error { 'e' } else { 'i' };
        // A cookie of more than four kilobytes is dropped by browsers.
        let text: String = flash.text.chars().take(700).collect();
        let value = URL_SAFE_NO_PAD.encode(format!("{kind}{text}"));
        let signature = self.sign(&format!("flash {value}"));
        format!("{FLASH}={value}.{signature}; Path=/; HttpOnly; SameSite=Strict; Max-Age=60")
    }

    fn flash(&self, headers: &HeaderMap) -> Option<Flash> {
        let (value, signature) = cookie(headers, FLASH)?.split_once('.')?;
        if !self.is_signed(&format!("flash {value}"), signature) {
            return None;
        }
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(value).ok()?).ok()?;
        let is_error = text.starts_with('e');
        Some(Flash {
            is_error,
            text: text.get(1..)?.to_owned(),
        })
    }

    /// The session of a request, and whether it begins with it. None: the system gives no random
    /// numbers.
    pub fn session(
        &self,
        headers: &HeaderMap,
        user: Option<String>,
        ends: Ends,
    ) -> Option<(Session, bool)> {
        let known = cookie(headers, SESSION)
            .filter(|id| id.len() == 22 && URL_SAFE_NO_PAD.decode(id).is_ok());
        let is_new = known.is_none();
        let id = match known {
            Some(id) => id.to_owned(),
            None => {
                let mut bytes = [0_u8; 16];
                SystemRandom::new().fill(&mut bytes).ok()?;
                URL_SAFE_NO_PAD.encode(bytes)
            }
        };
        let token = self.sign(&format!("form {id}"));
        let client = match &user {
            Some(user) => Client::User(user.clone()),
            None => Client::Network(network(ends.remote)),
        };
        Some((
            Session {
                id,
                token,
                user,
                client,
                flash: self.flash(headers),
            },
            is_new,
        ))
    }

    /// The name in the header of the proxy, or of basic authentication.
    ///
    /// # Errors
    /// Nobody is logged in.
    pub async fn user(&self, headers: &HeaderMap, ends: Ends) -> Result<Option<String>, Refusal> {
        if let Some(name) = &self.auth_header {
            let mut values = headers.get_all(name).iter();
            // With two of them, one may come from the browser and not from the proxy.
            let (Some(value), None) = (values.next(), values.next()) else {
                return Err(Refusal::NoHeader);
            };
            let user = String::from_utf8_lossy(value.as_bytes()).trim().to_owned();
            return if user.is_empty() {
                Err(Refusal::NoHeader)
            } else {
                Ok(Some(user))
            };
        }
        let Some(passwords) = &self.passwords else {
            return Ok(None);
        };
        let given = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        match passwords.check(&self.key, given, ends.remote).await {
            Ok(user) => Ok(Some(user)),
            Err(Denied::Wrong) => Err(Refusal::NoPassword),
            Err(Denied::TooMany(pause)) => Err(Refusal::TooMany(pause)),
        }
    }

    /// Whether a request names the console.
    pub fn is_host(&self, headers: &HeaderMap, ends: Ends) -> bool {
        host(headers).is_some_and(|host| self.origins.is_host(&host, ends.local))
    }

    /// Whether a request that changes something comes from a page of this process.
    pub fn is_same_origin(&self, headers: &HeaderMap) -> bool {
        let origin = headers
            .get(header::ORIGIN)
            .and_then(|value| value.to_str().ok());
        let host = host(headers);
        origin.is_some_and(|origin| {
            self.origins
                .is_same(&origin.to_ascii_lowercase(), host.as_deref())
        })
    }
}

fn host(headers: &HeaderMap) -> Option<String> {
    headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .map(str::to_ascii_lowercase)
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Why a request is refused.
pub enum Refusal {
    NoHeader,
    NoPassword,
    /// Too many wrong passwords have come from the address, which has to wait for this time.
    TooMany(Duration),
}
