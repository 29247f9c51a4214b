//! The error envelope: `{"error":{"message","type","param","code"}}`, all four keys always there.

use serde::Serialize;

/// The `type` of an error, in OpenAI's vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request is at fault: 400, 401, 403, 404, 405, 413, 415.
    InvalidRequestError,
    /// The server is full; the same request may succeed later: 429.
    RateLimitError,
    /// The server is at fault: 500, or not ready: 503.
    ServerError,
}

/// An error as the client sees it. One place makes the JSON for the component and for the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// HTTP status.
    pub status: u16,
    /// The envelope's `type`.
    pub kind: ErrorKind,
    /// A sentence: what was expected, what was found.
    pub message: String,
    /// The request field at fault, nested ones in full (`prompt[2][17]`).
    pub param: Option<String>,
    /// A stable word for programs, where there is one (`model_not_found`).
    pub code: Option<&'static str>,
    /// Seconds for a `Retry-After` header.
    pub retry_after: Option<u32>,
}

impl ApiError {
    /// An error of the given status and type, without `param` and `code`.
    pub fn new(status: u16, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400 that names the field at fault.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::bad_request(message) }
    }

    /// 400 about the request as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, ErrorKind::InvalidRequestError, message)
    }

    /// 404 for a model that this server does not have.
    pub fn model_not_found(id: &str) -> Self {
        Self {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::new(
                404,
                ErrorKind::InvalidRequestError,
                format!(
                    "The model {id:?} does not exist here; GET /v1/models lists those that do."
                ),
            )
        }
    }

    /// 401 for a caller without a key that is known. The answer needs the header
    /// `WWW-Authenticate: Bearer`.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(401, ErrorKind::InvalidRequestError, message).with_code("invalid_api_key")
    }

    /// 403 for a request by a name of another machine, where only this one's are answered to.
    pub fn forbidden_host(host: &str) -> Self {
        let message = format!(
            "This server listens on a loopback address and answers to loopback names only, so that no \
             web page can reach it by a name of its own; the request's host is {host:?}."
        );
        Self::new(403, ErrorKind::InvalidRequestError, message).with_code("host_not_allowed")
    }

    /// 404 for a path that leads nowhere.
    pub fn unknown_path(method: &str, path: &str) -> Self {
        Self::new(404, ErrorKind::InvalidRequestError, format!("Unknown path: {method} {path}."))
    }

    /// 405: the path exists, but not for this method. The answer needs the header `Allow: {allow}`.
    pub fn method_not_allowed(method: &str, path: &str, allow: &str) -> Self {
        let message = format!("{path} does not take {method}; it takes {allow}.");
        Self::new(405, ErrorKind::InvalidRequestError, message)
    }

    /// 413: the request's body is over the limit, which is in bytes.
    pub fn body_too_large(limit: u64) -> Self {
        let message = format!("The request's body is larger than the limit of {limit} bytes.");
        Self::new(413, ErrorKind::InvalidRequestError, message)
    }

    /// 415: the body isn't declared as JSON.
    pub fn unsupported_media_type(content_type: &str) -> Self {
        let message = format!("The content type must be application/json, not {content_type:?}.");
        Self::new(415, ErrorKind::InvalidRequestError, message)
    }

    /// 400: prompt and completion together don't fit in the model's context.
    pub fn context_length_exceeded(param: &str, message: impl Into<String>) -> Self {
        Self::invalid(param, message).with_code("context_length_exceeded")
    }

    /// 429: the server is full. `retry_after` is in seconds.
    pub fn rate_limited(message: impl Into<String>, retry_after: u32) -> Self {
        Self {
            code: Some("rate_limit_exceeded"),
            retry_after: Some(retry_after),
            ..Self::new(429, ErrorKind::RateLimitError, message)
        }
    }

    /// 500: the server's own failure. The message must hold nothing secret.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, ErrorKind::ServerError, message)
    }

    /// The same error with a `code`.
    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The body of the answer (and the data of an error event in a stream).
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Envelope<'a> {
            error: Body<'a>,
        }
        #[derive(Serialize)]
        struct Body<'a> {
            message: &'a str,
            r#type: ErrorKind,
            param: Option<&'a str>,
            code: Option<&'a str>,
        }
        let body = Body {
            message: &self.message,
            r#type: self.kind,
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_string(&Envelope { error: body }).expect("strings always serialize")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_four_keys_are_always_there() {
        assert_eq!(
            ApiError::bad_request("no").to_json(),
            r#"{"error":{"message":"no","type":"invalid_request_error","param":null,"code":null}}"#
        );
        assert_eq!(
            ApiError::rate_limited("full", 1).to_json(),
            r#"{"error":{"message":"full","type":"rate_limit_error","param":null,"code":"rate_limit_exceeded"}}"#
        );
        assert_eq!(
            ApiError::invalid("prompt[2][17]", "bad id").to_json(),
            r#"{"error":{"message":"bad id","type":"invalid_request_error","param":"prompt[2][17]","code":null}}"#
        );
    }
}
