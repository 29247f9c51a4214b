//! The field `prompt`, in its four forms.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use spinfer_protocol::ApiError;

use crate::tokenizer::TokenId;

/// The most prompts that one request may hold.
pub const MAX_PROMPTS: usize = 2048;

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Text, still to be tokenized. May be empty.
    Text(String),
    /// Token ids, not empty, taken as they are. Whether the vocabulary has them is still open.
    Tokens(Vec<TokenId>),
}

/// All prompts of a request, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts {
    /// In the request's order.
    pub list: Vec<Prompt>,
    /// Whether the field was an array of prompts, not a single one.
    listed: bool,
}

impl Prompts {
    fn one(prompt: Prompt) -> Self {
        Self { list: vec![prompt], listed: false }
    }

    /// How an error names the prompt at that place.
    pub fn param(&self, place: usize) -> String {
        if self.listed { format!("prompt[{place}]") } else { "prompt".into() }
    }
}

/// What `prompt` held.
#[derive(Debug)]
pub struct PromptField(pub Result<Prompts, ApiError>);

const FORMS: &str =
    "a string, an array of strings, an array of token ids, or an array of such arrays";

fn invalid(param: String, message: String) -> PromptField {
    PromptField(Err(ApiError::invalid(param, message)))
}

fn wrong_form(found: &str) -> PromptField {
    invalid("prompt".into(), format!("`prompt` must be {FORMS}, not {found}."))
}

impl<'de> Deserialize<'de> for PromptField {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match deserializer.deserialize_any(ItemVisitor { nested: false })? {
            Item::Null => PromptField(Ok(Prompts::one(Prompt::Text(String::new())))),
            Item::Text(text) => PromptField(Ok(Prompts::one(Prompt::Text(text)))),
            Item::Id(_) | Item::Other("a number") => wrong_form("a number"),
            Item::Other(found) => wrong_form(found),
            Item::Ids(ids) => ids.prompt("prompt".into()),
            Item::Prompts(prompts) => prompts,
        })
    }
}

/// Token ids read so far, or the first thing among them that wasn't one.
struct Ids(Result<Vec<TokenId>, (usize, String)>);

impl Ids {
    fn prompt(self, param: String) -> PromptField {
        PromptField(self.into_tokens(&param).map(|ids| Prompts::one(Prompt::Tokens(ids))))
    }

    fn into_tokens(self, param: &str) -> Result<Vec<TokenId>, ApiError> {
        match self.0 {
            Ok(ids) if ids.is_empty() => Err(ApiError::invalid(
                param,
                format!("`{param}` is an empty array; it must hold something."),
            )),
            Ok(ids) => Ok(ids),
            Err((at, found)) => Err(ApiError::invalid(
                format!("{param}[{at}]"),
                format!(
                    "`{param}[{at}]` must be a token id, an integer of at least 0, not {found}."
                ),
            )),
        }
    }
}

/// A value inside `prompt`.
enum Item {
    Null,
    Text(String),
    Id(Result<TokenId, String>),
    Ids(Ids),
    /// A whole prompt field; only outermost.
    Prompts(PromptField),
    Other(&'static str),
}

impl Item {
    fn describe(&self) -> String {
        match self {
            Item::Null => "null".into(),
            Item::Text(_) => "a string".into(),
            Item::Id(Ok(id)) => id.to_string(),
            Item::Id(Err(found)) => found.clone(),
            Item::Ids(_) | Item::Prompts(_) => "an array".into(),
            Item::Other(found) => (*found).into(),
        }
    }
}

struct Inner(Item);

impl<'de> Deserialize<'de> for Inner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor { nested: true }).map(Inner)
    }
}

/// A token id of an array of them, without looking into what isn't a number.
struct Id(Result<TokenId, String>);

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Id(match deserializer.deserialize_any(ItemVisitor { nested: true })? {
            Item::Id(id) => id,
            other => Err(other.describe()),
        }))
    }
}

