//! Output: printed tables and kept files.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::sample::{Measured, Sample};
use crate::suite::{BOUNDS, COMPARISONS, Comparison, Figure, Goal, PROBES};

/// Machine and date of a measurement.
#[derive(Debug)]
pub struct Setting {
    date: String,
    kernel: String,
    processor: String,
    processors: usize,
    load: String,
}

impl Setting {
    /// Here and now.
    pub fn new() -> Result<Self> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("reading {path}"));
        let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output().context("running date")?;
        let cpuinfo = read("/proc/cpuinfo")?;
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Ok(Self {
            date: String::from_utf8(date.stdout)?.trim().to_owned(),
            kernel: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
            processor: model.map_or(std::env::consts::ARCH, |(_, model)| model).to_owned(),
            processors: std::thread::available_parallelism()?.get(),
            load: read("/proc/loadavg")?.split_whitespace().next().unwrap_or_default().to_owned(),
        })
    }

    /// Date of the measurement.
    pub(crate) fn date(&self) -> &str {
        &self.date
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let Self { date, kernel, processor, processors, load } = self;
        format!("{date}, {processors} × {processor}, Linux {kernel}, load average before the run {load}")
    }

    /// Whether other programs are taking processor time: the load of the minute before is more than a tenth of a
    /// processor.
    pub fn is_busy(&self) -> bool {
        self.load.parse::<f64>().is_ok_and(|load| load > 0.1)
    }

    /// Converts it to JSON, as it is kept.
    pub(crate) fn to_json(&self) -> Value {
        let Self { date, kernel, processor, processors, load } = self;
        json!({
            "date": date, "kernel": kernel, "processor": processor, "processors": processors, "load_before": load
        })
    }
}

/// Every figure: median and range. Markdown, aligned.
pub fn figures_table(measured: &Measured) -> String {
    let mut rows = vec![["measured", "unit", "median", "min..max", "target"].map(str::to_owned).to_vec()];
    for figure in PROBES.iter().flat_map(|probe| probe.figures) {
        let sample = measured.sample(*figure);
        let bound = BOUNDS.iter().find(|(of, _)| of == figure).map(|(_, goal)| *goal);
        rows.push(vec![
            figure.name.into(),
            figure.unit.to_string(),
            median(&sample),
            range(&sample),
            verdict(bound, &sample),
        ]);
    }
    markdown(&rows)
}

/// Every comparison: the median of the rounds' ratios, their range, and the goals. Markdown, aligned.
pub fn ratios_table(measured: &Measured) -> String {
    let heads = ["ratio of", "to", "median", "min..max", "first goal", "target"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for comparison in COMPARISONS {
        let Comparison { of, to, goals } = comparison;
        let ratio = measured.ratio(comparison);
        rows.push(vec![
            of.name.into(),
            to.name.into(),
            median(&ratio),
            range(&ratio),
            verdict(goals.start, &ratio),
            verdict(goals.target, &ratio),
        ]);
    }
    markdown(&rows)
}

/// Writes every value of every round to a file named by the date in `dir`; its path.
pub fn keep(measured: &Measured, setting: &Setting, dir: &Path) -> Result<std::path::PathBuf> {
    let figure = |figure: &Figure, program: &str| {
        let values = measured.sample(*figure).values().to_vec();
        json!({ "name": figure.name, "unit": figure.unit.to_string(), "program": program, "values": values })
    };
    let figures: Vec<Value> = PROBES
        .iter()
        .flat_map(|probe| probe.figures.iter().map(move |of| (of, probe.program.describe())))
        .map(|(of, program)| figure(of, &program))
        .collect();
    let ratios: Vec<Value> = COMPARISONS
        .iter()
        .map(|comparison| {
            let ratio = measured.ratio(comparison);
            let Comparison { of, to, goals } = comparison;
            json!({
                "of": of.name,
                "to": to.name,
                "values": ratio.values(),
                "median": ratio.median(),
                "first_goal": goals.start.map(|goal| goal.to_string()),
                "target": goals.target.map(|goal| goal.to_string()),
            })
        })
        .collect();
    let all = json!({ "setting": setting.to_json(), "figures": figures, "ratios": ratios });
    fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    let path = dir.join(format!("side-by-side-{}.json", setting.date));
    fs::write(&path, format!("{all:#}\n")).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// A goal, and whether the median reaches it.
fn verdict(goal: Option<Goal>, sample: &Sample) -> String {
    match (goal, sample.median()) {
        (Some(goal), Some(median)) => format!("{goal} {}", if goal.is_met(median) { "met" } else { "missed" }),
        (Some(goal), None) => goal.to_string(),
        (None, _) => String::new(),
    }
}

fn median(sample: &Sample) -> String {
    sample.median().map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

fn range(sample: &Sample) -> String {
    sample.range().map_or_else(String::new, |(min, max)| format!("{min:.2}..{max:.2}"))
}

/// A table whose first row is its head; columns are as wide as their widest cell.
pub(crate) fn markdown(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        text.push_str(&format!("| {} |\n", cells.join(" | ")));
        if index == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
            text.push_str(&format!("|{}|\n", rules.join("|")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::UDP_LATENCY;

    #[test]
    fn tables_are_aligned() {
        let rows = [["what", "µ"], ["a", "≥ 0.5"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(markdown(&rows), "| what | µ     |\n|------|-------|\n| a    | ≥ 0.5 |\n");
    }

    #[test]
    fn tables_have_a_row_for_what_was_not_measured() {
        let mut measured = Measured::default();
        measured.push(UDP_LATENCY, 2.5);
        let figures = figures_table(&measured);
        assert_eq!(figures.lines().count(), 2 + PROBES.iter().map(|probe| probe.figures.len()).sum::<usize>());
        assert!(figures.contains("2.50..2.50"), "{figures}");
        assert_eq!(ratios_table(&measured).lines().count(), 2 + COMPARISONS.len());
    }

    #[test]
    fn every_value_is_kept() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let mut measured = Measured::default();
        for value in [2.5, 2.25] {
            measured.push(UDP_LATENCY, value);
        }
        let path = keep(&measured, &Setting::new()?, dir.path())?;
        let kept: Value = serde_json::from_str(&fs::read_to_string(path)?)?;
        assert_eq!(kept["figures"][0]["values"], json!([2.5, 2.25]));
        Ok(())
    }
}
