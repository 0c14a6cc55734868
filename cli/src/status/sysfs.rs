//! For programs that read counters by path, where `urxe install` has written the tree: nobody updates it but this.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::plan;

/// Writes what the devices count into the files of the tree at `root`: the sums over all processes.
pub(super) fn write(root: &Path, devices: &[Value]) -> Result<()> {
    let class = root.join("class/infiniband");
    let names = fs::read_dir(&class).with_context(|| format!("{}: not a tree of `urxe install`", class.display()))?;
    for name in names {
        let name = name?.file_name();
        let same: Vec<&Value> = devices.iter().filter(|device| device["device"].as_str() == name.to_str()).collect();
        for file in urxe_status::sysfs::files() {
            let path = class.join(&name).join("ports/1").join(file.folder).join(file.name);
            let counters = same.iter().filter_map(|device| device["counters"].as_object()).flatten();
            let text = file.text(counters.map(|(name, value)| (name.as_str(), value.as_u64().unwrap_or_default())));
            let before = fs::read_to_string(&path);
            ensure!(before.is_ok(), "{}: not a tree of this version's `urxe install`", path.display());
            if before.is_ok_and(|before| before != text) {
                plan::replace_text(&path, text)?;
            }
        }
    }
    Ok(())
}
