//! `urxe`: runs programs over the urxe provider, installs it and takes it away again, and says how it is.
//!
//! One file or folder a subcommand. [`options`] is what most of them understand, [`layout`] knows every path, [`sysfs`]
//! what the fake sysfs tree holds, [`plan`] how files are created and removed without touching anybody else's.

mod cdi;
mod device_node;
mod devices;
mod doctor;
mod env;
mod explain;
mod faults;
mod glibc;
mod help;
mod host;
mod inject;
mod install;
mod ipoib;
mod layout;
mod libibverbs;
mod library;
mod manifest;
mod options;
mod out;
mod plan;
mod run;
mod status;
mod stub;
mod suggest;
mod sysfs;
mod top;
mod topology;
mod trace;
mod uninstall;
mod valgrind;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// RDMA without an RDMA card: runs programs over a RoCE v2 provider that the stock libibverbs loads.
#[derive(Parser)]
#[command(name = "urxe", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program that finds urxe's devices: no root, nothing installed, no trace left
    Run(run::Args),
    /// Show which processes use urxe, and how their queue pairs are
    Status(status::Args),
    /// Watch devices and queue pairs at a terminal: rates, windows, retries
    Top(top::Args),
    /// Say what would stop a program here, and what to do
    Doctor(doctor::Args),
    /// Install the provider, for the whole machine (needs root) or below a folder
    Install(install::Args),
    /// Remove what `urxe install` created
    Uninstall(uninstall::Args),
    /// Print the variables that programs need, as shell `export` lines: eval "$(urxe env)"
    Env(env::Args),
    /// Describe the devices for containers (CDI): podman run --device urxe.dev/rdma=urxe0
    Cdi(cdi::Args),
    /// Say what a code means, what causes it, and what to do
    Explain(explain::Args),
    /// Check a script of faults, and print it as rules in one line, also from TOML
    Faults(faults::Args),
    /// Send packets of a script or a generator to a live program: a raw peer, for fuzzing
    Inject(Box<inject::InjectArgs>),
    /// Play one side of a capture to a live program, and say where its answers differ
    Replay(Box<inject::ReplayArgs>),
    /// Give hosts with ports of InfiniBand an interface for IP (IPoIB)
    Ipoib(ipoib::Args),
    /// Draw a capture as a sequence of packets, with retries, refusals and explanations
    Trace(trace::Args),
    /// Print completions for a shell: source <(urxe completions bash)
    Completions(help::CompletionsArgs),
    /// Print the manual page: urxe man | man -l -
    Man(help::ManArgs),
    #[command(name = cdi::check::SUBCOMMAND, hide = true)]
    CdiCheck,
    #[command(name = doctor::probe::SUBCOMMAND, hide = true)]
    Probe,
    #[command(name = run::reaper::SUBCOMMAND, hide = true)]
    Reaper(run::reaper::Args),
}

fn main() -> ExitCode {
    let parsed = parser().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let command = match parsed {
        Ok(cli) => cli.command,
        Err(error) => return usage(&error),
    };
    let result = match command {
        Command::Install(args) => install::run(args).map(done),
        Command::Uninstall(args) => uninstall::run(args).map(done),
        Command::Env(args) => env::run(args).map(done),
        Command::Cdi(args) => cdi::run(&args).map(done),
        Command::Completions(args) => help::completions(&args, parser()).map(done),
        Command::Man(args) => help::man(&args, parser()).map(done),
        Command::CdiCheck => cdi::check::run().map(done),
        Command::Explain(args) => explain::run(&args).map(done),
        Command::Faults(args) => faults::run(&args).map(done),
        Command::Ipoib(args) => ipoib::run(&args).map(done),
        Command::Trace(args) => trace::run(&args).map(done),
        Command::Top(args) => top::run(&args),
        Command::Run(args) => return run::run(&args),
        Command::Inject(args) => inject::inject(&args),
        Command::Replay(args) => inject::replay(&args),
        Command::Status(args) => status::run(&args).map(done),
        Command::Doctor(args) => doctor::run(&args),
        Command::Probe => doctor::probe::run().map(done),
        Command::Reaper(args) => {
            run::reaper::run(&args);
            return ExitCode::SUCCESS;
        }
    };
    result.unwrap_or_else(|error| {
        out::complain(&format_args!("{error:#}"));
        ExitCode::FAILURE
    })
}

/// The command line, with help by tasks.
fn parser() -> clap::Command {
    help::with_tasks(Cli::command())
}

const fn done((): ()) -> ExitCode {
    ExitCode::SUCCESS
}

/// Says what is wrong with the command line, or gives the help that was asked for.
fn usage(error: &clap::Error) -> ExitCode {
    let subcommand = std::env::args_os().nth(1).unwrap_or_default();
    let option = || help::meant_option(error, &parser(), &subcommand.to_string_lossy());
    match help::meant(error, &parser()).or_else(option) {
        Some(line) => out::complain(&line),
        // Nothing can be done about a closed stderr.
        None => drop(error.print()),
    }
    // Of `urxe run` any other number could be the program's.
    if error.use_stderr() && subcommand == "run" {
        return ExitCode::from(run::FAILED);
    }
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_says_what_there_is() {
        parser().debug_assert();
        let mut command = parser();
        for help in [command.render_help().to_string(), command.render_long_help().to_string()] {
            assert!(help.starts_with("RDMA without an RDMA card: "), "{help}");
            for name in ["run", "doctor", "status", "explain", "trace", "install", "uninstall", "env", "cdi"] {
                assert!(help.lines().any(|line| line.trim().starts_with(&format!("{name} "))), "no {name}: {help}");
            }
            for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
                let rows = help.lines().filter(|line| line.starts_with(&format!("  {} ", command.get_name()))).count();
                assert_eq!(rows, 1, "{}: {help}", command.get_name());
            }
            assert!(help.lines().all(|line| line.len() <= 100), "{help}");
            assert!(!help.contains("cdi-check") && !help.contains("reaper") && !help.contains("probe"), "{help}");
        }
    }
}
