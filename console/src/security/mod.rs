//! Who may ask, from which page, and what browsers may do with the answer.
mod password;

use std::path::Path;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::state::App;
use crate::web::problem::plain;
pub use password::PasswordError;

const SESSION: &str = "fetchq_session";
const FLASH: &str = "fetchq_flash";

/// What browsers may load: what this process serves, and no script or style inside a page.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// How requests are checked.
pub struct Security {
    key: hmac::Key,
    auth_header: Option<HeaderName>,
    passwords: Option<password::Passwords>,
    /// Host and port of `--origin`.
    origin: Option<String>,
    /// Whether only names of this machine are accepted as `Host`.
    is_loopback: bool,
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
    id: String,
    /// What forms send back, so that no other site can make them.
    pub token: String,
    pub user: Option<String>,
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
        origin: Option<&str>,
        is_loopback: bool,
    ) -> Result<Self, SecurityError> {
        let header = |name: &str| {
            HeaderName::try_from(name.to_ascii_lowercase())
                .map_err(|_| SecurityError::Header(name.to_owned()))
        };
        let origin = match origin {
            None => None,
            Some(text) => {
                let host = text
                    .strip_prefix("https://")
                    .or_else(|| text.strip_prefix("http://"));
                let host = host
                    .map(|host| host.trim_end_matches('/'))
                    .filter(|host| !host.is_empty());
                let host = host.filter(|host| !host.contains('/'));
                Some(
                    host.ok_or_else(|| SecurityError::Origin(text.to_owned()))?
                        .to_ascii_lowercase(),
                )
            }
        };
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| SecurityError::Random)?;
        Ok(Self {
            key,
            auth_header: auth_header.map(header).transpose()?,
            passwords: password_file.map(password::Passwords::read).transpose()?,
            origin,
            is_loopback,
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

    fn session(&self, headers: &HeaderMap, user: Option<String>) -> Option<(Session, bool)> {
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
        Some((
            Session {
                id,
                token,
                user,
                flash: self.flash(headers),
            },
            is_new,
        ))
    }

    /// The name in the header of the proxy, or of basic authentication.
    async fn user(&self, headers: &HeaderMap) -> Result<Option<String>, Refusal> {
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
        if let Some(passwords) = &self.passwords {
            let given = headers
                .get(header::AUTHORIZATION)
                .and_then(|value| value.to_str().ok());
            let user = passwords
                .check(&self.key, given)
                .await
                .ok_or(Refusal::NoPassword)?;
            return Ok(Some(user));
        }
        Ok(None)
    }

    /// Whether a request names a host that this process serves. Without that, a page of another site
    /// could have its own name resolve to a loopback address.
    fn is_host(&self, headers: &HeaderMap) -> bool {
        let Some(host) = host(headers) else {
            return false;
        };
        if let Some(origin) = &self.origin {
            if host == *origin {
                return true;
            }
        } else if !self.is_loopback {
            return true;
        }
        let name = if host.starts_with('[') {
            host.split_inclusive(']').next().unwrap_or_default()
        } else {
            host.split(':').next().unwrap_or_default()
        };
        name == "localhost" || name == "[::1]" || is_loopback_v4(name)
    }

    /// Whether a request that changes something comes from a page of this process.
    fn is_same_origin(&self, headers: &HeaderMap) -> bool {
        let Some(origin) = headers
            .get(header::ORIGIN)
            .and_then(|value| value.to_str().ok())
        else {
            return false;
        };
        let Some((_, from)) = origin.split_once("://") else {
            return false;
        };
        let from = from.to_ascii_lowercase();
        self.origin.as_ref() == Some(&from) || host(headers) == Some(from)
    }
}

fn is_loopback_v4(name: &str) -> bool {
    name.parse::<std::net::Ipv4Addr>()
        .is_ok_and(|address| address.is_loopback())
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
enum Refusal {
    NoHeader,
    NoPassword,
}

/// Checks each request, and adds the headers to each answer.
pub async fn guard(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let security = &app.security;
    let headers = request.headers();
    if !security.is_host(headers) {
        let text = "This name of the console is not known. Start it with --origin and the address that browsers use.";
        return protect(plain(StatusCode::MISDIRECTED_REQUEST, "Unknown host", text));
    }
    let user = match security.user(headers).await {
        Ok(user) => user,
        Err(Refusal::NoHeader) => {
            let text = "The proxy in front of the console has to say who you are, and this request does not.";
            return protect(plain(StatusCode::FORBIDDEN, "Not logged in", text));
        }
        Err(Refusal::NoPassword) => {
            let mut response = plain(
                StatusCode::UNAUTHORIZED,
                "Not logged in",
                "A name and a password are needed.",
            );
            let challenge = HeaderValue::from_static("Basic realm=\"fetchq\", charset=\"UTF-8\"");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, challenge);
            return protect(response);
        }
    };
    let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
    if !is_reading && !security.is_same_origin(headers) {
        let text = "This request does not come from a page of the console.";
        return protect(plain(StatusCode::FORBIDDEN, "Another site", text));
    }
    let Some((session, is_new)) = security.session(headers, user) else {
        let text = "The system gives no random numbers.";
        return protect(plain(StatusCode::INTERNAL_SERVER_ERROR, "No session", text));
    };
    let (id, had_flash) = (session.id.clone(), session.flash.is_some());
    request.extensions_mut().insert(session);
    let mut response = next.run(request).await;
    let kind = response
        .headers()
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let is_page = kind.starts_with("text/html");
    if is_page && is_new {
        set_cookie(
            &mut response,
            &format!("{SESSION}={id}; Path=/; HttpOnly; SameSite=Strict"),
        );
    }
    if is_page && had_flash {
        set_cookie(
            &mut response,
            &format!("{FLASH}=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0"),
        );
    }
    protect(response)
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(value) = HeaderValue::from_str(cookie) {
        response.headers_mut().append(header::SET_COOKIE, value);
    }
}

/// Adds the headers that every answer has.
fn protect(mut response: Response) -> Response {
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value: &'static str| {
        headers.insert(name, HeaderValue::from_static(value));
    };
    set(header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY);
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::X_FRAME_OPTIONS, "DENY");
    set(header::REFERRER_POLICY, "same-origin");
    set(
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    );
    set(
        HeaderName::from_static("permissions-policy"),
        "camera=(), geolocation=(), microphone=()",
    );
    // Files that never change say so themselves. Pages show documents, which no cache should keep.
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}
