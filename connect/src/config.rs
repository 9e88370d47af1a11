//! Connection strings and the variables of libpq.
use std::env;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// What is wrong with a connection string or a certificate.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("the connection string of database {0} cannot be read: {1}")]
    Url(String, String),
    #[error(
        "{0} is not a value of sslmode; use disable, prefer, require, verify-ca or verify-full"
    )]
    SslMode(String),
    #[error("{0} is not a number of a port: correct PGPORT")]
    Port(String),
    #[error("the certificates of {0} cannot be read: {1}")]
    Certificates(String, String),
    #[error("the private key of {0} cannot be read: {1}")]
    Key(String, String),
    #[error(
        "a certificate needs its private key, and the other way round: give sslcert and sslkey"
    )]
    HalfCertificate,
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
    #[error("the pool of connections cannot be made: {0}")]
    Pool(String),
}

/// How much TLS proves, as in libpq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// `disable`, `allow`, `prefer`, `require` without `sslrootcert`: any certificate.
    Nothing,
    /// `verify-ca`, and `require` with `sslrootcert`: a certificate of a known authority.
    Authority,
    /// `verify-full`: of a known authority, for the name of the host.
    Full,
}

/// A database to connect to.
pub struct Target {
    /// Where it is, and who connects.
    pub config: Config,
    pub(crate) verify: Verify,
    pub(crate) root_certificates: Option<PathBuf>,
    /// The certificate of this program, and its private key.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// The options that the driver does not know, or knows fewer values of.
const OURS: [(&str, &str); 4] = [
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
];

/// The values of `OURS`, from a connection string or else from the variables.
struct Tls([Option<String>; 4]);

impl Tls {
    fn new(options: Vec<(String, String)>) -> Self {
        Self(OURS.map(|(name, variable)| {
            let given = options.iter().rev().find(|(key, _)| key == name);
            given
                .map(|(_, value)| value.clone())
                .or_else(|| env::var(variable).ok())
                .filter(|value| !value.is_empty())
        }))
    }
}

impl Target {
    /// Reads `postgres://…`, or `key=value …` as libpq does.
    pub fn from_url(text: &str) -> Result<Self, ConfigError> {
        let (rest, options) = split(text.trim());
        let mut config = Config::from_str(&rest)
            .map_err(|error| ConfigError::Url(redacted(&rest), chain(&error)))?;
        // libpq takes from the variables what the string leaves out.
        if config.get_password().is_none()
            && let Ok(password) = env::var("PGPASSWORD")
        {
            config.password(password);
        }
        Self::new(config, Tls::new(options))
    }

    /// Reads PGHOST, PGPORT, PGDATABASE, PGUSER and PGPASSWORD.
    pub fn from_environment() -> Result<Self, ConfigError> {
        let mut config = Config::new();
        if let Ok(port) = env::var("PGPORT") {
            config.port(port.parse().map_err(|_| ConfigError::Port(port))?);
        }
        if let Ok(password) = env::var("PGPASSWORD") {
            config.password(password);
        }
        if let Ok(host) = env::var("PGHOST") {
            config.host(host);
        }
        if let Ok(user) = env::var("PGUSER") {
            config.user(user);
        }
        if let Ok(name) = env::var("PGDATABASE") {
            config.dbname(name);
        }
        Self::new(config, Tls::new(Vec::new()))
    }

    fn new(
        mut config: Config,
        Tls([mode, root, certificate, key]): Tls,
    ) -> Result<Self, ConfigError> {
        let verify = match mode.as_deref().unwrap_or("prefer") {
            "disable" => {
                config.ssl_mode(SslMode::Disable);
                Verify::Nothing
            }
            "allow" | "prefer" => {
                config.ssl_mode(SslMode::Prefer);
                Verify::Nothing
            }
            "require" => {
                config.ssl_mode(SslMode::Require);
                if root.is_some() {
                    Verify::Authority
                } else {
                    Verify::Nothing
                }
            }
            "verify-ca" => {
                config.ssl_mode(SslMode::Require);
                Verify::Authority
            }
            "verify-full" => {
                config.ssl_mode(SslMode::Require);
                Verify::Full
            }
            other => return Err(ConfigError::SslMode(other.to_owned())),
        };
        if config.get_hosts().is_empty() {
            let socket = ["/var/run/postgresql", "/tmp"]
                .into_iter()
                .find(|path| PathBuf::from(path).exists());
            config.host(socket.unwrap_or("localhost"));
        }
        if config.get_user().is_none() {
            config.user(env::var("USER").unwrap_or_else(|_| "postgres".to_owned()));
        }
        if config.get_dbname().is_none() {
            let user = config.get_user().unwrap_or("postgres").to_owned();
            config.dbname(user);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(Duration::from_secs(4));
        }
        Ok(Self {
            config,
            verify,
            root_certificates: root.map(PathBuf::from),
            certificate: certificate.map(PathBuf::from),
            key: key.map(PathBuf::from),
        })
    }

