//! The addresses by which browsers reach the console.
//!
//! A page of another site can have its own name resolve to the address of the console: then the browser
//! takes the console for a part of that site, and lets its pages read and send everything (DNS
//! rebinding). The name stays in `Host`, so only names that are known are answered.
use std::net::{IpAddr, SocketAddr};

/// An origin of `--origin`: scheme, host and port, in lower case, without the port that the scheme has
/// anyway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    scheme: &'static str,
    host: String,
}

/// Schemes, and the ports that browsers leave out.
const SCHEMES: [(&str, &str); 2] = [("https", ":443"), ("http", ":80")];

impl Origin {
    /// Reads `https://queues.example.com`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (scheme, host) = text.split_once("://")?;
        let (scheme, port) = SCHEMES.into_iter().find(|(known, _)| *known == scheme)?;
        let host = host.strip_suffix('/').unwrap_or(host);
        let host = host.strip_suffix(port).unwrap_or(host);
        let is_other =
            |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '@' | '\\' | '*');
        if host.is_empty() || host.contains(is_other) {
            return None;
        }
        Some(Self {
            scheme,
            host: host.to_owned(),
        })
    }

    /// Whether `Host` names it. A proxy may add the port.
    fn is_host(&self, host: &str) -> bool {
        let rest = host.strip_prefix(self.host.as_str());
        rest.is_some_and(|rest| rest.is_empty() || SCHEMES.contains(&(self.scheme, rest)))
    }
}

/// The addresses that count.
#[derive(Debug, Default)]
pub struct Origins(pub Vec<Origin>);

impl Origins {
    /// Whether a request whose header `Host` is this one, in lower case, is for the console. `local` is
    /// the address of the connection on this machine.
    pub fn is_host(&self, host: &str, local: SocketAddr) -> bool {
        self.0.iter().any(|origin| origin.is_host(host))
            || is_machine(host)
            || is_address(host, local)
    }

    /// Whether the header `Origin` is that of the console, for a request whose `Host` is.
    pub fn is_same(&self, origin: &str, host: Option<&str>) -> bool {
        let Some((scheme, from)) = origin.split_once("://") else {
            return false;
        };
        let is_known = |known: &Origin| known.scheme == scheme && known.host == from;
        if self.0.iter().any(is_known) {
            return true;
        }
        // This name has a scheme, and it is another one.
        if self.0.iter().any(|known| known.is_host(from)) {
            return false;
        }
        host == Some(from)
    }
}

/// Whether a name is one of this machine itself, by which no other machine reaches anything.
fn is_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

/// Whether a name is the very address to which this connection was made. No name of another site can
/// become that: a browser sends an address only if a page or a person has named the address itself.
/// Checks of a load balancer and a Prometheus that finds its targets by their addresses need no
/// `--origin` for it.
fn is_address(host: &str, local: SocketAddr) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let named = host
        .parse::<SocketAddr>()
        .or_else(|_| bare.parse().map(|ip: IpAddr| SocketAddr::new(ip, 80)));
    named.is_ok_and(|named| {
        named.ip().to_canonical() == local.ip().to_canonical() && named.port() == local.port()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(all: &[&str]) -> Origins {
        let parsed = all
            .iter()
            .map(|text| Origin::parse(text).expect("an origin"));
        Origins(parsed.collect())
    }

    fn at(local: &str) -> SocketAddr {
        local.parse().expect("an address")
    }

    #[test]
    fn an_origin_has_a_scheme_and_a_host_and_nothing_else() {
        for text in [
            "https://queues.example.com",
            "HTTPS://Queues.example.com/",
            "https://queues.example.com:443",
        ] {
            let origin = Origin::parse(text).expect("an origin");
            assert_eq!(
                (origin.scheme, origin.host.as_str()),
                ("https", "queues.example.com")
            );
        }
        assert!(Origin::parse("http://10.0.0.5:8090").is_some());
        for text in [
            "",
            "queues.example.com",
            "https://",
            "ftp://queues.example.com",
            "https://queues.example.com/console",
            "https://user@queues.example.com",
            "https://*.example.com",
            "https://a b",
        ] {
            assert_eq!(Origin::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_that_nobody_has_given_is_not_answered_on_any_address() {
        let none = Origins::default();
        let one = origins(&["https://queues.example.com", "http://console:8090"]);
        for local in ["127.0.0.1:8090", "10.0.0.5:8090"] {
            for host in [
                "attacker.example",
                "attacker.example:8090",
                "queues.example.com.attacker.example",
                "queues.example.com:8443",
                "10.0.0.5.attacker.example:8090",
                "127.0.0.1.attacker.example",
                "localhost.attacker.example:8090",
                "10.0.0.6:8090",
                "10.0.0.5:8091",
                "10.0.0.5",
                "",
                "[",
            ] {
                assert!(!one.is_host(host, at(local)), "{host} on {local}");
                assert!(!none.is_host(host, at(local)), "{host} on {local}");
            }
        }
        for host in [
            "queues.example.com",
            "queues.example.com:443",
            "console:8090",
        ] {
            assert!(one.is_host(host, at("10.0.0.5:8090")), "{host}");
            assert!(!none.is_host(host, at("10.0.0.5:8090")), "{host}");
        }
    }

    #[test]
    fn this_machine_and_the_address_of_the_connection_need_no_origin() {
        let none = Origins::default();
        for host in [
            "localhost",
            "localhost:8090",
            "127.0.0.1:8090",
            "127.0.0.9",
            "[::1]:8090",
            "[::1]",
        ] {
            assert!(none.is_host(host, at("127.0.0.1:8090")), "{host}");
        }
        assert!(none.is_host("10.0.0.5:8090", at("10.0.0.5:8090")));
        assert!(none.is_host("10.0.0.5:8090", at("[::ffff:10.0.0.5]:8090")));
        assert!(none.is_host("[2001:db8::5]:8090", at("[2001:db8::5]:8090")));
        assert!(none.is_host("10.0.0.5", at("10.0.0.5:80")));
    }

    #[test]
    fn only_pages_of_the_console_may_send_forms() {
        let one = origins(&["https://queues.example.com"]);
        let host = Some("queues.example.com");
        assert!(one.is_same("https://queues.example.com", host));
        assert!(one.is_same("http://127.0.0.1:8090", Some("127.0.0.1:8090")));
        // A proxy that gives its own name for the console to the console.
        assert!(one.is_same("https://queues.example.com", Some("127.0.0.1:8090")));
        for from in [
            "http://queues.example.com",
            "https://queues.example.com:8443",
            "https://attacker.example",
            "null",
            "",
        ] {
            assert!(!one.is_same(from, host), "{from}");
        }
    }
}
