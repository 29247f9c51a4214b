//! The HTTP of this component that needs no HTTP library: routing, and the rules for bodies.

use spinfer_protocol::ApiError;

/// What a method and a path ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `POST /v1/completions`
    Completions,
    /// `GET /v1/models`
    Models,
    /// `GET /v1/models/{id}`
    Model(String),
    /// `GET /v1/health`
    Health,
    /// `GET /v1/version`
    Version,
    /// `GET /v1/providers`
    Providers,
    /// `POST /tokenize`
    Tokenize,
    /// `POST /detokenize`
    Detokenize,
    /// `GET /tokenizer_info`, of the model that the query names.
    TokenizerInfo(Option<String>),
    /// `GET /openapi.json`
    OpenApi,
    /// `OPTIONS` of a path that takes these methods.
    Options(&'static str),
}

/// How a path's place in the table is compared, and what it leads to.
pub(crate) enum Path {
    Exact(&'static str, Endpoint),
    /// The value of this parameter of the query, if it is there, goes to the endpoint.
    Query(&'static str, &'static str, fn(Option<String>) -> Endpoint),
    /// The rest of the path, not empty and percent-decoded, goes to the endpoint.
    Prefix(&'static str, fn(String) -> Endpoint),
}

/// Every path, with the methods it takes as the `Allow` header lists them.
pub(crate) const ROUTES: &[(&str, Path)] = &[
    ("POST", Path::Exact("/v1/completions", Endpoint::Completions)),
    ("GET, HEAD", Path::Exact("/v1/models", Endpoint::Models)),
    ("GET, HEAD", Path::Prefix("/v1/models/", Endpoint::Model)),
    ("GET, HEAD", Path::Exact("/v1/health", Endpoint::Health)),
    ("GET, HEAD", Path::Exact("/v1/version", Endpoint::Version)),
    ("GET, HEAD", Path::Exact("/v1/providers", Endpoint::Providers)),
    ("POST", Path::Exact("/tokenize", Endpoint::Tokenize)),
    ("POST", Path::Exact("/detokenize", Endpoint::Detokenize)),
    ("GET, HEAD", Path::Query("/tokenizer_info", "model", Endpoint::TokenizerInfo)),
    ("GET, HEAD", Path::Exact("/openapi.json", Endpoint::OpenApi)),
];

/// Older clients put `/openai/v1` before the paths of `/v1`.
const ALIAS: &str = "/v1/openai/v1/";

/// An error answer and, for 405, the value of its `Allow` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteError {
    /// The body and status.
    pub error: ApiError,
    /// The methods that the path takes.
    pub allow: Option<&'static str>,
}

impl From<ApiError> for RouteError {
    fn from(error: ApiError) -> Self {
        Self { error, allow: None }
    }
}

/// Finds the endpoint. `target` is the path, with its query if there is one.
pub fn route(method: &str, target: &str) -> Result<Endpoint, RouteError> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let canonical = match path.strip_prefix(ALIAS) {
        Some(rest) => format!("/v1/{rest}"),
        None => path.to_owned(),
    };
    let found = ROUTES
        .iter()
        .find_map(|(allow, candidate)| Some((*allow, candidate.lead(&canonical, query)?)));
    match found {
        None => Err(RouteError { error: ApiError::unknown_path(method, path), allow: None }),
        Some((allow, _)) if method == "OPTIONS" => Ok(Endpoint::Options(allow)),
        Some((allow, endpoint)) if allow.split(", ").any(|allowed| allowed == method) => {
            Ok(endpoint)
        }
        Some((allow, _)) => Err(RouteError {
            error: ApiError::method_not_allowed(method, path, allow),
            allow: Some(allow),
        }),
    }
}

impl Path {
    fn lead(&self, path: &str, query: &str) -> Option<Endpoint> {
        match self {
            Path::Query(exact, name, endpoint) => {
                (path == *exact).then(|| endpoint(parameter(query, name)))
            }
            Path::Exact(exact, endpoint) => (path == *exact).then(|| endpoint.clone()),
            Path::Prefix(prefix, endpoint) => path
                .strip_prefix(prefix)
                .filter(|rest| !rest.is_empty())
                .and_then(percent_decode)
                .map(endpoint),
        }
    }
}

/// A parameter of a query, decoded; `+` stands for a space there.
fn parameter(query: &str, name: &str) -> Option<String> {
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    // What can't be decoded names nothing, but it's there.
    Some(percent_decode(&value.replace('+', " ")).unwrap_or_else(|| value.to_owned()))
}

/// `None` for a `%` without two hex digits, or bytes that aren't UTF-8: no name has such a form.
fn percent_decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let high = char::from(bytes.next()?).to_digit(16)?;
                let low = char::from(bytes.next()?).to_digit(16)?;
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

impl Endpoint {
    /// Whether the request's body is to be read.
    pub fn takes_body(&self) -> bool {
        matches!(self, Endpoint::Completions | Endpoint::Tokenize | Endpoint::Detokenize)
    }
}

/// A request's body while it arrives, held to a limit.
#[derive(Debug)]
pub struct Body {
    bytes: Vec<u8>,
    limit: usize,
}

