//! `urxe env`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::host;
use crate::layout::Layout;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder that was given to `urxe install`
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let Args { prefix } = args;
    let layout = Layout::new(prefix.as_deref())?;
    let install = match &prefix {
        Some(prefix) => format!("urxe install --prefix {}", quoted(prefix)?),
        None => "sudo urxe install".to_owned(),
    };
    ensure!(layout.manifest().is_file(), "not installed: run `{install}` first");
    println!("export SYSFS_PATH={}", quoted(&layout.sysfs())?);
    if let Some(drivers) = layout.ibv_drivers() {
        println!("export IBV_DRIVERS={}", quoted(&drivers)?);
    }
    for line in host::obstacles() {
        eprintln!("urxe: warning: {line}");
    }
    Ok(())
}

/// A path as one word of the POSIX shell.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not valid UTF-8", path.display()))?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%".contains(&byte);
    Ok(if text.bytes().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        for path in ["/plain/path-1.0", "/with space", "/it's", "/$HOME/`x`"] {
            let script = format!("printf %s {}", quoted(Path::new(path)).unwrap());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), path);
        }
    }
}
