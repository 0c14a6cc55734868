//! `urxe env`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::layout::Layout;
use crate::{host, out};

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
    let mut text = format!("export SYSFS_PATH={}\n", quoted(&layout.sysfs())?);
    let others = std::env::var_os("IBV_DRIVERS").and_then(|value| value.into_string().ok()).unwrap_or_default();
    text += &format!("export IBV_DRIVERS={}\n", quoted(&drivers(&others, &layout.ibv_drivers()?))?);
    out::print(&text)?;
    for line in host::obstacles() {
        out::complain(&format_args!("warning: {line}"));
    }
    Ok(())
}

/// The value of `IBV_DRIVERS`: ours, behind the drivers that it has named before.
fn drivers(before: &str, ours: &Path) -> PathBuf {
    // As libibverbs splits it.
    let others = before.split([':', ';']).filter(|driver| !driver.is_empty() && Path::new(driver) != ours);
    let all: Vec<&str> = others.chain(ours.to_str()).collect();
    PathBuf::from(all.join(":"))
}

/// Path or name by which the shell finds this command: as it was called now, if that was by a path.
pub(crate) fn this_command() -> Result<String> {
    let called = std::env::args_os().next().map(PathBuf::from).filter(|name| name.components().count() > 1);
    called.map_or(Ok("urxe".to_owned()), |path| quoted(&path))
}

/// A path as one word of the POSIX shell.
pub(crate) fn quoted(path: &Path) -> Result<String> {
    Ok(word(path.to_str().with_context(|| format!("{}: not valid UTF-8", path.display()))?))
}

/// A text as one word of the shell, on one line: `$'…'` of bash and POSIX.1-2024 where there are control characters.
pub(crate) fn word(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        text.to_owned()
    } else if text.contains(char::is_control) {
        let escaped: String = text
            .chars()
            .map(|it| match it {
                '\'' | '\\' => format!("\\{it}"),
                it if it.is_ascii_control() => format!("\\{:03o}", u32::from(it)),
                it => it.to_string(),
            })
            .collect();
        format!("$'{escaped}'")
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_of_others_stay() {
        let ours = Path::new("/p/lib/urxe/liburxe");
        for (before, after) in [
            ("", "/p/lib/urxe/liburxe"),
            ("/p/lib/urxe/liburxe", "/p/lib/urxe/liburxe"),
            ("/a/libx;/p/lib/urxe/liburxe:mlx5", "/a/libx:mlx5:/p/lib/urxe/liburxe"),
        ] {
            assert_eq!(drivers(before, ours), Path::new(after));
        }
    }

    #[test]
    fn words_survive_the_shell() {
        for path in ["/plain/path-1.0", "/with space", "/it's", "/$HOME/`x`"] {
            let script = format!("printf %s {}", quoted(Path::new(path)).unwrap());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), path);
        }
    }
}
