//! Where the values of the application's variables come from.

use std::collections::BTreeMap;

/// The values given from outside, those of the command line before those of the environment.
#[derive(Debug, Clone, Default)]
pub struct VariableSources {
    command_line: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
}

/// Before the name of a variable in upper case, in the environment.
const ENVIRONMENT_PREFIX: &str = "SPIN_VARIABLE_";

impl VariableSources {
    /// From `--variable NAME=VALUE` and the environment's `SPIN_VARIABLE_NAME`.
    pub fn new(
        command_line: impl IntoIterator<Item = (String, String)>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Self {
        let environment = environment.into_iter().filter_map(|(name, value)| {
            let name = name.strip_prefix(ENVIRONMENT_PREFIX)?;
            Some((name.to_ascii_lowercase(), value))
        });
        Self {
            command_line: command_line.into_iter().collect(),
            environment: environment.collect(),
        }
    }

    /// The value of a variable, if it was given.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.command_line.get(name).or_else(|| self.environment.get(name)).map(String::as_str)
    }

    /// Names given on the command line.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.command_line.keys().map(String::as_str)
    }
}
