//! Which hosts a component may connect to: `allowed_outbound_hosts` of the manifest.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail, ensure};

/// The hosts, `SCHEME://HOST:PORT` each. None by default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedHosts(Vec<AllowedHost>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct AllowedHost {
    /// None: any.
    scheme: Option<String>,
    host: Host,
    ports: Ports,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Any,
    /// A name or an address.
    Exactly(String),
    /// Names that end with this, which begins with a dot.
    Below(String),
    /// Addresses whose first bits are these.
    Network(IpAddr, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ports {
    first: u16,
    /// The last one too.
    last: u16,
}

impl AllowedHosts {
    /// Reads the manifest's list, whose templates are filled in.
    ///
    /// # Errors
    ///
    /// A sentence that names what is no such host.
    pub fn parse<'a>(hosts: impl IntoIterator<Item = &'a str>) -> anyhow::Result<Self> {
        let parse = |host| {
            AllowedHost::parse(host).with_context(|| format!("allowed_outbound_hosts: {host:?}"))
        };
        hosts.into_iter().map(parse).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a connection may be made in the name of that scheme. `port` is the scheme's own where the
    /// URL has none.
    pub fn allow(&self, scheme: &str, host: &str, port: u16) -> bool {
        self.0.iter().any(|allowed| {
            allowed.scheme.as_deref().is_none_or(|known| known.eq_ignore_ascii_case(scheme))
                && allowed.host.is(host)
                && allowed.ports.has(port)
        })
    }

    /// Whether a socket may be connected to that address, whatever is spoken over it.
    pub fn allow_address(&self, address: SocketAddr) -> bool {
        self.allow("*", &address.ip().to_string(), address.port())
    }
}

impl AllowedHost {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = text.split_once("://").context(
            "must be SCHEME://HOST:PORT, for example https://example.org or *://10.0.0.1:5432",
        )?;
        ensure!(!scheme.is_empty(), "has no scheme before ://");
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        ensure!(
            !rest.contains(['?', '#', '@']),
            "must be a host and a port, without a path, a query or a user"
        );
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').context("has a [ without ]")?;
                (host, rest.strip_prefix(':'))
            }
            None => match rest.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        ensure!(!host.is_empty(), "has no host");
        ensure!(
            host != "self" && !host.ends_with(".spin.internal"),
            "leads to another component, which isn't supported here"
        );
        let ports = match (port, scheme) {
            (Some(port), _) => Ports::parse(port)?,
            (None, "http") => Ports::one(80),
            (None, "https") => Ports::one(443),
            (None, _) => bail!("needs a port; :* is any"),
        };
        let scheme = (scheme != "*").then(|| scheme.to_ascii_lowercase());
        Ok(Self { scheme, host: Host::parse(host)?, ports })
    }
}

impl Host {
    fn parse(text: &str) -> anyhow::Result<Self> {
        if text == "*" {
            return Ok(Self::Any);
        }
        if let Some((address, bits)) = text.split_once('/') {
            let address: IpAddr = address.parse().context("has a path or is no network")?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse().ok().filter(|bits| *bits <= most);
            return Ok(Self::Network(address, bits.context("has a path or is no network")?));
        }
        let lower = text.to_ascii_lowercase();
        match lower.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') && !rest.contains('*') => {
                Ok(Self::Below(rest.to_owned()))
            }
            None if !lower.contains('*') => Ok(Self::Exactly(lower)),
            _ => bail!("may have a * only in place of the whole host, or before its first dot"),
        }
    }

    fn is(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        match self {
            Self::Any => true,
            Self::Exactly(name) => *name == host,
            Self::Below(end) => host.ends_with(end.as_str()),
            Self::Network(network, bits) => {
                host.parse().is_ok_and(|address| within(address, *network, *bits))
            }
        }
    }
}

fn within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let (address, network, all) = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(n)) => (u128::from(a.to_bits()), u128::from(n.to_bits()), 32),
        (IpAddr::V6(a), IpAddr::V6(n)) => (a.to_bits(), n.to_bits(), 128),
        _ => return false,
    };
    let rest = all - u32::from(bits);
    address.checked_shr(rest).unwrap_or(0) == network.checked_shr(rest).unwrap_or(0)
}

impl Ports {
    fn one(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// `*`, `80`, or `8000..8100`, whose end is not in it.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let number = |text: &str| text.parse::<u16>().ok().context("has a port that is none");
        Ok(match text.split_once("..") {
            _ if text == "*" => Self { first: 0, last: u16::MAX },
            Some((first, end)) => {
                let (first, end) = (number(first)?, number(end)?);
                ensure!(first < end, "has a range of ports without a port");
                Self { first, last: end - 1 }
            }
            None => Self::one(number(text)?),
        })
    }

    fn has(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(host: &str, scheme: &str, name: &str, port: u16) -> bool {
        AllowedHosts::parse([host]).unwrap().allow(scheme, name, port)
    }

    #[test]
    fn hosts_are_allowed_by_scheme_name_and_port() {
        assert!(allow("https://example.org", "https", "example.org", 443));
        assert!(allow("https://Example.org/", "HTTPS", "EXAMPLE.ORG", 443));
        assert!(!allow("https://example.org", "http", "example.org", 80));
        assert!(!allow("https://example.org", "https", "example.org", 8443));
        assert!(!allow("https://example.org", "https", "example.org.evil", 443));
        assert!(allow("http://localhost:*", "http", "localhost", 1));
        assert!(allow("http://localhost:10..12", "http", "localhost", 11));
        assert!(!allow("http://localhost:10..12", "http", "localhost", 12));
        assert!(allow("https://*.example.org", "https", "a.b.example.org", 443));
        assert!(!allow("https://*.example.org", "https", "example.org", 443));
        assert!(!allow("https://*.example.org", "https", "badexample.org", 443));
        assert!(allow("*://*:*", "redis", "anything", 6379));
        assert!(allow("http://[::1]:80", "http", "[::1]", 80));
        assert!(!AllowedHosts::default().allow("https", "example.org", 443));
    }

    #[test]
    fn sockets_are_allowed_by_their_address() {
        let hosts = |host| AllowedHosts::parse([host]).unwrap();
        let address = |text: &str| text.parse().unwrap();
        assert!(hosts("*://10.0.0.0/8:5432").allow_address(address("10.9.8.7:5432")));
        assert!(!hosts("*://10.0.0.0/8:5432").allow_address(address("11.0.0.1:5432")));
        assert!(!hosts("*://10.0.0.0/8:5432").allow_address(address("10.9.8.7:80")));
        assert!(hosts("*://0.0.0.0/0:*").allow_address(address("9.9.9.9:9")));
        assert!(hosts("*://[fe80::/10]:*").allow_address(address("[fe80::1]:9")));
        assert!(!hosts("https://127.0.0.1:80").allow_address(address("127.0.0.1:80")));
        assert!(!AllowedHosts::default().allow_address(address("127.0.0.1:80")));
    }

    #[test]
    fn what_is_no_host_is_named() {
        for wrong in [
            "example.org",
            "https://",
            "://a",
            "tcp://a",
            "https://a:b",
            "https://a:70000",
            "https://a:5..5",
            "https://a/path",
            "https://u@a",
            "https://a.*.org",
            "https://*a.org",
            "http://self",
            "http://x.spin.internal",
            "https://10.0.0.0/33",
            "https://[::1",
        ] {
            let error = format!("{:#}", AllowedHosts::parse([wrong]).unwrap_err());
            assert!(error.contains(&format!("{wrong:?}")), "{error}");
        }
    }
}
