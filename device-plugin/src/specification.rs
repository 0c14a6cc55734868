//! The CDI specification of a node, which container engines read: written by `urxe cdi`.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

/// Name of the specification in the folder of specifications.
pub const FILE: &str = "urxe.json";

/// Calls `urxe cdi` and puts what it prints into a folder of specifications.
#[derive(Debug)]
pub struct Specification {
    /// The command `urxe`, beside its library.
    pub urxe: PathBuf,
    /// Folder that containers mount. Its path is the node's.
    pub files: PathBuf,
    /// Folder where container engines look for specifications: `/etc/cdi` or `/var/run/cdi`.
    pub folder: PathBuf,
    /// Further options of `urxe cdi`.
    pub options: Vec<String>,
}

impl Specification {
    /// Writes files and specification. Returns the qualified name of `device`.
    ///
    /// # Errors
    /// `urxe cdi` fails, knows no such device, or a file cannot be written.
    pub async fn write(&self, device: &str) -> Result<String> {
        let mut command = Command::new(&self.urxe);
        command.arg("cdi").arg("--dir").arg(&self.files).args(&self.options);
        let said = command.output().await.with_context(|| format!("starting {}", self.urxe.display()))?;
        let remarks = String::from_utf8_lossy(&said.stderr);
        ensure!(said.status.success(), "{} cdi: {}: {}", self.urxe.display(), said.status, remarks.trim_end());
        eprint!("{remarks}");
        let specification: Value = serde_json::from_slice(&said.stdout).context("what `urxe cdi` printed")?;
        let name = qualified_name(&specification, device)?;
        replace(&self.folder, &said.stdout).with_context(|| format!("writing {}", self.folder.display()))?;
        Ok(name)
    }
}

/// The name that `Allocate` returns for a device of the specification.
fn qualified_name(specification: &Value, device: &str) -> Result<String> {
    let kind = specification["kind"].as_str().context("a specification without a kind")?;
    let names = specification["devices"].as_array().into_iter().flatten().filter_map(|it| it["name"].as_str());
    let names: Vec<&str> = names.collect();
    ensure!(names.contains(&device), "--device {device}: `urxe cdi` has {}", names.join(", "));
    Ok(format!("{kind}={device}"))
}

/// Writes the specification as a whole: engines may read the folder at any time.
fn replace(folder: &Path, text: &[u8]) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    // Engines read files that end with .json or .yaml.
    let mut file = tempfile::Builder::new().prefix(".urxe-").suffix(".new").tempfile_in(folder)?;
    file.write_all(text)?;
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    file.as_file().set_permissions(readable)?;
    file.persist(folder.join(FILE))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_must_be_in_the_specification() {
        let specification =
            serde_json::json!({ "kind": "urxe.dev/rdma", "devices": [{ "name": "urxe0" }, { "name": "all" }] });
        assert_eq!(qualified_name(&specification, "all").unwrap(), "urxe.dev/rdma=all");
        let said = qualified_name(&specification, "urxe1").unwrap_err().to_string();
        assert_eq!(said, "--device urxe1: `urxe cdi` has urxe0, all");
    }

    #[test]
    fn a_specification_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["one", "two"] {
            replace(&folder.path().join("cdi"), text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(folder.path().join("cdi/urxe.json")).unwrap(), text);
        }
        assert_eq!(folder.path().join("cdi").read_dir().unwrap().count(), 1);
    }
}
