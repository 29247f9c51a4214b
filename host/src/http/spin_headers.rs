//! The headers that Spin adds to requests, by which components know the route that led to them
//! (<https://spinframework.dev/http-trigger>, "Additional Request Information").

use std::net::SocketAddr;

use http::header::{HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Request};

use crate::app::route::Matched;

/// What they all begin with; whoever sends such a header himself is not believed.
const PREFIX: &str = "spin-";

/// The headers for a request.
pub fn of<B>(
    request: &Request<B>,
    matched: &Matched<'_, '_>,
    client: SocketAddr,
    tls: bool,
) -> Vec<(HeaderName, HeaderValue)> {
    let uri = request.uri();
    let host = || request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = uri.authority().map(|name| name.as_str()).or_else(host).unwrap_or("localhost");
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    let scheme = if tls { "https" } else { "http" };
    let (pattern, base) = (matched.route.pattern.as_str(), matched.route.base());
    let fixed = [
        ("spin-full-url", format!("{scheme}://{host}{target}")),
        ("spin-path-info", matched.rest.to_owned()),
        ("spin-matched-route", pattern.to_owned()),
        ("spin-raw-component-route", pattern.to_owned()),
        ("spin-component-route", base.to_owned()),
        ("spin-base-path", "/".to_owned()),
        ("spin-client-addr", client.to_string()),
    ];
    let parameters = matched.parameters.iter();
    let parameters =
        parameters.map(|(name, text)| (format!("spin-path-match-{name}"), (*text).to_owned()));
    let fixed = fixed.into_iter().map(|(name, value)| (name.to_owned(), value));
    fixed
        .chain(parameters)
        .filter_map(|(name, value)| {
            Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
        })
        .collect()
}

/// Puts them in place of what the client has sent under such names.
pub fn put(headers: &mut HeaderMap, ours: Vec<(HeaderName, HeaderValue)>) {
    let theirs: Vec<_> =
        headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    for name in theirs {
        headers.remove(name);
    }
    headers.extend(ours);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::route::Route;

    fn headers(pattern: &str, uri: &str) -> HeaderMap {
        let route = Route::parse(pattern, "c").unwrap();
        let request = Request::get(uri)
            .header("host", "localhost:3000")
            .header("spin-path-info", "/forged")
            .header("spin-path-match-id", "forged")
            .header("accept", "*/*");
        let mut request = request.body(()).unwrap();
        let path = request.uri().path().to_owned();
        let ours = of(&request, &route.matches(&path).unwrap(), "[::1]:9".parse().unwrap(), false);
        put(request.headers_mut(), ours);
        std::mem::take(request.headers_mut())
    }

    #[test]
    fn components_know_their_route() {
        let all = headers("/v1/...", "/v1/models?x=y");
        for (name, value) in [
            ("spin-full-url", "http://localhost:3000/v1/models?x=y"),
            ("spin-path-info", "/models"),
            ("spin-matched-route", "/v1/..."),
            ("spin-raw-component-route", "/v1/..."),
            ("spin-component-route", "/v1"),
            ("spin-base-path", "/"),
            ("spin-client-addr", "[::1]:9"),
            ("accept", "*/*"),
        ] {
            assert_eq!(all[name], value, "{name}");
        }
        assert!(!all.contains_key("spin-path-match-id"), "nobody is believed");
        assert_eq!(headers("/users/:id", "/users/7")["spin-path-match-id"], "7");
        assert_eq!(all.get_all("spin-path-info").iter().count(), 1);
    }
}