impl Body {
    /// A body of at most `limit` bytes, refused at once when its headers already show that it
    /// can't be taken: a content type other than JSON, or a length over the limit.
    pub fn new(
        limit: usize,
        content_type: Option<&str>,
        content_length: Option<u64>,
    ) -> Result<Self, ApiError> {
        match content_type {
            Some(other) if !is_json(other) => return Err(ApiError::unsupported_media_type(other)),
            _ => {}
        }
        if content_length.is_some_and(|length| length > limit as u64) {
            return Err(ApiError::body_too_large(limit as u64));
        }
        Ok(Self { bytes: Vec::new(), limit })
    }

    /// Appends what has arrived.
    pub fn push(&mut self, chunk: &[u8]) -> Result<(), ApiError> {
        if chunk.len() > self.limit - self.bytes.len() {
            return Err(ApiError::body_too_large(self.limit as u64));
        }
        self.bytes.extend_from_slice(chunk);
        Ok(())
    }

    /// All of it.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// `application/json`, in any case, with any parameters.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("application/json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_endpoints() {
        assert_eq!(route("POST", "/v1/completions"), Ok(Endpoint::Completions));
        assert_eq!(route("POST", "/v1/completions?api-version=1"), Ok(Endpoint::Completions));
        assert_eq!(route("POST", "/v1/openai/v1/completions"), Ok(Endpoint::Completions));
        assert_eq!(route("GET", "/v1/models"), Ok(Endpoint::Models));
        assert_eq!(route("HEAD", "/v1/health"), Ok(Endpoint::Health));
        assert_eq!(route("GET", "/v1/openai/v1/version"), Ok(Endpoint::Version));
        assert_eq!(route("GET", "/v1/providers"), Ok(Endpoint::Providers));
        assert_eq!(route("POST", "/tokenize"), Ok(Endpoint::Tokenize));
        assert_eq!(route("POST", "/detokenize"), Ok(Endpoint::Detokenize));
        assert_eq!(route("GET", "/openapi.json"), Ok(Endpoint::OpenApi));
    }

    #[test]
    fn the_query_may_name_a_model() {
        let info = |model: Option<&str>| Ok(Endpoint::TokenizerInfo(model.map(str::to_owned)));
        assert_eq!(route("GET", "/tokenizer_info"), info(None));
        assert_eq!(route("GET", "/tokenizer_info?a=b"), info(None));
        assert_eq!(route("GET", "/tokenizer_info?model=%zz"), info(Some("%zz")));
        assert_eq!(route("GET", "/tokenizer_info?a=b&model=org%2Fm+x"), info(Some("org/m x")));
    }

    #[test]
    fn every_path_tells_its_methods() {
        assert_eq!(route("OPTIONS", "/v1/completions"), Ok(Endpoint::Options("POST")));
        assert_eq!(route("OPTIONS", "/v1/models/a/b"), Ok(Endpoint::Options("GET, HEAD")));
        assert_eq!(route("OPTIONS", "/nowhere").unwrap_err().error.status, 404);
    }

    #[test]
    fn model_ids_may_hold_slashes_and_escapes() {
        assert_eq!(route("GET", "/v1/models/org/m"), Ok(Endpoint::Model("org/m".into())));
        assert_eq!(route("GET", "/v1/models/org%2Fm%20x"), Ok(Endpoint::Model("org/m x".into())));
        assert_eq!(route("GET", "/v1/openai/v1/models/m"), Ok(Endpoint::Model("m".into())));
        for bad in ["/v1/models/", "/v1/models/%", "/v1/models/%zz", "/v1/models/%ff"] {
            assert_eq!(route("GET", bad).unwrap_err().error.status, 404, "{bad}");
        }
    }

    #[test]
    fn unknown_paths_and_wrong_methods_differ() {
        for path in ["/", "/v1", "/v1/completions/", "/v1/openai/v1", "/v2/models", ""] {
            let refused = route("GET", path).unwrap_err();
            assert_eq!((refused.error.status, refused.allow), (404, None), "{path}");
        }
        let refused = route("GET", "/v1/completions").unwrap_err();
        assert_eq!((refused.error.status, refused.allow), (405, Some("POST")));
        let refused = route("POST", "/v1/models").unwrap_err();
        assert_eq!((refused.error.status, refused.allow), (405, Some("GET, HEAD")));
        assert_eq!(route("post", "/v1/completions").unwrap_err().error.status, 405);
    }

    #[test]
    fn bodies_must_be_json_by_their_header() {
        for good in ["application/json", "Application/JSON; charset=utf-8", " application/json "] {
            assert!(Body::new(9, Some(good), None).is_ok(), "{good}");
        }
        assert!(Body::new(9, None, None).is_ok());
        for bad in ["text/plain", "application/x-www-form-urlencoded", "application/jsonl", ""] {
            assert_eq!(Body::new(9, Some(bad), None).unwrap_err().status, 415, "{bad}");
        }
    }

    #[test]
    fn bodies_end_at_the_limit() {
        assert_eq!(Body::new(4, None, Some(5)).unwrap_err().status, 413);
        let mut body = Body::new(4, None, Some(4)).unwrap();
        body.push(b"ab").unwrap();
        body.push(b"cd").unwrap();
        body.push(b"").unwrap();
        assert_eq!(body.push(b"e").unwrap_err().status, 413);
        assert_eq!(body.into_bytes(), b"abcd");
    }
}
