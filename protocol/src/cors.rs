//! Cross-origin requests: which web pages may read answers, and the headers that tell browsers so
//! (the CORS protocol of the Fetch standard).

use crate::ApiKeys;

/// Whose web pages may use the server: the application variable `allowed_origins`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedOrigins {
    /// Pages from this machine: `localhost`, `127.0.0.0/8` and `[::1]`, any scheme and port. Any
    /// other page that the user happens to visit could use a local model that asks for no key otherwise.
    Loopback,
    /// Any page.
    Any,
    /// These origins, as browsers write them (`https://example.org`).
    Listed(Vec<String>),
}

impl AllowedOrigins {
    /// Whose pages may where the variable says nothing: any, once the server asks for keys, since a page
    /// has none unless its user gives it one.
    pub fn default_with(keys: &ApiKeys) -> Self {
        match keys.is_empty() {
            true => Self::Loopback,
            false => Self::Any,
        }
    }

    /// Reads the variable: `*` is [`Self::Any`], otherwise origins with commas between them; nothing if
    /// it is empty.
    ///
    /// # Errors
    ///
    /// A sentence that names what is no origin.
    pub fn parse(text: &str) -> Result<Option<Self>, String> {
        match text.trim() {
            "" => return Ok(None),
            "*" => return Ok(Some(Self::Any)),
            _ => {}
        }
        let origins = text.split(',').map(str::trim).filter(|origin| !origin.is_empty());
        origins
            .map(|origin| match origin.split_once("://") {
                Some((scheme, rest))
                    if !scheme.is_empty() && !rest.is_empty() && !rest.contains(['/', '*']) =>
                {
                    Ok(origin.to_ascii_lowercase())
                }
                _ => Err(format!(
                    "{origin:?} is no origin; one looks like https://example.org, and * alone means any"
                )),
            })
            .collect::<Result<_, _>>()
            .map(|origins| Some(Self::Listed(origins)))
    }

    /// Whether pages of that origin may read answers.
    pub fn allows(&self, origin: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Loopback => {
                origin.split_once("://").is_some_and(|(_, authority)| is_loopback(authority))
            }
            Self::Listed(origins) => {
                origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin))
            }
        }
    }

    /// The headers of an answer to a request from `origin`.
    pub fn answer_headers(&self, origin: Option<&str>) -> Vec<(&'static str, String)> {
        // Caches must not hand an answer for no page, or for another one, to a page.
        let mut headers = vec![("vary", "origin".to_owned())];
        let Some(origin) = origin else {
            return headers;
        };
        if self.allows(origin) {
            headers.push(("access-control-allow-origin", origin.to_owned()));
            headers.push(("access-control-expose-headers", "x-request-id, retry-after".to_owned()));
        }
        headers
    }

    /// The headers of an answer to `OPTIONS` for a path that takes the methods `allow`.
    /// `requested` are the headers that a preflight asks for.
    pub fn preflight_headers(
        &self,
        origin: Option<&str>,
        allow: &str,
        requested: Option<&str>,
    ) -> Vec<(&'static str, String)> {
        let mut headers = self.answer_headers(origin);
        headers.push(("allow", format!("{allow}, OPTIONS")));
        if origin.is_some_and(|origin| self.allows(origin)) {
            // `*` would not cover authorization.
            let mut allowed = vec!["authorization", "content-type"];
            for name in requested.unwrap_or_default().split(',').map(str::trim) {
                if is_token(name) && !allowed.iter().any(|known| name.eq_ignore_ascii_case(known)) {
                    allowed.push(name);
                }
            }
            headers.push(("access-control-allow-methods", format!("{allow}, OPTIONS")));
            headers.push(("access-control-allow-headers", allowed.join(", ")));
            headers.push(("access-control-max-age", "600".to_owned()));
        }
        headers
    }
}

/// Whether a host, with or without a port, is this machine by its name alone, so that no DNS server
/// has a say in where it leads.
pub fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, "")) => host,
            Some((host, port)) if port.strip_prefix(':').is_some_and(is_port) => host,
            _ => return false,
        },
        None => match authority.split_once(':') {
            Some((host, port)) if is_port(port) => host,
            Some(_) => return false,
            None => authority,
        },
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost"
        || host.ends_with(".localhost")
        || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A header's name, as RFC 9110 spells tokens.
fn is_token(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_has_three_forms() {
        assert_eq!(AllowedOrigins::parse(" "), Ok(None));
        assert_eq!(AllowedOrigins::parse("*"), Ok(Some(AllowedOrigins::Any)));
        let listed = AllowedOrigins::parse("https://A.example, http://b.example:8080,").unwrap();
        let listed = listed.unwrap();
        assert!(listed.allows("https://a.example") && listed.allows("http://b.example:8080"));
        assert!(!listed.allows("http://a.example") && !listed.allows("http://localhost"));
        for bad in ["example.org", "https://a/b", "https://", "https://*.org", "*, https://a"] {
            assert!(AllowedOrigins::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn with_keys_any_page_may_by_default() {
        let with = |keys| AllowedOrigins::default_with(&ApiKeys::parse(keys).unwrap());
        assert_eq!(with(""), AllowedOrigins::Loopback);
        assert_eq!(with("k"), AllowedOrigins::Any);
    }

    #[test]
    fn loopback_is_known_by_its_name() {
        for good in [
            "http://localhost",
            "http://localhost:3000",
            "https://app.LOCALHOST.",
            "http://127.0.0.1:1",
            "http://127.9.9.9",
            "http://[::1]:3000",
            "http://[::1]",
        ] {
            assert!(AllowedOrigins::Loopback.allows(good), "{good}");
        }
        for bad in [
            "null",
            "http://example.org",
            "http://localhost.example.org",
            "http://notlocalhost",
            "http://127.0.0.1.nip.io",
            "http://[::2]",
            "http://[::1]x",
            "http://[::1]:x",
            "http://localhost:80@example.org",
            "http://0.0.0.0",
            "",
        ] {
            assert!(!AllowedOrigins::Loopback.allows(bad), "{bad}");
        }
        assert!(AllowedOrigins::Any.allows("null"));
    }

    fn get<'a>(headers: &'a [(&'static str, String)], name: &str) -> Option<&'a str> {
        headers.iter().find(|(found, _)| *found == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn answers_name_the_origin_only_where_it_may_read_them() {
        let origins = AllowedOrigins::Loopback;
        assert_eq!(origins.answer_headers(None), [("vary", "origin".to_owned())]);
        let allowed = origins.answer_headers(Some("http://localhost:5"));
        assert_eq!(get(&allowed, "access-control-allow-origin"), Some("http://localhost:5"));
        let other = origins.answer_headers(Some("https://example.org"));
        assert_eq!(other, [("vary", "origin".to_owned())]);
    }

    #[test]
    fn preflights_list_what_was_asked_for() {
        let origins = AllowedOrigins::Any;
        let asked = Some("Authorization, x-stainless-os,X-A, bad name, \u{e9}");
        let headers = origins.preflight_headers(Some("https://a"), "POST", asked);
        assert_eq!(
            get(&headers, "access-control-allow-headers"),
            Some("authorization, content-type, x-stainless-os, X-A")
        );
        assert_eq!(get(&headers, "access-control-allow-methods"), Some("POST, OPTIONS"));
        let refused = AllowedOrigins::Loopback.preflight_headers(Some("https://a"), "POST", asked);
        assert_eq!(get(&refused, "access-control-allow-headers"), None);
        assert_eq!(get(&refused, "allow"), Some("POST, OPTIONS"));
    }
}
