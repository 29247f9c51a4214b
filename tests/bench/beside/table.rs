//! The table of both servers' figures.

use std::fmt;

use spinfer_tests::measure::{median, quantile};

use crate::measures::Column;

/// Figures of two servers, round by round.
pub struct Table {
    names: [&'static str; 2],
    lines: Vec<Line>,
}

struct Line {
    column: *const Column,
    name: &'static str,
    unit: &'static str,
    more_is_better: bool,
    rounds: Vec<[f64; 2]>,
}

impl Table {
    /// An empty table of two servers.
    pub fn new(names: &[&'static str; 2]) -> Self {
        Self { names: *names, lines: Vec::new() }
    }

    /// What a round has given for a column.
    pub fn add(&mut self, column: &'static Column, ours: f64, theirs: f64) {
        let at = self.lines.iter().position(|line| std::ptr::eq(line.column, column));
        let line = match at {
            Some(at) => &mut self.lines[at],
            None => {
                let Column { name, unit, more_is_better } = *column;
                self.lines.push(Line { column, name, unit, more_is_better, rounds: Vec::new() });
                self.lines.last_mut().expect("just pushed")
            }
        };
        line.rounds.push([ours, theirs]);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, theirs] = self.names;
        writeln!(
            f,
            "| | unit | better is | {ours} | {theirs} | ratio | middle half of the rounds |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|")?;
        for line in &self.lines {
            let of = |peer: usize| {
                let values: Vec<f64> = line.rounds.iter().map(|round| round[peer]).collect();
                median(&values)
            };
            let ratios: Vec<f64> = line.rounds.iter().map(|[ours, theirs]| ours / theirs).collect();
            let ratio = |share| quantile(&ratios, share);
            writeln!(
                f,
                "| {} | {} | {} | {:.1} | {:.1} | {:.2} | {:.2} to {:.2} |",
                line.name,
                line.unit,
                if line.more_is_better { "more" } else { "less" },
                of(0),
                of(1),
                ratio(0.5),
                ratio(0.25),
                ratio(0.75),
            )?;
        }
        Ok(())
    }
}