struct ItemVisitor {
    /// Inside the outermost array: an array here can only be one of token ids.
    nested: bool,
}

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(FORMS)
    }

    fn visit_unit<E>(self) -> Result<Item, E> {
        Ok(Item::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Item, E> {
        Ok(Item::Text(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Item, E> {
        Ok(Item::Text(text))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Item, E> {
        Ok(Item::Other("a boolean"))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Item, E> {
        Ok(Item::Id(TokenId::try_from(value).map_err(|_| value.to_string())))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Item, E> {
        Ok(Item::Id(TokenId::try_from(value).map_err(|_| value.to_string())))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Item, E> {
        Ok(Item::Id(Err(format!("{value:?}"))))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Item, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Item::Other("an object"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Item, A::Error> {
        if self.nested {
            return Ok(Item::Ids(read_ids(&mut seq, Vec::new())?));
        }
        match seq.next_element()? {
            None => Ok(Item::Ids(Ids(Ok(Vec::new())))),
            Some(Inner(Item::Id(Ok(first)))) => Ok(Item::Ids(read_ids(&mut seq, vec![first])?)),
            Some(Inner(first @ (Item::Text(_) | Item::Ids(_)))) => {
                read_list(&mut seq, first).map(Item::Prompts)
            }
            Some(Inner(Item::Id(Err(found)))) => {
                drain(&mut seq)?;
                Ok(Item::Ids(Ids(Err((0, found)))))
            }
            Some(Inner(other)) => {
                drain(&mut seq)?;
                let found = other.describe();
                let message = format!("`prompt` must be {FORMS}; `prompt[0]` is {found}.");
                Ok(Item::Prompts(invalid("prompt[0]".into(), message)))
            }
        }
    }
}

fn drain<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<(), A::Error> {
    while seq.next_element::<IgnoredAny>()?.is_some() {}
    Ok(())
}

fn read_ids<'de, A: SeqAccess<'de>>(seq: &mut A, mut ids: Vec<TokenId>) -> Result<Ids, A::Error> {
    while let Some(Id(id)) = seq.next_element()? {
        match id {
            Ok(id) => ids.push(id),
            Err(found) => {
                drain(seq)?;
                return Ok(Ids(Err((ids.len(), found))));
            }
        }
    }
    Ok(Ids(Ok(ids)))
}

/// The prompts of an array whose first item is text or an array of ids: the rest must be the same.
fn read_list<'de, A: SeqAccess<'de>>(seq: &mut A, first: Item) -> Result<PromptField, A::Error> {
    let texts = matches!(first, Item::Text(_));
    let mut prompts = Vec::new();
    let mut next = Some(Inner(first));
    while let Some(Inner(item)) = next {
        let param = format!("prompt[{}]", prompts.len());
        let prompt = if prompts.len() == MAX_PROMPTS {
            let message = format!("`prompt` holds more than the limit of {MAX_PROMPTS} prompts.");
            Err(ApiError::invalid("prompt", message))
        } else {
            match item {
                Item::Text(text) if texts => Ok(Prompt::Text(text)),
                Item::Ids(ids) if !texts => ids.into_tokens(&param).map(Prompt::Tokens),
                other => {
                    let kind = if texts { "a string" } else { "an array of token ids" };
                    let found = other.describe();
                    let message =
                        format!("`{param}` must be {kind} like `prompt[0]`, not {found}.");
                    Err(ApiError::invalid(param, message))
                }
            }
        };
        match prompt {
            Ok(prompt) => prompts.push(prompt),
            Err(error) => {
                drain(seq)?;
                return Ok(PromptField(Err(error)));
            }
        }
        next = seq.next_element()?;
    }
    Ok(PromptField(Ok(Prompts { list: prompts, listed: true })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Vec<Prompt>, ApiError> {
        serde_json::from_str::<PromptField>(json).expect("valid JSON").0.map(|prompts| prompts.list)
    }

    #[test]
    fn places_are_named_as_they_were_written() {
        let param = |json: &str| {
            serde_json::from_str::<PromptField>(json).expect("valid JSON").0.unwrap().param(0)
        };
        assert_eq!(param(r#""a""#), "prompt");
        assert_eq!(param("[1, 2]"), "prompt");
        assert_eq!(param(r#"["a"]"#), "prompt[0]");
        assert_eq!(param("[[1, 2]]"), "prompt[0]");
    }

    fn text(text: &str) -> Prompt {
        Prompt::Text(text.into())
    }

    #[test]
    fn the_four_forms_and_null() {
        assert_eq!(read(r#""a\n""#), Ok(vec![text("a\n")]));
        assert_eq!(read(r#""""#), Ok(vec![text("")]));
        assert_eq!(read("null"), Ok(vec![text("")]));
        assert_eq!(read(r#"["a", ""]"#), Ok(vec![text("a"), text("")]));
        assert_eq!(read(r#"[""]"#), Ok(vec![text("")]));
        assert_eq!(read("[1, 0]"), Ok(vec![Prompt::Tokens(vec![1, 0])]));
        assert_eq!(
            read("[[1], [2, 3]]"),
            Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])])
        );
    }

    #[test]
    fn other_forms_name_the_place() {
        for (json, param) in [
            ("1", "prompt"),
            ("1.5", "prompt"),
            ("true", "prompt"),
            (r#"{"a": [1]}"#, "prompt"),
            ("[]", "prompt"),
            ("[[]]", "prompt[0]"),
            ("[[1], []]", "prompt[1]"),
            (r#"["a", [1, 2]]"#, "prompt[1]"),
            (r#"["a", 1, {}]"#, "prompt[1]"),
            (r#"["a", null]"#, "prompt[1]"),
            (r#"[[1], "a"]"#, "prompt[1]"),
            ("[[1], 2]", "prompt[1]"),
            (r#"[1, "a", [2]]"#, "prompt[1]"),
            ("[1, [2]]", "prompt[1]"),
            ("[1, -1]", "prompt[1]"),
            ("[1, 2.5, 3]", "prompt[1]"),
            ("[1, 4294967296]", "prompt[1]"),
            ("[-1]", "prompt[0]"),
            ("[null]", "prompt[0]"),
            ("[true]", "prompt[0]"),
            ("[[1, true, 2], [3]]", "prompt[0][1]"),
            ("[[1], [2, [3]]]", "prompt[1][1]"),
            ("[[[1]]]", "prompt[0][0]"),
        ] {
            let error = read(json).expect_err(json);
            assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{json}");
        }
    }

    #[test]
    fn prompts_are_counted() {
        let many = |n: usize| format!("[{}]", vec!["\"a\""; n].join(","));
        assert_eq!(read(&many(MAX_PROMPTS)).unwrap().len(), MAX_PROMPTS);
        assert_eq!(read(&many(MAX_PROMPTS + 1)).unwrap_err().param.as_deref(), Some("prompt"));
    }
}
