//! `urxe doctor`: what would stop a program here, and what to do about it.
//!
//! Each check looks at one thing and reports [`Finding`]s. What nobody thought of is left to the last one, the
//! [`probe`]: a process that opens a device as any program would. There are two ways for a program to find devices, and a
//! [`Way`] works or not by itself: what is wrong with an installation does not stop `urxe run`.

mod install;
mod library;
mod network;
pub(crate) mod probe;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use urxe_options::{Personality, RawFrames};

use crate::layout::Layout;
use crate::options::{Options, Settings};
use crate::{devices, out, suggest};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,

    /// Look at this way only, and fail if it does not work [default: both, and fail if neither works]
    #[arg(long = "for", value_name = "WAY", value_enum)]
    way: Option<Way>,
}

/// How a program is started that is to find devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Way {
    /// By `urxe run -- PROGRAM`
    Run,
    /// By itself, after `urxe install`
    Installed,
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
    let mut both = Said::default();
    both.say(library::check())?;
    both.say(missing_folder().into_iter().collect())?;
    let misspelt = suggest::in_environment().into_iter();
    both.say(misspelt.map(|what| Finding::warning(what, "set it again by that name")).collect())?;
    let (mut by_run, mut installed) = (None, None);
    match args.options.settings() {
        Ok(settings) => {
            both.say(check_devices(&settings))?;
            both.say(settings.observations().err().iter().map(Finding::error).collect())?;
            if args.way != Some(Way::Installed) {
                let mut way = both.clone();
                way.say(vec![probe::by_run(&settings)])?;
                by_run = Some(way);
            }
            if args.way == Some(Way::Installed) || (args.way.is_none() && install::is_wanted(&Layout::Machine)) {
                let mut way = both.clone();
                way.say(install::check())?;
                way.say(vec![probe::installed(&settings)])?;
                installed = Some(way);
            }
        }
        Err(error) => both.say(vec![Finding::error(&error)])?,
    }
    if by_run.is_none() && installed.is_none() {
        (by_run, installed) = match args.way {
            Some(Way::Installed) => (None, Some(both)),
            _ => (Some(both), None),
        };
    }
    let verdict = |name: &str, way: &Said| match &way.problem {
        None => out::print(&format!("{name}  works\n")),
        Some(problem) => out::print(&format!("{name}  does not work: {problem}\n")),
    };
    if let Some(way) = &by_run {
        verdict("urxe run ", way)?;
    }
    match &installed {
        Some(way) => verdict("installed", way)?,
        None if args.way.is_none() => out::print("installed  no: start programs with `urxe run -- PROGRAM`\n")?,
        None => {}
    }
    let works = by_run.iter().chain(&installed).any(|way| way.problem.is_none());
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Verdict about a way.
#[derive(Clone, Default)]
struct Said {
    /// The first thing that keeps programs from working.
    problem: Option<String>,
}

impl Said {
    fn say(&mut self, findings: Vec<Finding>) -> Result<()> {
        for finding in findings {
            finding.print()?;
            if finding.verdict == Verdict::Problem {
                self.problem.get_or_insert(finding.what);
            }
        }
        Ok(())
    }
}

/// Returns a finding if this process is below a `urxe run` whose folder is hidden or gone.
fn missing_folder() -> Option<Finding> {
    let folder = std::env::var_os(urxe_options::RUN_VARIABLE).filter(|folder| !folder.is_empty())?;
    let is_missing = !Path::new(&folder).is_dir();
    is_missing.then(|| {
        Finding::warning(
            format!(
                "programs started from here find no devices: {} is not there, which `urxe run` made",
                folder.display()
            ),
            "where /dev/shm is mounted anew (bwrap, unshare, a container), start `urxe run` in there",
        )
    })
}

/// Returns a finding if the devices have a card's names.
fn looks_like_a_card(personality: Personality) -> Option<Finding> {
    (personality == Personality::Mlx5).then(|| {
        Finding::warning(
            "personality mlx5: devices have the names and ids of a ConnectX-5, and none of its direct verbs (mlx5dv)",
            "leave --personality out unless the program insists on such a name",
        )
    })
}

/// Says whether raw packet queue pairs can be made, and who else gets their frames.
fn raw_ethernet(frames: RawFrames) -> Finding {
    match urxe_net::raw::check_rights() {
        Ok(()) if frames == RawFrames::Xdp => match urxe_net::raw::check_rights_of_xdp() {
            Ok(()) => Finding::fine(
                "raw Ethernet: allowed; XDP takes what flow rules want away from the host's network stack",
            ),
            Err(error) => Finding::warning(
                format!(
                    "raw Ethernet: flow rules are not allowed here ({error}): XDP needs CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
                ),
                "run as root of the machine, with --cap-add=BPF,NET_ADMIN,NET_RAW, or leave --raw out",
            ),
        },
        Ok(()) => Finding::fine(
            "raw Ethernet: allowed; the host's network stack gets a copy of every frame (--raw xdp takes them)",
        ),
        Err(error) => Finding::fine(format!(
            "raw Ethernet: not allowed here ({error}); programs that want it need CAP_NET_RAW: `unshare -Urn`, --cap-add=NET_RAW, \
             or `setcap cap_net_raw+ep PROGRAM` where urxe is installed"
        )),
    }
}

fn check_devices(settings: &Settings) -> Vec<Finding> {
    match settings.choices().and_then(|choices| Ok((devices::interfaces(&choices)?, choices))) {
        Ok((interfaces, choices)) => choices
            .devices
            .iter()
            .zip(interfaces)
            .flat_map(|(device, at)| network::check(device, &at, &choices))
            .chain(looks_like_a_card(choices.personality))
            .chain([raw_ethernet(choices.raw)])
            .collect(),
        Err(error) => vec![Finding::error(&error)],
    }
}
