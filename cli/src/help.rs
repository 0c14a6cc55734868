//! Help of the whole command: subcommands by task, manual pages, completions, and what a misspelt subcommand was to be.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};
use clap_complete::Shell;

use crate::out;
use crate::suggest::nearest;

/// Subcommands by what somebody wants to do.
const TASKS: [(&str, &[&str]); 5] = [
    ("Run programs", &["run", "cdi", "ipoib"]),
    ("See what goes on, and what is wrong", &["doctor", "status", "top", "trace", "explain"]),
    ("Have things go wrong", &["faults", "inject", "replay"]),
    ("Install", &["install", "uninstall", "env"]),
    ("Help in the shell", &["completions", "man", "help"]),
];

const HELP_ABOUT: &str = "Print this message, or the help of a subcommand";

/// The command, with its subcommands by task.
pub(crate) fn with_tasks(command: Command) -> Command {
    let about = |name: &str| match command.find_subcommand(name).and_then(Command::get_about) {
        Some(about) => about.to_string(),
        None => HELP_ABOUT.to_owned(),
    };
    let task = |(title, names): &(&str, &[&str])| {
        let rows: String = names.iter().map(|name| format!("  {name:<12} {}\n", about(name))).collect();
        format!("{title}:\n{rows}\n")
    };
    let tasks: String = TASKS.iter().map(task).collect();
    let template = format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{tasks}Options:\n{{options}}\n\n\
         First: urxe run -- ibv_devinfo; if that fails: urxe doctor\n"
    );
    command.help_template(template)
}

/// Suggests an option of a subcommand, in a line, where clap sees none that is near: `--mut` for `--mtu`.
pub(crate) fn meant_option(error: &clap::Error, command: &Command, subcommand: &str) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument || error.get(ContextKind::SuggestedArg).is_some() {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    let word = word.strip_prefix("--")?;
    let names = command.find_subcommand(subcommand)?.get_arguments().filter_map(Arg::get_long);
    nearest(word, names).map(|name| format!("`urxe {subcommand}` has no option `--{word}`: did you mean `--{name}`?"))
}

/// Suggests a subcommand, in a line, where there is none of that name.
pub(crate) fn meant(error: &clap::Error, command: &Command) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let names = command.get_subcommands().filter(|command| !command.is_hide_set()).map(Command::get_name);
    Some(match nearest(word, names) {
        Some(name) => format!("there is no subcommand `{word}`: did you mean `{name}`?"),
        None if is_program(word) => format!("there is no subcommand `{word}`: did you mean `urxe run -- {word}`?"),
        None => format!("there is no subcommand `{word}`; `urxe --help` lists them"),
    })
}

fn is_program(word: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    word.contains('/') || std::env::split_paths(&path).any(|folder| folder.join(OsStr::new(word)).is_file())
}

#[derive(clap::Args)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to complete words behind `urxe`: for bash, source <(urxe completions bash)
    shell: Shell,
}

/// Prints the completions for a shell.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "urxe", &mut script);
    out::print(&String::from_utf8(script)?)
}

#[derive(clap::Args)]
pub(crate) struct ManArgs {
    /// Write urxe(1) and a page for each subcommand into this folder [default: print urxe(1)]
    #[arg(value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the manual page, or writes all of them.
pub(crate) fn man(args: &ManArgs, command: Command) -> Result<()> {
    if let Some(dir) = &args.dir {
        std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .with_context(|| format!("writing manual pages to {}", dir.display()))?;
        return Ok(());
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    out::print(&String::from_utf8(page)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Command {
        let names = TASKS.iter().flat_map(|(_, names)| names.iter()).filter(|name| **name != "help");
        Command::new("urxe").subcommands(names.map(|name| Command::new(*name).about("does something")))
    }

    fn said(word: &str) -> String {
        let error = command().try_get_matches_from(["urxe", word]).unwrap_err();
        meant(&error, &command()).unwrap()
    }

    #[test]
    fn misspelt_subcommands_are_understood() {
        assert_eq!(said("rnu"), "there is no subcommand `rnu`: did you mean `run`?");
        assert_eq!(said("instal"), "there is no subcommand `instal`: did you mean `install`?");
        assert_eq!(said("sort"), "there is no subcommand `sort`: did you mean `urxe run -- sort`?");
        assert!(said("nonsense-at-length").contains("`urxe --help` lists them"));
    }

    #[test]
    fn misspelt_options_are_understood() {
        let command = || {
            let run = Command::new("run").arg(Arg::new("mtu").long("mtu")).arg(Arg::new("program").num_args(1..));
            Command::new("urxe").subcommand(run)
        };
        let said = |option| {
            let error = command().try_get_matches_from(["urxe", "run", option, "true"]).unwrap_err();
            meant_option(&error, &command(), "run")
        };
        assert_eq!(said("--mut").unwrap(), "`urxe run` has no option `--mut`: did you mean `--mtu`?");
        assert_eq!(said("--nonsense"), None);
    }

    #[test]
    fn pages_for_all_subcommands() {
        let dir = tempfile::tempdir().unwrap();
        man(&ManArgs { dir: Some(dir.path().to_owned()) }, command()).unwrap();
        for page in ["urxe.1", "urxe-run.1", "urxe-cdi.1"] {
            assert!(dir.path().join(page).is_file(), "{page}");
        }
    }
}
