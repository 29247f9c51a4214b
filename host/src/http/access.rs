//! Who may ask: by which name a request reached this machine, and which web pages may read the
//! answers that the host itself makes. A component's own answers are its own affair.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::Context;
use http::header::{HOST, HeaderName, HeaderValue, ORIGIN};
use http::{HeaderMap, Request};
use spinfer_protocol::{AllowedOrigins, ApiError, is_loopback};

use crate::app::App;

/// The component's variable with the origins of web pages.
const ALLOWED_ORIGINS: &str = "allowed_origins";

/// The rules of one application on one listener.
#[derive(Debug, Default)]
pub struct Access {
    /// Whether only names of this machine are answered to.
    loopback_names_only: bool,
    /// By component.
    origins: BTreeMap<String, AllowedOrigins>,
}

impl Access {
    /// The rules for an application that listens on that address.
    ///
    /// On a loopback address, only requests by a loopback name are answered: a web page elsewhere
    /// could give its own name this machine's address (DNS rebinding), and would be of the same
    /// origin as the server then.
    pub fn new(app: &App, listener: IpAddr) -> anyhow::Result<Self> {
        let origins = app
            .components
            .iter()
            .filter_map(|(id, component)| Some((id, component.variables.get(ALLOWED_ORIGINS)?)))
            .map(|(id, value)| match AllowedOrigins::parse(value) {
                Ok(origins) => Ok((id.clone(), origins)),
                Err(error) => Err(anyhow::Error::msg(error))
                    .with_context(|| format!("the variable {ALLOWED_ORIGINS} of {id}")),
            })
            .collect::<anyhow::Result<_>>()?;
        Ok(Self { loopback_names_only: listener.is_loopback(), origins })
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
        let default = AllowedOrigins::default();
        let origins = component.and_then(|id| self.origins.get(id)).unwrap_or(&default);
        let headers = origins.answer_headers(origin).into_iter();
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

    fn access(local: bool) -> Access {
        let any = BTreeMap::from([("open".to_owned(), AllowedOrigins::Any)]);
        Access { loopback_names_only: local, origins: any }
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
