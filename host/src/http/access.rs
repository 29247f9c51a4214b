//! Who may ask: by which name a request reached this machine, by which key, and which web pages may read
//! the answers that the host itself makes. A component's own answers are its own affair.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use http::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Request};
use spinfer_protocol::{AllowedOrigins, ApiError, ApiKeys, is_loopback};

use crate::app::App;

/// The component's variable with the origins of web pages.
const ALLOWED_ORIGINS: &str = "allowed_origins";

/// The component's variable with the keys of callers.
const API_KEYS: &str = "api_keys";

/// The rules of one application on one listener.
#[derive(Debug)]
pub struct Access {
    /// Whether only names of this machine are answered to.
    loopback_names_only: bool,
    /// By component: those that may use models.
    rules: BTreeMap<String, Rules>,
    /// For what is no component's.
    others: Rules,
}

/// What a component that may use models says in its variables, as the one of this project understands
/// them. Variables of other components may mean anything.
#[derive(Debug)]
struct Rules {
    keys: ApiKeys,
    origins: AllowedOrigins,
}

impl Rules {
    fn read(variables: &BTreeMap<String, String>) -> anyhow::Result<Self> {
        let value = |name| variables.get(name).map_or("", String::as_str);
        let context = |name| move || format!("the variable {name}");
        let keys = ApiKeys::parse(value(API_KEYS)).map_err(anyhow::Error::msg);
        let keys = keys.with_context(context(API_KEYS))?;
        let origins = AllowedOrigins::parse(value(ALLOWED_ORIGINS)).map_err(anyhow::Error::msg);
        let origins = origins
            .with_context(context(ALLOWED_ORIGINS))?
            .unwrap_or_else(|| AllowedOrigins::default_with(&keys));
        Ok(Self { keys, origins })
    }
}

impl Access {
    /// The rules for an application that listens on that address.
    ///
    /// On a loopback address, and where no key is asked for, only requests by a loopback name are
    /// answered: a web page elsewhere could give its own name this machine's address (DNS rebinding), and
    /// would be of the same origin as the server then.
    ///
    /// # Errors
    ///
    /// When a variable has no value that it can have.
    pub fn new(app: &App, listener: IpAddr) -> anyhow::Result<Self> {
        let rules = app
            .components
            .iter()
            .filter(|(_, component)| !component.ai_models.is_empty())
            .map(|(id, component)| {
                let rules = Rules::read(&component.variables)
                    .with_context(|| format!("in {}: component {id:?}", app.origin))?;
                Ok((id.clone(), rules))
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self::with(rules, listener.is_loopback()))
    }

    fn with(rules: BTreeMap<String, Rules>, loopback: bool) -> Self {
        let mut keys = ApiKeys::default();
        rules.values().for_each(|rules| keys.extend(&rules.keys));
        Self {
            loopback_names_only: loopback && keys.is_empty(),
            rules,
            others: Rules { origins: AllowedOrigins::default_with(&keys), keys },
        }
    }

    fn rules(&self, component: Option<&str>) -> &Rules {
        component.and_then(|id| self.rules.get(id)).unwrap_or(&self.others)
    }

    /// Refuses a request without a key where one is asked for: by a component that may use models or, for
    /// what is no component's (the metrics, unknown paths), by any of them.
    ///
    /// So a request that nobody has a key for takes no place from others, and learns nothing of them.
    pub fn check_key<B>(
        &self,
        component: Option<&str>,
        request: &Request<B>,
    ) -> Result<(), ApiError> {
        let keys = match component {
            Some(id) => self.rules.get(id).map(|rules| &rules.keys),
            None => Some(&self.others.keys),
        };
        let Some(keys) = keys else { return Ok(()) };
        // Of several nobody could say which counts.
        let mut sent = request.headers().get_all(AUTHORIZATION).iter();
        let authorization = sent.next().filter(|_| sent.next().is_none());
        let authorization = authorization.and_then(|value| value.to_str().ok());
        keys.admit(request.method().as_str(), request.uri().path(), authorization)
    }

    /// Refuses a request that came by a name of another machine. One without a name comes from no
    /// browser.
    pub fn check_host<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let header = || request.headers().get(HOST).map(HeaderValue::as_bytes);
        let name = request.uri().authority().map(|name| name.as_str().as_bytes()).or_else(header);
        let name = name.map(String::from_utf8_lossy);
        match name {
            Some(name) if self.loopback_names_only && !is_loopback(&name) => {
                Err(ApiError::forbidden_host(&name))
            }
            _ => Ok(()),
        }
    }

