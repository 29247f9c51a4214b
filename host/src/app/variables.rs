//! Where the values of the application's variables come from, in the order in which they are asked: the
//! command line, the runtime configuration's providers, and the environment's `SPIN_VARIABLE_NAME`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde::Deserialize;

/// Before the name of a variable in upper case, in the environment.
const ENVIRONMENT_PREFIX: &str = "SPIN_VARIABLE";

/// A provider in the runtime configuration, as Spin has them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Provider {
    /// Values that stand in the file.
    Static {
        /// By name.
        values: BTreeMap<String, String>,
    },
    /// Variables of the environment, or of a file.
    Env {
        /// Before the names of variables, with a `_` between. Default: `SPIN_VARIABLE`.
        prefix: Option<String>,
        /// A file with lines `NAME=VALUE`, which the environment goes before.
        dotenv_path: Option<PathBuf>,
    },
    /// Spin has it, this host not.
    Vault(toml::Table),
    /// Spin has it, this host not.
    AzureKeyVault(toml::Table),
}

/// The values given from outside.
#[derive(Clone, Default)]
pub struct VariableSources {
    command_line: BTreeMap<String, String>,
    /// The first that has a name decides.
    others: Vec<BTreeMap<String, String>>,
}

impl VariableSources {
    /// From `--variable NAME=VALUE`, the providers, whose paths are relative to `folder`, and the
    /// environment.
    pub fn new(
        command_line: impl IntoIterator<Item = (String, String)>,
        providers: &[Provider],
        folder: &Path,
        environment: &[(String, String)],
    ) -> anyhow::Result<Self> {
        let mut others = Vec::new();
        for provider in providers {
            match provider {
                Provider::Static { values } => others.push(values.clone()),
                Provider::Env { prefix, dotenv_path } => {
                    let prefix = prefix.as_deref().unwrap_or(ENVIRONMENT_PREFIX);
                    others.push(prefixed(environment, prefix));
                    if let Some(path) = dotenv_path {
                        others.push(prefixed(&dotenv(&folder.join(path))?, prefix));
                    }
                }
                Provider::Vault(_) | Provider::AzureKeyVault(_) => bail!(
                    "of the variables_provider types only \"static\" and \"env\" are supported here"
                ),
            }
        }
        others.push(prefixed(environment, ENVIRONMENT_PREFIX));
        Ok(Self { command_line: command_line.into_iter().collect(), others })
    }

    /// The value of a variable, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        let others = self.others.iter().find_map(|values| values.get(name));
        self.command_line.get(name).or(others).map(String::as_str)
    }

    /// Names given on the command line.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.command_line.keys().map(String::as_str)
    }
}

/// Those whose names have the prefix, by what follows it.
fn prefixed(environment: &[(String, String)], prefix: &str) -> BTreeMap<String, String> {
    let stripped = environment.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix(prefix)?.strip_prefix('_')?;
        Some((name.to_ascii_lowercase(), value.clone()))
    });
    stripped.collect()
}

/// Reads lines `NAME=VALUE`; empty ones and those that begin with `#` say nothing.
fn dotenv(path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("can't read the variables in {}", path.display()))?;
    let lines = text.lines().zip(1..).map(|(line, at)| (line.trim(), at));
    lines
        .filter(|(line, _)| !line.is_empty() && !line.starts_with('#'))
        .map(|(line, at)| {
            // The line may hold a secret, and so is not shown.
            let (name, value) =
                line.strip_prefix("export ").unwrap_or(line).split_once('=').with_context(
                    || format!("line {at} of {} is not NAME=VALUE", path.display()),
                )?;
            Ok((name.trim().to_owned(), unquoted(value.trim()).to_owned()))
        })
        .collect()
}

fn unquoted(value: &str) -> &str {
    let within = |quote| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or(within('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect()
    }

    #[test]
    fn the_first_source_that_has_a_name_decides() {
        let folder = tempfile::tempdir().unwrap();
        let dotenv = "# a comment\n\nAPP_B=file\nexport APP_C='quoted file'\nAPP_D=\"x=y\"\n";
        std::fs::write(folder.path().join(".env"), dotenv).unwrap();
        let providers = [
            Provider::Static { values: [("b".to_owned(), "static".to_owned())].into() },
            Provider::Env { prefix: Some("APP".into()), dotenv_path: Some(".env".into()) },
        ];
        let environment =
            [("SPIN_VARIABLE_A", "env a"), ("SPIN_VARIABLE_C", "env c"), ("APP_E", "app e")];
        let sources = VariableSources::new(
            pairs(&[("a", "given")]),
            &providers,
            folder.path(),
            &pairs(&environment),
        )
        .unwrap();
        let values = ["a", "b", "c", "d", "e", "f"].map(|name| sources.get(name));
        let expected =
            [Some("given"), Some("static"), Some("quoted file"), Some("x=y"), Some("app e"), None];
        assert_eq!(values, expected);
        assert_eq!(sources.named().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn the_environment_goes_before_the_file_of_its_provider() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("v"), "SPIN_VARIABLE_A=file").unwrap();
        let provider = Provider::Env { prefix: None, dotenv_path: Some("v".into()) };
        let environment = pairs(&[("SPIN_VARIABLE_A", "env")]);
        let sources = VariableSources::new([], &[provider], folder.path(), &environment).unwrap();
        assert_eq!(sources.get("a"), Some("env"));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_value_shown() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("v"), "A=1\nsecret\n").unwrap();
        let env = |path: &str| Provider::Env { prefix: None, dotenv_path: Some(path.into()) };
        let error = |provider| {
            let sources = VariableSources::new([], &[provider], folder.path(), &[]);
            format!("{:#}", sources.err().unwrap())
        };
        assert!(error(env("v")).contains("line 2") && !error(env("v")).contains("secret"));
        assert!(error(env("missing")).contains("missing"));
        let vault = toml::from_str("type = \"vault\"\nurl = \"http://127.0.0.1\"").unwrap();
        assert!(error(vault).contains("only \"static\" and \"env\""));
    }
}
