//! The JSON of a request's body, taken apart by field.
//!
//! Known fields are kept, each at most once; others are skipped without being stored. Prompts have
//! a reader of their own, since a list of a million token ids shouldn't become a million JSON
//! values first.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{
    DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::{Map, Number, Value};
use spinfer_protocol::ApiError;

use super::prompt::PromptField;

/// The fields of a body. Absent and `null` are told apart for `prompt` alone.
#[derive(Debug, Default)]
pub struct Fields {
    /// `prompt`, when the key is there.
    pub prompt: Option<PromptField>,
    values: BTreeMap<&'static str, Value>,
}

impl Fields {
    /// Reads a body; `known` names the fields to keep. A `prompt` that isn't among them is read in its
    /// four forms.
    pub fn read(body: &[u8], known: &'static [&'static str]) -> Result<Self, ApiError> {
        if body.iter().all(u8::is_ascii_whitespace) {
            return Err(ApiError::bad_request("The body is empty; it must be a JSON object."));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(body);
        let outcome = BodySeed { known }
            .deserialize(&mut deserializer)
            .and_then(|outcome| deserializer.end().map(|()| outcome))
            .map_err(|e| ApiError::bad_request(format!("The body can't be read as JSON: {e}.")))?;
        match outcome {
            Outcome::Object { fields, repeated: None } => Ok(fields),
            Outcome::Object { repeated: Some(name), .. } => {
                Err(ApiError::invalid(name, format!("`{name}` is in the body more than once.")))
            }
            Outcome::Other(found) => {
                Err(ApiError::bad_request(format!("The body must be a JSON object, not {found}.")))
            }
        }
    }

    /// The value of a field; `None` when it is absent or null.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }
}

enum Outcome {
    Object { fields: Fields, repeated: Option<&'static str> },
    Other(&'static str),
}

struct BodySeed {
    known: &'static [&'static str],
}

impl<'de> DeserializeSeed<'de> for BodySeed {
    type Value = Outcome;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Outcome, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BodySeed {
    type Value = Outcome;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Outcome, A::Error> {
        let mut fields = Fields::default();
        let mut repeated = None;
        while let Some(key) = map.next_key::<String>()? {
            if let Some(&name) = self.known.iter().find(|name| **name == key) {
                let UniqueValue(value) = map.next_value()?;
                if fields.values.insert(name, value).is_some() {
                    repeated = Some(name);
                }
            } else if key == "prompt" {
                if fields.prompt.replace(map.next_value()?).is_some() {
                    repeated = Some("prompt");
                }
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(Outcome::Object { fields, repeated })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Outcome, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Outcome::Other("an array"))
    }

    fn visit_str<E>(self, _: &str) -> Result<Outcome, E> {
        Ok(Outcome::Other("a string"))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Outcome, E> {
        Ok(Outcome::Other("a boolean"))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Outcome, E> {
        Ok(Outcome::Other("a number"))
    }

    fn visit_u64<E>(self, _: u64) -> Result<Outcome, E> {
        Ok(Outcome::Other("a number"))
    }

    fn visit_f64<E>(self, _: f64) -> Result<Outcome, E> {
        Ok(Outcome::Other("a number"))
    }

    fn visit_unit<E>(self) -> Result<Outcome, E> {
        Ok(Outcome::Other("null"))
    }
}

/// A JSON value in whose objects no key comes twice.
struct UniqueValue(Value);

impl<'de> Deserialize<'de> for UniqueValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(UniqueValue)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let UniqueValue(value) = map.next_value()?;
            if object.contains_key(&key) {
                return Err(A::Error::custom(format_args!(
                    "the key {key:?} comes twice in an object"
                )));
            }
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(UniqueValue(value)) = seq.next_element()? {
            array.push(value);
        }
        Ok(Value::Array(array))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("a number is not finite"))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Fields, ApiError> {
        Fields::read(body.as_bytes(), &["n", "logit_bias"])
    }

    #[test]
    fn keeps_the_known_and_skips_the_rest() {
        let fields =
            read(r#"{"n": 1, "extra": {"a": [1, {"b": 2}]}, "logit_bias": null}"#).unwrap();
        assert_eq!(fields.get("n"), Some(&Value::from(1)));
        assert_eq!(fields.get("extra"), None);
        assert_eq!(fields.get("logit_bias"), None);
        assert!(fields.prompt.is_none());
    }

    #[test]
    fn a_body_is_one_object() {
        for (body, what) in
            [("[1]", "an array"), ("\"x\"", "a string"), ("3", "a number"), ("null", "null")]
        {
            let error = read(body).unwrap_err();
            assert_eq!((error.status, error.param), (400, None));
            assert!(error.message.contains(what), "{}", error.message);
        }
        for body in [
            "",
            " \n",
            "{",
            "{}{}",
            "{} x",
            "{'n': 1}",
            "{\"n\": NaN}",
            "{\"n\": 1e999}",
            "nope",
            "\u{feff}{}",
        ] {
            let error = read(body).unwrap_err();
            assert_eq!((error.status, error.param), (400, None), "{body}");
        }
        assert_eq!(Fields::read(b"{\"n\": \"\xff\"}", &["n"]).unwrap_err().status, 400);
    }

    #[test]
    fn no_key_may_come_twice() {
        assert_eq!(read(r#"{"n": 1, "n": 1}"#).unwrap_err().param.as_deref(), Some("n"));
        assert_eq!(read(r#"{"n": null, "n": null}"#).unwrap_err().param.as_deref(), Some("n"));
        assert_eq!(
            read(r#"{"prompt": 1, "prompt": 1}"#).unwrap_err().param.as_deref(),
            Some("prompt")
        );
        let error = read(r#"{"logit_bias": {"1": 1, "1": 2}}"#).unwrap_err();
        assert!(error.message.contains("\"1\" comes twice"), "{}", error.message);
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        let deep = format!("{{\"n\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(&deep).unwrap_err().status, 400);
        let skipped = format!("{{\"x\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let _ = read(&skipped);
        let prompt = format!("{{\"prompt\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let _ = read(&prompt);
    }
}