    /// The headers that let web pages read an answer that the host makes in a component's place.
    pub fn headers(&self, component: Option<&str>, origin: Option<&str>) -> HeaderMap {
        let headers = self.rules(component).origins.answer_headers(origin).into_iter();
        headers
            .filter_map(|(name, value)| {
                Some((HeaderName::from_static(name), HeaderValue::try_from(value).ok()?))
            })
            .collect()
    }
}

/// The page that a request comes from, if it tells.
pub fn origin(headers: &HeaderMap) -> Option<String> {
    headers.get(ORIGIN).and_then(|origin| origin.to_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(pairs: &[(&str, &str)]) -> Rules {
        Rules::read(&pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()).unwrap()
    }

    fn access(local: bool) -> Access {
        let any = rules(&[(ALLOWED_ORIGINS, "*")]);
        Access::with([("open".to_owned(), any)].into(), local)
    }

    #[test]
    fn keys_are_asked_for_by_their_component_and_by_what_is_nobody_s() {
        let keyed = rules(&[(API_KEYS, "one,two")]);
        let open = rules(&[]);
        let access =
            Access::with([("keyed".to_owned(), keyed), ("open".to_owned(), open)].into(), true);
        let check = |component, path: &str, key: Option<&str>| {
            let mut request = Request::new(());
            *request.uri_mut() = path.parse().unwrap();
            if let Some(key) = key {
                let value = HeaderValue::try_from(format!("Bearer {key}")).unwrap();
                request.headers_mut().insert(AUTHORIZATION, value);
            }
            access.check_key(component, &request).map_err(|error| error.status)
        };
        for component in [Some("keyed"), None] {
            assert_eq!(check(component, "/v1/models", None), Err(401));
            assert_eq!(check(component, "/metrics", Some("wrong")), Err(401));
            assert_eq!(check(component, "/metrics", Some("two")), Ok(()));
            assert_eq!(check(component, "/v1/health", None), Ok(()));
        }
        let mut twice = Request::new(());
        for key in ["one", "wrong"] {
            let value = HeaderValue::try_from(format!("Bearer {key}")).unwrap();
            twice.headers_mut().append(AUTHORIZATION, value);
        }
        assert!(access.check_key(Some("keyed"), &twice).is_err(), "one of them is wrong");
        for component in ["open", "without_models"] {
            assert_eq!(check(Some(component), "/anything", None), Ok(()));
        }
        // A page that has a key may come from anywhere, by any name.
        assert!(access.check_host(&by_host(Some("example.org"))).is_ok());
        assert!(!access.headers(Some("keyed"), Some("https://a.example")).is_empty());
    }

    fn by_host(host: Option<&str>) -> Request<()> {
        let mut request = Request::new(());
        if let Some(host) = host {
            request.headers_mut().insert(HOST, HeaderValue::from_str(host).unwrap());
        }
        request
    }

    #[test]
    fn a_loopback_listener_answers_to_loopback_names() {
        for host in [None, Some("localhost:3000"), Some("127.0.0.1:3000"), Some("[::1]:3000")] {
            assert!(access(true).check_host(&by_host(host)).is_ok(), "{host:?}");
        }
        for host in ["example.org", "127.0.0.1.nip.io:3000", "10.0.0.1", ""] {
            let error = access(true).check_host(&by_host(Some(host))).unwrap_err();
            assert_eq!(error.status, 403, "{host}");
            assert!(access(false).check_host(&by_host(Some(host))).is_ok(), "{host}");
        }
        let mut http2 = by_host(None);
        *http2.uri_mut() = "http://example.org/v1/models".parse().unwrap();
        assert!(access(true).check_host(&http2).is_err());
    }

    #[test]
    fn the_hosts_own_answers_follow_the_components_setting() {
        let allowed = |component, origin| {
            access(true)
                .headers(component, Some(origin))
                .contains_key("access-control-allow-origin")
        };
        assert!(allowed(Some("open"), "https://example.org"));
        assert!(!allowed(Some("other"), "https://example.org"));
        assert!(!allowed(None, "https://example.org"));
        assert!(allowed(None, "http://localhost:8080"));
    }
}
