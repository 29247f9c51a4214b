//! Who may ask: the keys of callers, as OpenAI's clients send them (`Authorization: Bearer KEY`).

use std::fmt;

use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::ApiError;

/// The paths that ask for no key, so that probes need none.
pub const OPEN_PATHS: [&str; 4] =
    ["/v1/health", "/v1/version", "/v1/openai/v1/health", "/v1/openai/v1/version"];

/// The keys that are let in: the application variable `api_keys`. Without any, everybody is.
///
/// Only digests of them are kept, so that nothing that shows a value of this type shows a key.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ApiKeys {
    digests: Vec<[u8; 32]>,
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} keys", self.digests.len())
    }
}

impl ApiKeys {
    /// Reads the variable: keys with commas between them.
    ///
    /// # Errors
    ///
    /// A sentence about a key that no client could send, which doesn't show it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let keys = text.split(',').map(str::trim).filter(|key| !key.is_empty());
        let digests = keys
            .zip(1..)
            .map(|(key, at)| match key.bytes().all(|byte| byte.is_ascii_graphic()) {
                true => Ok(Sha256::digest(key).into()),
                false => Err(format!("key {at} has a character that is no visible ASCII")),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { digests })
    }

    /// Whether everybody is let in.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// These keys, and those of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.digests.extend_from_slice(&other.digests);
    }

    /// Lets a request in, or not. `authorization` is its header of that name.
    ///
    /// How long it takes depends on the length of what was sent and on the number of keys, and on
    /// nothing else of them: what is compared are digests, each with all of the keys', to the end.
    ///
    /// # Errors
    ///
    /// 401, code `invalid_api_key`. The answer needs the header `WWW-Authenticate: Bearer`.
    pub fn admit(
        &self,
        method: &str,
        path: &str,
        authorization: Option<&str>,
    ) -> Result<(), ApiError> {
        if self.is_empty() || method == "OPTIONS" || OPEN_PATHS.contains(&path) {
            return Ok(());
        }
        let given = authorization.and_then(bearer).ok_or_else(|| {
            ApiError::unauthorized(
                "This server asks for a key; send it as `Authorization: Bearer KEY`.",
            )
        })?;
        let digest: [u8; 32] = Sha256::digest(given).into();
        let known = self.digests.iter().map(|key| key.ct_eq(&digest));
        match bool::from(known.fold(Choice::from(0), |any, equal| any | equal)) {
            true => Ok(()),
            false => Err(ApiError::unauthorized("The key of this request is not known here.")),
        }
    }
}

/// The token of a header `Bearer TOKEN`, whose first word may be in any case (RFC 9110, section 11.1).
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(keys: &str, authorization: Option<&str>) -> Result<(), ApiError> {
        ApiKeys::parse(keys).unwrap().admit("GET", "/v1/models", authorization)
    }

    #[test]
    fn without_keys_everybody_is_let_in() {
        for keys in ["", " ", ",", " , ,"] {
            assert!(ApiKeys::parse(keys).unwrap().is_empty(), "{keys:?}");
            admit(keys, None).unwrap();
            admit(keys, Some("Bearer anything")).unwrap();
        }
    }

    #[test]
    fn each_of_several_keys_is_let_in_and_no_other() {
        for key in ["one", "two", "th/r=e+e"] {
            admit("one, two,th/r=e+e,", Some(&format!("Bearer {key}"))).unwrap();
            admit("one, two,th/r=e+e,", Some(&format!("bearer  {key} "))).unwrap();
        }
        for wrong in ["one, two", "on", "onee", "ONE", "", "one two"] {
            let error = admit("one, two", Some(&format!("Bearer {wrong}"))).unwrap_err();
            assert_eq!((error.status, error.code), (401, Some("invalid_api_key")), "{wrong:?}");
            assert!(wrong.is_empty() || !error.message.contains(&format!("{wrong:?}")));
        }
        for wrong in [None, Some("one"), Some("Basic one"), Some("Bearer"), Some("")] {
            assert_eq!(admit("one", wrong).unwrap_err().status, 401, "{wrong:?}");
        }
    }

    #[test]
    fn probes_and_preflights_need_none() {
        let keys = ApiKeys::parse("one").unwrap();
        for path in OPEN_PATHS {
            keys.admit("GET", path, None).unwrap();
        }
        keys.admit("OPTIONS", "/v1/completions", None).unwrap();
        for path in ["/v1/models", "/metrics", "/v1/health/", "/nowhere", "/openapi.json"] {
            assert!(keys.admit("GET", path, None).is_err(), "{path}");
        }
    }

    #[test]
    fn what_no_client_can_send_is_refused_and_not_shown() {
        let error = ApiKeys::parse("good, b\u{e4}d").unwrap_err();
        assert!(error.contains("key 2") && !error.contains("b\u{e4}d"), "{error}");
        assert!(ApiKeys::parse("a b").is_err());
        assert_eq!(format!("{:?}", ApiKeys::parse("secret,b").unwrap()), "2 keys");
    }
}
