//! Reading TOML files whose errors are one sentence: the file, the line, and what is wrong there.

use std::path::Path;

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;

/// Reads a file. `what` says what it is, for errors.
pub fn read<T: DeserializeOwned>(path: &Path, what: &str) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read {what} {}", path.display()))?;
    parse(&text).with_context(|| format!("in {what} {}", path.display()))
}

/// Reads a file's text.
pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let message = error.message().replace('\n', " ");
        let message = unknown_key(&message).unwrap_or(message);
        match error.span() {
            Some(span) => anyhow!("line {}: {message}", line(text, span.start)),
            None => anyhow!(message),
        }
    })
}

fn line(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count()
}

/// Serde's words for a key or a value that nobody knows, with a guess at what was meant instead of a list
/// of all.
fn unknown_key(message: &str) -> Option<String> {
    let (what, rest) = [("key", "unknown field "), ("value", "unknown variant ")]
        .into_iter()
        .find_map(|(what, words)| Some((what, message.strip_prefix(words)?)))?;
    let mut quoted = rest.split('`').skip(1).step_by(2);
    let key = quoted.next()?;
    let known: Vec<&str> = quoted.collect();
    let likeness = |name: &&&str| (strsim::jaro_winkler(key, name) * 1000.0) as u32;
    let nearest = known.iter().max_by_key(likeness)?;
    Some(match strsim::jaro_winkler(key, nearest) {
        0.8.. => format!("there is no {what} `{key}`; did you mean `{nearest}`?"),
        _ => format!("there is no {what} `{key}` here; those that there are: {}", known.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example {
        #[serde(rename = "sequences")]
        _sequences: u32,
        #[serde(default, rename = "models")]
        _models: String,
    }

    fn error(text: &str) -> String {
        format!("{:#}", parse::<Example>(text).unwrap_err())
    }

    #[test]
    fn errors_name_the_line_and_guess_what_was_meant() {
        assert_eq!(
            error("models = \"a\"\nsequence = 4\n"),
            "line 2: there is no key `sequence`; did you mean `sequences`?"
        );
        assert_eq!(
            error("sequences = 1\n\nfoo = 4\n"),
            "line 3: there is no key `foo` here; those that there are: sequences, models"
        );
        assert!(error("sequences = \"x\"").starts_with("line 1: invalid type: string"));
        assert!(error("\n\nsequences = ").starts_with("line 3: "), "{}", error("\n\nsequences = "));
        assert!(error("models = \"\"").contains("sequences"), "{}", error("models = \"\""));
        assert!(!error("sequences = [\n").contains('\n'));
    }

    #[test]
    fn a_file_is_named() {
        let missing = read::<Example>(Path::new("/nowhere/x.toml"), "the file").unwrap_err();
        assert!(format!("{missing:#}").starts_with("can't read the file /nowhere/x.toml: "));
    }
}
