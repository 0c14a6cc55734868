//! The options of [`urxe_options`], from three places: the command line, the environment, a TOML file. The first that
//! has one wins.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, value_parser};
use urxe_options::{ALL, Choices, DEFAULT_NETDEV_VARIABLE, FAULTS, Observations, Opt};

use crate::faults;

/// The option that names a file of options.
const CONFIG: &str = "config";
pub(crate) const CONFIG_VARIABLE: &str = "URXE_CONFIG";

/// Options from the command line and the environment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    config: Option<PathBuf>,
    /// By variable; true if the value is from the command line.
    given: BTreeMap<&'static str, (String, bool)>,
}

/// Options in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// By variable.
    values: BTreeMap<&'static str, String>,
    /// Of these, the ones that the environment does not have already.
    new: Vec<&'static str>,
}

impl clap::Args for Options {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .env(CONFIG_VARIABLE)
            .hide_env_values(true)
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("TOML file of options by their names, such as `netdev = \"eth0\"`");
        ALL.iter().fold(command.arg(config), |command, option| {
            let arg = Arg::new(option.name).long(option.name).env(option.variable).hide_env_values(true);
            command.arg(arg.value_name(option.value).help(option.help))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Options {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = Self::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.config = matches.get_one::<PathBuf>(CONFIG).cloned();
        for option in ALL {
            if let Some(value) = matches.get_one::<String>(option.name) {
                let typed = matches.value_source(option.name) == Some(ValueSource::CommandLine);
                self.given.insert(option.variable, (value.clone(), typed));
            }
        }
        Ok(())
    }
}

impl Options {
    /// Reads the file, if one is named, and puts the three together.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::default();
        if let Some(path) = self.config.as_deref().filter(|path| !path.as_os_str().is_empty()) {
            for (option, value) in read(path)? {
                settings.values.insert(option.variable, value);
                settings.new.push(option.variable);
            }
        }
        for (variable, (value, typed)) in &self.given {
            settings.new.retain(|new| new != variable);
            if *typed {
                settings.new.push(variable);
            }
            settings.values.insert(variable, value.clone());
        }
        // The library reads rules only.
        if let Some(script) = settings.values.get_mut(FAULTS.variable).filter(|value| faults::is_toml(value)) {
            *script = faults::read(Path::new(script.trim_start_matches('@')))?;
            if !settings.new.contains(&FAULTS.variable) {
                settings.new.push(FAULTS.variable);
            }
        }
        Ok(settings)
    }
}

impl Settings {
    /// Parses the values that are about devices.
    pub(crate) fn choices(&self) -> Result<Choices> {
        let fallback = |name: &str| std::env::var(name).ok().filter(|_| name == DEFAULT_NETDEV_VARIABLE);
        Ok(Choices::new(|name| self.values.get(name).cloned().or_else(|| fallback(name)))?)
    }

    /// Parses the values that are about diagnostics.
    pub(crate) fn observations(&self) -> Result<Observations> {
        Ok(Observations::new(|name| self.values.get(name).cloned())?)
    }

    /// Whether an option has a value.
    pub(crate) fn has(&self, option: Opt) -> bool {
        self.values.get(option.variable).is_some_and(|value| !value.trim().is_empty())
    }

    /// Writes the options in force as a file for `--config`.
    pub(crate) fn to_toml(&self) -> String {
        let lines = ALL.iter().filter_map(|option| {
            // A string of JSON is one of TOML.
            let value = serde_json::to_string(self.values.get(option.variable)?).ok()?;
            Some(format!("{} = {value}\n", option.name))
        });
        lines.collect()
    }

    /// Variables that say the same, without those that the environment has.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.new.iter().filter_map(|variable| Some((*variable, self.values.get(variable)?.as_str())))
    }
}

fn read(path: &Path) -> Result<Vec<(Opt, String)>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
    parse(&text).with_context(|| format!("--config {}", path.display()))
}

/// The options in the text of a TOML file.
fn parse(text: &str) -> Result<Vec<(Opt, String)>> {
    let table: toml::Table = text.parse()?;
    let entry = |(key, value): (String, toml::Value)| {
        let Some(option) = ALL.iter().find(|option| option.name == key) else {
            let known: Vec<&str> = ALL.iter().map(|option| option.name).collect();
            bail!("there is no option `{key}`; there are {}", known.join(", "));
        };
        Ok((*option, word(&value).with_context(|| format!("`{key}`"))?))
    };
    table.into_iter().map(entry).collect()
}

/// A value as it would be written on the command line: lists with commas.
fn word(value: &toml::Value) -> Result<String> {
    Ok(match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        // As variables say yes and no.
        toml::Value::Boolean(flag) => u8::from(*flag).to_string(),
        toml::Value::Array(items) => items.iter().map(word).collect::<Result<Vec<_>>>()?.join(","),
        toml::Value::Table(_) | toml::Value::Datetime(_) => bail!("neither text, a number, true, false nor a list"),
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn values(text: &str) -> Vec<(&'static str, String)> {
        parse(text).unwrap().into_iter().map(|(option, value)| (option.name, value)).collect()
    }

    #[test]
    fn values_of_every_type_become_words() {
        assert_eq!(values("netdev = [\"lo\", \"eth0\"]"), [("netdev", "lo,eth0".to_owned())]);
        assert_eq!(values("mtu = 1024 # bytes"), [("mtu", "1024".to_owned())]);
        assert_eq!(values("lid = true"), [("lid", "1".to_owned())]);
        assert_eq!(values("strict = false"), [("strict", "0".to_owned())]);
        assert_eq!(values(""), []);
    }

    #[test]
    fn mistakes_in_the_file_are_named() {
        let said = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(said("netdv = \"lo\"").contains("no option `netdv`; there are netdev, "), "{}", said("netdv = \"lo\""));
        assert!(said("[netdev]\na = 1").contains("`netdev`: neither text"));
        assert!(said("netdev = ").contains("line 1"));
    }

    #[test]
    fn options_are_written_as_they_are_read() {
        let mut settings = Settings::default();
        settings.values.insert("URXE_FAULTS", "drop=1%,opcode=\"A\"".to_owned());
        settings.values.insert("URXE_NETDEV", "lo".to_owned());
        let written = settings.to_toml();
        let expected = [("netdev", "lo".to_owned()), ("faults", "drop=1%,opcode=\"A\"".to_owned())];
        let mut read = values(&written);
        read.sort_unstable();
        assert!(expected.iter().all(|pair| read.contains(pair)) && read.len() == 2, "{written}");
        assert!(settings.has(FAULTS) && !settings.has(urxe_options::PCAP));
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "netdev = \"eth0\"\nmtu = 512\n").unwrap();
        let command = Options::augment_args(Command::new("urxe"));
        let args = ["urxe", "--config", file.path().to_str().unwrap(), "--netdev", "eth1"];
        let options = Options::from_arg_matches(&command.get_matches_from(args)).unwrap();
        let settings = options.settings().unwrap();
        let variables: BTreeMap<_, _> = settings.variables().collect();
        assert_eq!(variables, BTreeMap::from([("URXE_MTU", "512"), ("URXE_NETDEV", "eth1")]));
        assert_eq!(settings.choices().unwrap().devices[0].netdev, "eth1");
    }
}
