//! The OpenAPI document, kept as a file at the top of the repository. The tests here hold it against
//! the code; others hold the answers of the running server against it.

/// What `GET /openapi.json` answers.
pub const DOCUMENT: &str = include_str!("../openapi.json");

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;
    use crate::http::{ROUTES, route};
    use crate::request::{CompletionRequest, DEFAULT_MAX_TOKENS, KNOWN, MAX_PROMPTS, MAX_STOPS};

    fn document() -> Value {
        serde_json::from_str(DOCUMENT).unwrap()
    }

    fn schema(name: &str) -> Value {
        document()["components"]["schemas"][name].clone()
    }

    fn names(object: &Value) -> BTreeSet<String> {
        object.as_object().unwrap().keys().cloned().collect()
    }

    /// Every field of the two schemas of a request, with what they say of it.
    fn fields() -> Vec<(String, Value)> {
        ["StandardCompletionRequest", "CompletionExtensions"]
            .into_iter()
            .flat_map(|name| schema(name)["properties"].as_object().unwrap().clone())
            .collect()
    }

    fn parse(name: &str, value: &Value) -> Result<(), String> {
        // `max_tokens` leaves room for any `min_tokens`, and `best_of` for any `n`.
        let mut body = json!({"model": "m", "prompt": "p", "max_tokens": u32::MAX});
        body[name] = value.clone();
        let parsed = CompletionRequest::parse(body.to_string().as_bytes());
        parsed.map(drop).map_err(|error| error.param.unwrap_or_default())
    }

    #[test]
    fn it_is_of_this_version() {
        assert_eq!(document()["info"]["version"], env!("CARGO_PKG_VERSION"));
        assert!(document()["openapi"].as_str().unwrap().starts_with("3.1."));
    }

    #[test]
    fn its_fields_are_those_that_are_read() {
        let standard = names(&schema("StandardCompletionRequest")["properties"]);
        let extensions = names(&schema("CompletionExtensions")["properties"]);
        assert!(standard.is_disjoint(&extensions));
        let documented = &standard | &extensions;
        let read = KNOWN.iter().chain(&["prompt"]).map(|name| (*name).to_owned()).collect();
        assert_eq!(documented, read);
        assert_eq!(schema("StandardCompletionRequest")["required"], json!(["model", "prompt"]));
    }

    #[test]
    fn its_limits_are_those_that_are_held() {
        for (name, field) in fields() {
            let step = |by: f64| match field["type"].as_array() {
                Some(types) if types.contains(&json!("integer")) => by,
                _ => by / 100.0,
            };
            for (limit, outward) in [("minimum", -1.0), ("maximum", 1.0)] {
                let Some(value) = field.get(limit) else { continue };
                assert_eq!(parse(&name, value), Ok(()), "{name}: {limit}");
                // One past; an i64's neighbours have no f64 of their own.
                let past = match value.as_i64() {
                    Some(i64::MIN) => json!(i64::MIN as f64 * 2.0),
                    Some(i64::MAX) => json!(i64::MAX as u64 + 1),
                    Some(whole) if step(1.0) == 1.0 => json!(whole + outward as i64),
                    _ => json!(value.as_f64().unwrap() + step(outward)),
                };
                assert_eq!(parse(&name, &past), Err(name.clone()), "{name}: {past}");
            }
            if let Some(default) = field.get("default") {
                assert_eq!(parse(&name, default), Ok(()), "{name}");
            }
            let expected = if name == "model" { Err(name.clone()) } else { Ok(()) };
            assert_eq!(parse(&name, &Value::Null), expected);
        }
    }

    #[test]
    fn its_lists_are_as_long_as_they_may_be() {
        let standard = &schema("StandardCompletionRequest")["properties"];
        assert_eq!(standard["stop"]["anyOf"][2]["maxItems"], MAX_STOPS);
        for form in [2, 4] {
            assert_eq!(standard["prompt"]["anyOf"][form]["maxItems"], MAX_PROMPTS);
        }
        assert_eq!(standard["max_tokens"]["default"], DEFAULT_MAX_TOKENS);
        assert_eq!(schema("TokenId")["maximum"], u32::MAX);
    }

    /// Each path of the document is one of the component's, with the same methods, and the other way
    /// round. `/metrics` is the host's.
    #[test]
    fn its_paths_are_those_that_are_routed() {
        let paths = document()["paths"].clone();
        let mut documented = names(&paths);
        assert!(documented.remove("/metrics"));
        assert_eq!(documented.len(), ROUTES.len());
        for path in documented {
            let methods = names(&paths[&path]);
            for method in ["get", "post", "put", "delete", "patch"] {
                let found = route(&method.to_uppercase(), &path.replace("{id}", "m"));
                assert_eq!(found.is_ok(), methods.contains(method), "{method} {path}");
                if let Ok(endpoint) = found {
                    let has_body = paths[&path][method].get("requestBody").is_some();
                    assert_eq!(endpoint.takes_body(), has_body, "{method} {path}");
                }
            }
        }
    }

    #[test]
    fn its_examples_are_valid() {
        let operation = &document()["paths"]["/v1/completions"]["post"];
        let examples = operation["requestBody"]["content"]["application/json"]["examples"].clone();
        let examples = examples.as_object().unwrap();
        assert!(!examples.is_empty());
        for (name, example) in examples {
            let body = example["value"].to_string();
            let parsed = CompletionRequest::parse(body.as_bytes());
            assert!(parsed.is_ok(), "{name}: {parsed:?}");
        }
    }
}
