//! `urxe faults`: checks a script of faults, and makes one from TOML.
//!
//! ```toml
//! seed = 42
//! rules = ["delay=10us..50us"]        # these always hold
//!
//! [[step]]                            # then one after the other
//! packets = 1000
//!
//! [[step]]
//! lasts = "500ms"
//! rules = ["drop,opcode=ACK", { dup = "1%", peer = "10.0.0.2", nth = 3 }]
//! ```
//!
//! `repeat = true` lets the first step follow the last. Rules are those of [`urxe_faults::spec`].

use std::path::Path;

use anyhow::{Context, Result, bail};
use toml::{Table, Value};
use urxe_faults::Script;

use crate::out;

#[derive(clap::Args)]
#[command(after_long_help = urxe_faults::spec::GRAMMAR)]
pub(crate) struct Args {
    /// Rules such as `drop=1%,seed=42`, or @FILE; a file whose name ends in .toml may have steps
    #[arg(value_name = "SCRIPT|@FILE")]
    script: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    out::print(&format!("{}\n", text_of(&args.script)?.trim_end()))
}

/// The rules of a script, which make sense.
pub(crate) fn text_of(script: &str) -> Result<String> {
    let text = match script.strip_prefix('@') {
        Some(path) if is_toml(script) => read(Path::new(path))?,
        Some(path) => std::fs::read_to_string(path).with_context(|| path.to_owned())?,
        None => script.to_owned(),
    };
    text.parse::<Script>()?.load_dictionaries(|path| std::fs::read_to_string(path))?;
    Ok(text)
}

/// Whether a value of `URXE_FAULTS` names a TOML file.
pub(crate) fn is_toml(value: &str) -> bool {
    value.starts_with('@') && value.ends_with(".toml")
}

/// The script in a TOML file, as rules.
pub(crate) fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    rules_of(&text).with_context(|| path.display().to_string())
}

fn rules_of(text: &str) -> Result<String> {
    let table: Table = text.parse()?;
    let mut rules = Vec::new();
    let mut repeats = false;
    let mut steps = Vec::new();
    for (key, value) in &table {
        match (key.as_str(), value) {
            ("seed", Value::Integer(seed)) => rules.push(format!("seed={seed}")),
            ("repeat", Value::Boolean(yes)) => repeats = *yes,
            ("rules", Value::Array(list)) => rules.extend(list.iter().map(rule).collect::<Result<Vec<_>>>()?),
            ("step", Value::Array(list)) => {
                for (index, value) in list.iter().enumerate() {
                    steps.extend(step(value).with_context(|| format!("step {}", index + 1))?);
                }
            }
            _ => bail!("`{key}`, {}: there are seed = 42, repeat = true, rules = […] and [[step]]", value.type_str()),
        }
    }
    rules.extend(steps);
    rules.extend(repeats.then(|| "repeat".to_owned()));
    let rules = rules.join("; ");
    rules.parse::<Script>()?;
    Ok(rules)
}

/// A step, and the rules in there.
fn step(value: &Value) -> Result<Vec<String>> {
    let table = value.as_table().context("not a table: [[step]]")?;
    let mut begins = "step".to_owned();
    let mut rules = Vec::new();
    for (key, value) in table {
        match (key.as_str(), value) {
            ("packets", Value::Integer(count)) => begins += &format!(",packets={count}"),
            ("lasts", Value::String(time)) => begins += &format!(",lasts={time}"),
            ("rules", Value::Array(list)) => rules = list.iter().map(rule).collect::<Result<_>>()?,
            _ => bail!("`{key}`, {}: there are packets = 200, lasts = \"500ms\" and rules = […]", value.type_str()),
        }
    }
    rules.insert(0, begins);
    Ok(rules)
}

/// A rule: its text, or a table of its items.
fn rule(value: &Value) -> Result<String> {
    let item = |(key, value): (&String, &Value)| {
        Ok(match value {
            Value::String(text) => format!("{key}={text}"),
            Value::Integer(number) => format!("{key}={number}"),
            Value::Boolean(true) => key.clone(),
            other => bail!("`{key}`, {}: a text, a number or true", other.type_str()),
        })
    };
    Ok(match value {
        Value::String(text) => text.clone(),
        Value::Table(items) => items.iter().map(item).collect::<Result<Vec<_>>>()?.join(","),
        other => {
            bail!("{}: a rule is a text such as \"drop=1%\", or a table such as {{ drop = \"1%\" }}", other.type_str())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::rules_of;

    #[test]
    fn steps_and_rules() {
        let text = "seed = 42\nrepeat = true\nrules = [\"delay=10us..50us\"]\n[[step]]\npackets = 1000\n\
                    [[step]]\nlasts = \"500ms\"\nrules = [\"drop,opcode=ACK\", { dup = \"1%\", nth = 3 }, { remove = true }]\n";
        let expected = "delay=10us..50us; seed=42; step,packets=1000; step,lasts=500ms; drop,opcode=ACK; dup=1%,nth=3; \
                        remove; repeat";
        let mut said: Vec<String> = rules_of(text).unwrap().split("; ").map(ToOwned::to_owned).collect();
        let mut wanted: Vec<String> = expected.split("; ").map(ToOwned::to_owned).collect();
        // What stands before the steps has no order.
        said[..2].sort();
        wanted[..2].sort();
        assert_eq!(said, wanted);
        assert_eq!(rules_of("").unwrap(), "");
    }

    #[test]
    fn mistakes_are_named() {
        for (text, said) in [
            ("sed = 42", "`sed`, integer: there are seed"),
            ("rules = [5]", "integer: a rule is a text"),
            ("rules = [{ drop = 0.5 }]", "`drop`, float: a text"),
            ("rules = [\"lose=1%\"]", "`lose=1%`: expected an action"),
            ("[[step]]\nfor = 5", "step 1: `for`, integer"),
            ("seed = ", "line 1"),
        ] {
            let error = format!("{:#}", rules_of(text).unwrap_err());
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
