//! Running other programs, with their last words kept for the error message.

use std::collections::VecDeque;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Error, Result, bail};

/// How many of a failed program's last lines an error repeats, where the others were shown already.
const LAST_LINES: usize = 3;
/// The same, where they were not.
const LAST_UNSEEN_LINES: usize = 12;

/// The standard output of a short command.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("could not run `{shown}`"))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "`{shown}` failed ({}){}",
            output.status,
            quote_last(LAST_UNSEEN_LINES, stderr.lines())
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a command that talks to a person: what it prints is shown as it comes, on stderr, and the last lines of its
/// errors are in the error message too.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = show(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(io::stderr())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not run `{shown}`"))?;
    let mut last = VecDeque::new();
    for line in BufReader::new(child.stderr.take().expect("piped")).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        eprintln!("{line}");
        if !line.trim().is_empty() {
            last.push_back(line);
        }
        if last.len() > LAST_LINES {
            last.pop_front();
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!(
            "`{shown}` failed ({status}){}",
            quote_last(LAST_LINES, last.iter().map(String::as_str))
        );
    }
    Ok(())
}

/// Whether a command can be run and succeeds, silently.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// A command as a person would type it, by its name rather than its whole path.
pub fn show(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Puts what was to be downloaded before the error of the command that should have.
pub fn not_to_be_had(what: impl Display) -> impl FnOnce(Error) -> Error {
    move |error| {
        let hint = if speaks_of_no_network(&format!("{error:#}")) {
            " (there seems to be no network)"
        } else {
            ""
        };
        error.context(format!("{what} could not be had{hint}"))
    }
}

fn speaks_of_no_network(text: &str) -> bool {
    const SIGNS: [&str; 6] = [
        "name resolution",
        "resolve host",
        "Failed to establish a new connection",
        "Temporary failure resolving",
        "unreachable",
        "timed out",
    ];
    SIGNS.iter().any(|sign| text.contains(sign))
}

fn quote_last<'a>(count: usize, lines: impl Iterator<Item = &'a str>) -> String {
    let lines: Vec<&str> = lines.filter(|line| !line.trim().is_empty()).collect();
    let lines = &lines[lines.len().saturating_sub(count)..];
    if lines.is_empty() {
        return String::new();
    }
    let mut text = String::from("; its last lines:");
    for line in lines {
        text.push_str("\n  | ");
        text.push_str(line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_failure_repeats_the_last_lines() {
        let error = run(Command::new("sh").args(["-c", "seq 1 20 >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("exit status: 3"), "{text}");
        assert!(text.contains("| 20") && !text.contains("| 17"), "{text}");
    }

    #[test]
    fn a_missing_network_is_guessed_from_the_words() {
        let text = |words| not_to_be_had("cmake==4")(anyhow!("{words}")).to_string();
        assert_eq!(text("no matching package"), "cmake==4 could not be had");
        assert_eq!(
            text("[6] Could not resolve host: x"),
            "cmake==4 could not be had (there seems to be no network)"
        );
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let error = output(&mut Command::new("/nowhere/to-be-found")).unwrap_err();
        assert_eq!(error.to_string(), "could not run `to-be-found`");
    }
}
