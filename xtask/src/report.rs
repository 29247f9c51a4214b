//! What a person sees: steps with their durations, a progress bar, the table of stages, and the sum of the tests.
//!
//! Steps go to stderr, where cargo's own progress is; results go to stdout.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;

pub fn say(text: &str) {
    eprintln!("xtask: {text}");
}

/// The sentence that ends a chore that failed, causes included.
pub fn failure(error: &anyhow::Error) {
    eprintln!("xtask: {error:#}");
}

/// Does one step: a line when it begins, and one with its duration when it is done.
pub fn step<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    say(&format!("{name} …"));
    let start = Instant::now();
    let result = work();
    let word = if result.is_ok() { "done" } else { "failed" };
    say(&format!("{name}: {word} in {}", Took(start.elapsed())));
    result
}

/// A duration in the unit that suits it.
pub struct Took(pub Duration);

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 10.0 {
            write!(f, "{seconds:.1} s")
        } else if seconds < 60.0 {
            write!(f, "{seconds:.0} s")
        } else {
            let whole = seconds.round() as u64;
            write!(f, "{} min {:02} s", whole / 60, whole % 60)
        }
    }
}

/// A bar for work measured in bytes. Where nobody watches, it stays silent.
pub struct Progress {
    label: &'static str,
    total: u64,
    done: u64,
    drawn: Option<Instant>,
    visible: bool,
}

impl Progress {
    pub fn new(label: &'static str, total: u64) -> Self {
        Self { label, total, done: 0, drawn: None, visible: io::stderr().is_terminal() }
    }

    pub fn advance(&mut self, bytes: u64) {
        self.done += bytes;
        let due = self.drawn.is_none_or(|at| at.elapsed() >= Duration::from_millis(100));
        if self.visible && (due || self.done == self.total) {
            self.drawn = Some(Instant::now());
            eprint!("\r{}", bar(self.label, self.done, self.total));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.visible && self.drawn.is_some() {
            eprintln!();
        }
    }
}

fn bar(label: &str, done: u64, total: u64) -> String {
    const WIDTH: u64 = 30;
    let filled = (done.min(total) * WIDTH).checked_div(total).unwrap_or(WIDTH);
    format!(
        "  {label} [{}{}] {} / {} MB",
        "=".repeat(filled as usize),
        " ".repeat((WIDTH - filled) as usize),
        done / 1_000_000,
        total / 1_000_000
    )
}

/// How a stage of the test run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    Failed,
    /// Not run, because a stage that it builds on failed.
    Skipped,
}

/// The stages of a test run, in order, with what each came to.
#[derive(Default)]
pub struct Stages(Vec<(&'static str, Outcome, Duration)>);

impl Stages {
    /// Runs a stage and gives what it made; an error is reported and noted, not passed on.
    pub fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Option<T> {
        let start = Instant::now();
        let result = step(name, work);
        let outcome = if result.is_ok() { Outcome::Passed } else { Outcome::Failed };
        self.0.push((name, outcome, start.elapsed()));
        result.inspect_err(failure).ok()
    }

    pub fn skip(&mut self, name: &'static str) {
        self.0.push((name, Outcome::Skipped, Duration::ZERO));
    }

    pub fn all_passed(&self) -> bool {
        self.0.iter().all(|(_, outcome, _)| *outcome == Outcome::Passed)
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            self.0.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max("stage".len());
        writeln!(f, "{:width$}  {:>12}", "stage", "took")?;
        for (name, outcome, took) in &self.0 {
            let (took, note) = match outcome {
                Outcome::Passed => (Took(*took).to_string(), ""),
                Outcome::Failed => (Took(*took).to_string(), "  FAILED"),
                Outcome::Skipped => ("-".to_owned(), "  not run"),
            };
            writeln!(f, "{name:width$}  {took:>12}{note}")?;
        }
        let total = self.0.iter().map(|(.., took)| *took).sum();
        writeln!(f, "{:width$}  {:>12}", "total", Took(total).to_string())
    }
}

/// Counts of tests, summed over the closing lines of every test program.
#[derive(Default, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    /// Adds what one line of a test program's output says, if it is its closing line:
    /// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s`.
    pub fn read(&mut self, line: &str) {
        let Some(result) = line.trim_start().strip_prefix("test result: ") else {
            return;
        };
        let counts = result.split_once(". ").map_or("", |(_, counts)| counts);
        for count in counts.split(';') {
            let Some((number, what)) = count.trim().split_once(' ') else {
                continue;
            };
            let Ok(number) = number.parse::<u64>() else {
                continue;
            };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.skipped += number,
                _ => {}
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Passes a test program's output on as it comes, and adds up its closing lines.
pub fn relay_tests(
    mut from: impl io::Read,
    mut to: impl Write,
    tally: &mut Tally,
) -> io::Result<()> {
    let mut line = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all(&buffer[..read])?;
        to.flush()?;
        for byte in &buffer[..read] {
            if *byte == b'\n' {
                tally.read(&String::from_utf8_lossy(&line));
                line.clear();
            } else {
                line.push(*byte);
            }
        }
    }
    tally.read(&String::from_utf8_lossy(&line));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn closing_lines_are_summed_and_other_lines_are_not() {
        let mut tally = Tally::default();
        for line in [
            "running 4 tests",
            "test report::tests::x ... ok",
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s",
            "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s",
            "he said test result: ok. 9 passed; 0 failed",
            "test result: nonsense",
        ] {
            tally.read(line);
        }
        assert_eq!(tally.to_string(), "8 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_closing_line_split_over_reads_counts_once() {
        struct Bytewise<'a>(&'a [u8]);
        impl io::Read for Bytewise<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(&mut buffer[..1])
            }
        }
        let mut tally = Tally::default();
        let text = b"\n\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        let mut shown = Vec::new();
        relay_tests(Bytewise(text), &mut shown, &mut tally).unwrap();
        assert_eq!(shown, text);
        assert_eq!(tally.to_string(), "1 passed, 0 failed, 0 skipped");
    }

    #[test]
    fn durations_choose_their_unit() {
        let took = |seconds| Took(Duration::from_secs_f64(seconds)).to_string();
        assert_eq!(took(0.04), "0.0 s");
        assert_eq!(took(9.94), "9.9 s");
        assert_eq!(took(59.4), "59 s");
        assert_eq!(took(125.0), "2 min 05 s");
    }

    #[test]
    fn the_table_names_what_failed_and_what_was_not_run() {
        let mut stages = Stages::default();
        assert_eq!(stages.run("format", || Ok(1)), Some(1));
        assert!(stages.all_passed());
        assert_eq!(stages.run("build", || -> Result<()> { bail!("no") }), None);
        stages.skip("unit tests");
        assert!(!stages.all_passed());
        let table = stages.to_string();
        assert!(table.contains("build              0.0 s  FAILED"), "{table}");
        assert!(table.contains("unit tests             -  not run"), "{table}");
    }

    #[test]
    fn the_bar_survives_an_empty_total_and_an_overshoot() {
        assert!(bar("x", 0, 0).contains("[=============================="));
        assert!(bar("x", 9, 4).contains("==============================]"));
    }
}
