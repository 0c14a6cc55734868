//! `urxe doctor`: what would stop a program here, and what to do about it.
//!
//! Each check looks at one thing and reports [`Finding`]s. What nobody thought of is left to the last one, the
//! [`probe`]: a process that opens a device as any program would.

mod library;
mod network;
mod plain;
pub(crate) mod probe;

use std::process::ExitCode;

use anyhow::Result;

use crate::layout::Layout;
use crate::options::{Options, Settings};
use crate::{devices, misspelt, out};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
}

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Fine,
    /// Programs work, but not as well as they could, or not all of them.
    Warning,
    /// Programs do not work.
    Problem,
}

/// Result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Finding {
    verdict: Verdict,
    what: String,
    /// Remedy.
    remedy: Option<String>,
}

impl Finding {
    fn fine(what: impl Into<String>) -> Self {
        Self { verdict: Verdict::Fine, what: what.into(), remedy: None }
    }

    fn warning(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warning, what: what.into(), remedy: Some(remedy.into()) }
    }

    fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { verdict: Verdict::Problem, what: what.into(), remedy: Some(remedy.into()) }
    }

    /// Turns an error, whose line names the remedy too, into a finding.
    fn error(error: &anyhow::Error) -> Self {
        Self { verdict: Verdict::Problem, what: format!("{error:#}"), remedy: None }
    }

    fn print(&self) -> Result<()> {
        let label = match self.verdict {
            Verdict::Fine => "fine     ",
            Verdict::Warning => "warning  ",
            Verdict::Problem => "problem  ",
        };
        let remedy = self.remedy.as_ref().map_or(String::new(), |remedy| format!("         {remedy}\n"));
        out::print(&format!("{label}{}\n{remedy}", self.what))
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut worst = Verdict::Fine;
    let mut say = |findings: Vec<Finding>| {
        for finding in findings {
            finding.print()?;
            if finding.verdict == Verdict::Problem || worst == Verdict::Fine {
                worst = finding.verdict;
            }
        }
        anyhow::Ok(())
    };
    say(library::check())?;
    say(misspelt::in_environment()
        .into_iter()
        .map(|what| Finding::warning(what, "set it again by that name"))
        .collect())?;
    match args.options.settings() {
        Ok(settings) => {
            say(check_devices(&settings))?;
            say(settings.observations().err().iter().map(Finding::error).collect())?;
            let installed = plain::is_wanted(&Layout::Machine);
            if installed {
                say(plain::check())?;
            } else {
                say(vec![Finding::fine("not installed: start programs with `urxe run -- PROGRAM`")])?;
            }
            say(probe::check(&settings, installed))?;
        }
        Err(error) => say(vec![Finding::error(&error)])?,
    }
    Ok(match worst {
        Verdict::Problem => {
            out::print("programs will not find a device that works\n")?;
            ExitCode::FAILURE
        }
        Verdict::Warning | Verdict::Fine => ExitCode::SUCCESS,
    })
}

fn check_devices(settings: &Settings) -> Vec<Finding> {
    match settings.choices().and_then(|choices| Ok((devices::interfaces(&choices)?, choices))) {
        Ok((interfaces, choices)) => choices
            .devices
            .iter()
            .zip(interfaces)
            .flat_map(|(device, at)| network::check(device, &at, &choices))
            .collect(),
        Err(error) => vec![Finding::error(&error)],
    }
}