    /// The name of the database.
    pub fn database(&self) -> &str {
        self.config.get_dbname().unwrap_or("postgres")
    }

    /// The role that connects.
    pub fn user(&self) -> String {
        self.config.get_user().unwrap_or_default().to_owned()
    }

    /// Host, port and database.
    pub fn place(&self) -> String {
        let label = self.label();
        let host = label.rsplit_once('@').map_or("", |(_, host)| host);
        format!("{host}/{}", self.database())
    }

    /// User, host and port, without the password.
    pub fn label(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            Some(Host::Unix(path)) => path.display().to_string(),
            None => "localhost".to_owned(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        format!(
            "{}@{host}:{port}",
            self.config.get_user().unwrap_or_default()
        )
    }
}

/// The connection strings of a text: several `postgres://…` have blanks between them, and one of the
/// form `host=…` has blanks inside.
pub fn each(text: &str) -> Vec<&str> {
    let text = text.trim();
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        text.split_whitespace().collect()
    } else if text.is_empty() {
        Vec::new()
    } else {
        vec![text]
    }
}

/// Takes the options of `OURS` out of a connection string.
fn split(text: &str) -> (String, Vec<(String, String)>) {
    let is_ours = |key: &str| OURS.iter().any(|(name, _)| *name == key);
    let mut ours = Vec::new();
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let Some((base, query)) = text.split_once('?') else {
            return (text.to_owned(), ours);
        };
        let mut kept = Vec::new();
        for pair in query.split('&') {
            match pair.split_once('=') {
                Some((key, value)) if is_ours(key) => {
                    ours.push((
                        key.to_owned(),
                        percent_decode_str(value).decode_utf8_lossy().into_owned(),
                    ));
                }
                _ => kept.push(pair),
            }
        }
        let query = kept.join("&");
        return (
            if query.is_empty() {
                base.to_owned()
            } else {
                format!("{base}?{query}")
            },
            ours,
        );
    }
    let mut kept = Vec::new();
    for pair in text.split_whitespace() {
        match pair.split_once('=') {
            Some((key, value)) if is_ours(key) => {
                ours.push((key.to_owned(), value.trim_matches('\'').to_owned()));
            }
            _ => kept.push(pair),
        }
    }
    if ours.is_empty() {
        (text.to_owned(), ours)
    } else {
        (kept.join(" "), ours)
    }
}

/// An error with its causes: the driver keeps to itself what is wrong with a string.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// The part of a connection string that has no password.
fn redacted(text: &str) -> String {
    if let Some((_, rest)) = text.rsplit_once('@') {
        return rest.to_owned();
    }
    text.split_whitespace()
        .filter(|pair| !pair.starts_with("password"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_of_libpq_that_the_driver_does_not_know_is_taken_out() {
        let (rest, ours) = split("postgres://a:b@h/d?sslmode=verify-full&connect_timeout=3");
        assert_eq!(rest, "postgres://a:b@h/d?connect_timeout=3");
        assert_eq!(ours, [("sslmode".to_owned(), "verify-full".to_owned())]);
        let (rest, ours) = split("host=h password=' x ' dbname=d");
        assert_eq!(
            (rest.as_str(), ours.len()),
            ("host=h password=' x ' dbname=d", 0)
        );
    }

    #[test]
    fn several_strings_have_blanks_between_them_and_one_has_blanks_inside() {
        assert_eq!(
            each(" postgres://a/b  postgres://c/d "),
            ["postgres://a/b", "postgres://c/d"]
        );
        assert_eq!(each("host=h dbname=d"), ["host=h dbname=d"]);
        assert!(each(" ").is_empty());
    }

    #[test]
    fn no_error_shows_a_password() {
        for url in [
            "postgres://me:secret@h:x/d",
            "host=h password=secret port=x",
        ] {
            let error = Target::from_url(url).err().map(|error| error.to_string());
            assert!(!error.expect("a bad port").contains("secret"));
        }
    }
}
